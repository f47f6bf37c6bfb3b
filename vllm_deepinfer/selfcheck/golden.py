"""Recorded outputs of another implementation: the file format and its checks.

``golden.json`` holds the checkpoint's configuration and the hash of its tensors, a prompt, and per
mode what was computed at some positions: top-5 logits, logit norms, expert sets, index rows, stream
norms. Engram rows do not depend on the mode.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vllm_deepinfer.models.deepseek_v41.checkpoint_files import iterate_tensors
from vllm_deepinfer.ops.numerics import Numerics


class GoldenError(ValueError):
    """The recording cannot be compared with this checkpoint."""


@dataclass(frozen=True)
class Bounds:
    """Largest errors accepted in a mode; agreements are the smallest accepted shares.

    Quantisers turn a difference of one unit in the last place into a different code, so quantised
    modes agree only statistically (V4.1 specification, section 10).
    """

    logits: float
    logit_norm: float
    stream_norm: float
    argmax_agreement: float
    expert_agreement: float
    index_agreement: float
    draft_agreement: float
    confidence: float


@dataclass(frozen=True)
class Mode:
    numerics: Numerics
    bounds: Bounds


MODES = {
    "structural_fp32_no_quantisers": Mode(
        Numerics(torch.float32, quantised=False), Bounds(5e-6, 5e-6, 5e-6, 1.0, 1.0, 1.0, 1.0, 1e-4)
    ),
    "reference_bf16_quantised": Mode(
        Numerics(torch.bfloat16, quantised=True),
        Bounds(0.15, 0.05, 0.05, 0.72, 0.85, 0.80, 0.72, 1.0),
    ),
}


@dataclass(frozen=True)
class Golden:
    """A recording made for the checkpoint in ``folder``."""

    content: dict[str, Any]

    @classmethod
    def read(cls, path: Path, folder: Path) -> Golden:
        """Read ``path`` and make sure it was recorded on this checkpoint.

        Raises:
            GoldenError: it was recorded on another one, or in a mode this version does not know.
        """
        content = json.loads(path.read_text(encoding="utf-8"))
        missing = [key for key in ("config", "weights", "prompt", "modes") if key not in content]
        if missing:
            raise GoldenError(f"{path} lacks {', '.join(missing)}; it is not a recording.")
        unknown = sorted(set(content["modes"]) - set(MODES))
        if unknown:
            raise GoldenError(f"{path} has modes {unknown}; known are {sorted(MODES)}.")
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if config["text_config"] != content["config"]["text_config"]:
            raise GoldenError(f"{path} was recorded for a configuration other than {folder}'s.")
        recorded, found = (
            content["weights"]["tensors_sha256_sorted_name_then_bytes"],
            hash_tensors(folder),
        )
        if recorded != found:
            raise GoldenError(
                f"{path} was recorded on weights with SHA-256 {recorded}; those in {folder} have "
                f"{found}."
            )
        return cls(content)

    @property
    def prompt(self) -> list[int]:
        return self.content["prompt"]["ids"]

    @property
    def modes(self) -> dict[str, dict[str, Any]]:
        return self.content["modes"]

    def draft_context(self, mode: str) -> dict[str, Any]:
        """What a mode's draft block was made from: the number of tokens computed before it, the
        bonus token after them, and the drafts each next one was conditioned on.

        Raises:
            GoldenError: the recording describes its context in other words than this version knows.
        """
        recorded = self.modes[mode]["dspark"]
        match = _DRAFT_CONTEXT.match(recorded["context"])
        if match is None:
            raise GoldenError(f"draft context {recorded['context']!r} is not understood.")
        return {
            "context_tokens": int(match[1]) + 1,
            "bonus": recorded["bonus"],
            "drafts_greedy": recorded["drafts_greedy"],
        }


_DRAFT_CONTEXT = re.compile(r"prompt\[:(\d+)\] prefilled, token \1 decoded")


def hash_tensors(folder: Path) -> str:
    """SHA-256 over all tensors in order of name: the name, then the bytes."""
    tensors = dict(iterate_tensors(folder))
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

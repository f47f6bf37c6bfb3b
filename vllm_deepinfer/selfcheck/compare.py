"""Run a checkpoint in one mode and compare every recorded quantity."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vllm_deepinfer.models.deepseek_v41.probe import Probe, Quantity
from vllm_deepinfer.models.deepseek_v41.standalone import Chunk, StandaloneModel
from vllm_deepinfer.models.deepseek_v41.standalone_draft import DraftBlock
from vllm_deepinfer.selfcheck.draft_block import propose_recorded, recorded_tensors
from vllm_deepinfer.selfcheck.golden import MODES, Bounds, Golden

_STREAM_NORMS = re.compile(r"stream_l2_at_layer_entry_pos(\d+)")


@dataclass(frozen=True)
class Finding:
    """One compared quantity; ``is_share`` findings must reach the bound, others stay below it."""

    quantity: str
    value: float
    bound: float
    is_share: bool = False

    @property
    def passed(self) -> bool:
        return self.value >= self.bound if self.is_share else self.value <= self.bound

    def __str__(self) -> str:
        relation = ">=" if self.is_share else "<="
        verdict = "ok" if self.passed else "MISS"
        return f"{self.quantity:<34} {self.value:<9.3g}  {relation} {self.bound:<5.2g}  {verdict}"


@dataclass(frozen=True)
class Report:
    mode: str
    findings: list[Finding]
    num_ties: int

    @property
    def passed(self) -> bool:
        return all(finding.passed for finding in self.findings)


def check(folder: Path, golden: Golden) -> Iterator[Report]:
    """Compare the checkpoint in ``folder`` in every mode of ``golden``."""
    for name, recorded in golden.modes.items():
        mode = MODES[name]
        model = StandaloneModel.load(folder, mode.numerics, max_tokens=len(golden.prompt))
        probe = Probe(torch_ties=True)
        logits = model.logits(model.compute([Chunk(0, golden.prompt)], probe))
        findings = list(compare(logits, probe, recorded, golden.content, mode.bounds))
        if "dspark" in recorded:
            block = propose_recorded(folder, model, golden.prompt, golden.draft_context(name))
            findings += compare_drafts(block, recorded["dspark"], mode.bounds)
        yield Report(name, findings, probe.num_ties)


def compare(
    logits: Tensor, probe: Probe, recorded: dict[str, Any], content: dict[str, Any], bounds: Bounds
) -> Iterator[Finding]:
    """One finding per recorded quantity; ``logits`` are ``[T, V]``."""
    top = {int(position): rows for position, rows in recorded["top5_logits"].items()}
    wanted = torch.tensor([[value for _, value in rows] for rows in top.values()])
    ids = torch.tensor([[token for token, _ in rows] for rows in top.values()])
    found = logits[list(top)].gather(1, ids)
    yield Finding("top-5 logits, relative L2", _relative(found, wanted), bounds.logits)
    worst = max(
        abs(logits[int(position)].norm().item() / norm - 1)
        for position, norm in recorded["logits_l2_per_position"].items()
    )
    yield Finding("logit norm, worst relative error", worst, bounds.logit_norm)
    agreement = (logits[list(top)].argmax(-1) == ids[:, 0]).float().mean().item()
    yield Finding("greedy tokens, agreement", agreement, bounds.argmax_agreement, True)
    yield from _compare_decisions(probe, recorded, bounds)
    rows = content["engram_rows"]
    engram = probe.value(Quantity.ENGRAM_ROWS, rows["layer"])
    wrong = sum(engram[int(p)].tolist() != row for p, row in rows["rows"].items())
    yield Finding("engram rows, wrong positions", float(wrong), 0.0)
    for key, norms in recorded.items():
        if match := _STREAM_NORMS.fullmatch(key):
            errors = _norm_errors(probe, norms, int(match[1]))
            yield Finding("stream norms, worst relative error", max(errors), bounds.stream_norm)


def compare_drafts(
    block: DraftBlock, recorded: dict[str, Any], bounds: Bounds
) -> Iterator[Finding]:
    """One finding per recorded quantity of the draft block."""
    ids, wanted, confidences = recorded_tensors(recorded)
    same = sum(a == b for a, b in zip(block.drafts, recorded["drafts_greedy"], strict=True))
    yield Finding("greedy drafts, agreement", same / len(ids), bounds.draft_agreement, True)
    error = _relative(block.logits.gather(1, ids), wanted)
    yield Finding("draft logits, relative L2", error, bounds.logits)
    worst = (block.confidences - confidences).abs().max().item()
    yield Finding("confidence logits, worst error", worst, bounds.confidence)


def _norm_errors(probe: Probe, norms: list[float], position: int) -> list[float]:
    found = (probe.value(Quantity.STREAMS, layer)[position] for layer in range(len(norms)))
    return [abs(x.float().norm().item() / norm - 1) for x, norm in zip(found, norms, strict=True)]


def _compare_decisions(probe: Probe, recorded: dict[str, Any], bounds: Bounds) -> Iterator[Finding]:
    kinds = (
        ("expert sets", "experts", Quantity.EXPERTS, bounds.expert_agreement),
        ("index row sets", "index_rows", Quantity.INDEX_ROWS, bounds.index_agreement),
    )
    for label, key, quantity, bound in kinds:
        overlaps = [
            _overlap(probe.value(quantity, int(layer))[int(position)].tolist(), wanted)
            for layer, positions in recorded[key].items()
            for position, wanted in positions.items()
        ]
        yield Finding(f"{label}, mean overlap", sum(overlaps) / len(overlaps), bound, True)


def _overlap(found: Iterable[int], wanted: Iterable[int]) -> float:
    """Share of the wanted set that was found; padding (-1) does not count."""
    wanted_set = {item for item in wanted if item >= 0}
    found_set = {item for item in found if item >= 0}
    return len(found_set & wanted_set) / max(len(wanted_set), len(found_set), 1)


def _relative(found: Tensor, wanted: Tensor) -> float:
    return ((found - wanted).norm() / wanted.norm()).item()

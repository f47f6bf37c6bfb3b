"""Calibrated confidences of draft blocks, and the file that carries a calibration.

The confidence of position ``k`` of a block (counted from 0) is *conditional*: the probability that
draft ``k`` survives verification given that drafts ``0 .. k-1`` did. It is ``sigmoid(z_k / t_k)``
for the raw logit ``z_k`` of the confidence head and the temperature ``t_k`` of the position; at 1
nothing is calibrated. The probability that drafts ``0 .. k`` all survive is the product of the
conditional ones, and is never calibrated by itself.

The file is a small JSON object. ``version``, ``checkpoint`` (see `checkpoint_identity`),
``block_size``, ``temperatures`` and ``fitted`` are read and checked; ``report`` is for people.
The same records give the same bytes.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    import torch

    Logits = TypeVar("Logits", np.ndarray, torch.Tensor)

FILE_VERSION = 1
MIN_TEMPERATURE = 1e-5
# Beyond it float32 cannot tell the probability from 0 or 1, and exp would soon overflow.
MAX_ABS_LOGIT = 60.0
_REQUIRED = ("version", "checkpoint", "block_size", "temperatures", "fitted")
_OPTIONAL = ("report",)


class CalibrationError(ValueError):
    """A calibration is damaged, has a value that is not allowed, or belongs to something else."""


@dataclass(frozen=True)
class Calibration:
    """Temperatures of the positions of a draft block.

    Args:
        temperatures: one per position, at least ``MIN_TEMPERATURE``.
        fitted: per position, whether the temperature was fitted; where not, it is 1. Empty stands
            for all fitted.

    Raises:
        CalibrationError: a value is not allowed.
    """

    temperatures: tuple[float, ...]
    fitted: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        if not self.temperatures:
            raise CalibrationError("temperatures is empty; give one per position of the block.")
        if not self.fitted:
            object.__setattr__(self, "fitted", (True,) * self.block_size)
        if len(self.fitted) != self.block_size:
            raise CalibrationError(
                f"fitted has {len(self.fitted)} entries for {self.block_size} temperatures; "
                f"give one per position."
            )
        for position, (value, fitted) in enumerate(
            zip(self.temperatures, self.fitted, strict=True)
        ):
            if not _is_number(value) or value < MIN_TEMPERATURE:
                raise CalibrationError(
                    f"temperatures[{position}]={value!r} is not allowed. "
                    f"Allowed: a finite number of at least {MIN_TEMPERATURE:g}."
                )
            if not isinstance(fitted, bool):
                raise CalibrationError(
                    f"fitted[{position}]={fitted!r} is not allowed. Allowed: true, false."
                )
            if not fitted and value != 1:
                raise CalibrationError(
                    f"temperatures[{position}]={value!r} but fitted[{position}] is false. "
                    f"Allowed: 1 where nothing was fitted."
                )

    @property
    def block_size(self) -> int:
        return len(self.temperatures)

    def apply(self, logits: Logits) -> Logits:
        """Conditional survival probabilities of raw confidence logits.

        Args:
            logits: ``[..., K]`` for blocks of K drafts, a numpy array or a torch tensor of any
                floating type.

        Returns:
            Probabilities ``[..., K]`` in [0, 1], float64 for an array and float32 for a tensor.
            NaN stays NaN.

        Raises:
            ValueError: the last dimension is not the block size.
        """
        if logits.ndim == 0 or logits.shape[-1] != self.block_size:
            raise ValueError(
                f"confidence logits have shape {tuple(logits.shape)}; this calibration is for "
                f"blocks of {self.block_size}, so the last dimension must be {self.block_size}."
            )
        if isinstance(logits, np.ndarray):
            return sigmoid(divide(logits.astype(np.float64), np.asarray(self.temperatures)))
        temperatures = _tensor(self.temperatures, logits.device)
        return (logits.float() / temperatures).clamp(-MAX_ABS_LOGIT, MAX_ABS_LOGIT).sigmoid()


def divide(logits: np.ndarray, temperatures: np.ndarray | float) -> np.ndarray:
    """``logits / temperatures``, where a quotient too large for the type is infinite."""
    with np.errstate(over="ignore"):
        return logits / temperatures


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """The logistic function of float64 ``logits`` clamped to ``MAX_ABS_LOGIT``."""
    return 1.0 / (1.0 + np.exp(-np.clip(logits, -MAX_ABS_LOGIT, MAX_ABS_LOGIT)))


# Kept: a copy to the device in every step would wait for the device.
@lru_cache(maxsize=16)
def _tensor(temperatures: tuple[float, ...], device: torch.device) -> torch.Tensor:
    import torch

    return torch.tensor(temperatures, dtype=torch.float32, device=device)


def save_calibration(
    path: str | os.PathLike[str],
    calibration: Calibration,
    checkpoint: str,
    report: list[dict[str, Any]],
) -> None:
    """Write a calibration of the checkpoint with this identity; ``report`` is one row a position.

    Raises:
        OSError: the file cannot be written; an older one is then still whole.
    """
    content = {
        "version": FILE_VERSION,
        "checkpoint": checkpoint,
        "block_size": calibration.block_size,
        "temperatures": list(calibration.temperatures),
        "fitted": list(calibration.fitted),
        "report": report,
    }
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.unfinished")
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def load_calibration(path: str | os.PathLike[str], checkpoint: str, block_size: int) -> Calibration:
    """Read a calibration for blocks of ``block_size`` drafts of the checkpoint with this identity.

    Raises:
        CalibrationError: the file cannot be read, is damaged, has a value that is not allowed, or
            was fitted for another checkpoint or block size.
    """
    content = _read_object(path)
    missing = [key for key in _REQUIRED if key not in content]
    unknown = sorted(set(content) - {*_REQUIRED, *_OPTIONAL})
    if not _is_integer(content.get("version", FILE_VERSION), FILE_VERSION):
        raise CalibrationError(
            f"{path}: version={content['version']!r} is not allowed. Allowed: {FILE_VERSION}; "
            f"make the file again with `vllm-deepinfer calibrate`."
        )
    if missing or unknown:
        raise CalibrationError(
            f"{path}: missing {missing}, unknown {unknown}. "
            f"Allowed: {', '.join((*_REQUIRED, *_OPTIONAL))}; report may be missing."
        )
    _check_owner(path, content, checkpoint, block_size)
    for key in ("temperatures", "fitted"):
        if not isinstance(content[key], list) or len(content[key]) != block_size:
            raise CalibrationError(
                f"{path}: {key}={content[key]!r} is not allowed. "
                f"Allowed: a list with one entry per position, {block_size} in all."
            )
    try:
        return Calibration(tuple(content["temperatures"]), tuple(content["fitted"]))
    except CalibrationError as error:
        raise CalibrationError(f"{path}: {error}") from error


def _check_owner(
    path: str | os.PathLike[str], content: dict[str, Any], checkpoint: str, block_size: int
) -> None:
    if content["checkpoint"] != checkpoint:
        raise CalibrationError(
            f"{path}: checkpoint={content['checkpoint']!r} is another checkpoint than the one "
            f"served, {checkpoint!r}. Record drafts of this one and fit them with "
            f"`vllm-deepinfer calibrate`."
        )
    if not _is_integer(content["block_size"], block_size):
        raise CalibrationError(
            f"{path}: block_size={content['block_size']!r}, but blocks of {block_size} are "
            f"drafted. Serve with num_speculative_tokens as it was while the records were made, "
            f"or record and fit again."
        )


def _read_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise CalibrationError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise CalibrationError(f"{path} is not JSON: {error}.") from error
    if not isinstance(content, dict):
        raise CalibrationError(f"{path} holds a JSON {type(content).__name__}, not an object.")
    return content


def _is_integer(value: Any, expected: int) -> bool:
    return type(value) is int and value == expected


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) if isinstance(value, float) else abs(value) < 2**63

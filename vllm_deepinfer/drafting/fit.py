"""Sequential temperature scaling: one temperature per position of a draft block.

Definition. Position ``k`` is fitted on the blocks in which draft ``k`` was verified and drafts
``0 .. k-1`` survived: ``offered > k`` and ``accepted >= k``. Its outcome is whether draft ``k``
survived as well, ``accepted > k``. In all other blocks the outcome is not known: the draft was not
verified, or an earlier rejection had made it pointless. The temperature minimises the negative
log-likelihood of ``sigmoid(z_k / t_k)`` over those blocks, from left to right. As the outcomes are
conditional on the ones before, the likelihood of whole blocks is the product over positions, and no
temperature depends on another.

How many drafts are verified may depend on the confidences and on load, but must not depend on the
outcome. Then censored blocks bias nothing.

Errors reported are on the records fitted: one number per position cannot overfit thousands.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vllm_deepinfer.drafting.calibration import Calibration, divide, sigmoid
from vllm_deepinfer.drafting.records import DraftRecords

TEMPERATURE_RANGE = (0.01, 100.0)
ECE_BINS = 10
# Halvings of the range's logarithm, to 1e-14 of the temperature.
_HALVINGS = 50
# Sums differ in their last bits between processors; the file must not.
_DIGITS = 6


@dataclass(frozen=True)
class CalibrationErrors:
    """Expected calibration errors of one probability over one set of blocks; None without blocks.

    Args:
        samples: blocks compared.
        before: the error at temperature 1.
        after: the error at the fitted temperatures.
        noise: the error that exact probabilities would show on as many blocks, on average.
    """

    samples: int
    before: float | None
    after: float | None
    noise: float | None


@dataclass(frozen=True)
class PositionFit:
    """The fit of one position.

    Args:
        temperature: 1 where none was fitted.
        samples: blocks fitted on.
        accepted: those in which the draft survived.
        problem: why no temperature was fitted; empty where one was.
        conditional: errors of the position's confidence over those blocks.
        survival: errors of the product of confidences up to the position, as the probability that
            all drafts up to it survive, over all blocks in which it was offered.
    """

    temperature: float
    samples: int
    accepted: int
    problem: str
    conditional: CalibrationErrors
    survival: CalibrationErrors

    @property
    def fitted(self) -> bool:
        return not self.problem

    def as_row(self, position: int) -> dict[str, Any]:
        """The row of the calibration file's report."""
        return {"position": position, **asdict(self)}


def fit_positions(records: DraftRecords, min_samples: int) -> list[PositionFit]:
    """Fit every position on its own blocks.

    Args:
        records: N blocks of K drafts.
        min_samples: blocks a position needs; with fewer its temperature is 1 and not fitted.

    Returns:
        K fits.
    """
    fits: list[PositionFit] = []
    temperatures: list[float] = []
    for position in range(records.block_size):
        rows = (records.offered > position) & (records.accepted >= position)
        logits = records.logits[rows, position]
        survived = records.accepted[rows] > position
        temperature, problem = fit_temperature(logits, survived, min_samples)
        temperatures.append(temperature)
        fits.append(
            PositionFit(
                temperature,
                len(logits),
                int(survived.sum()),
                problem,
                _errors(sigmoid(logits), sigmoid(divide(logits, temperature)), survived),
                _survival_errors(records, np.array(temperatures)),
            )
        )
    return fits


def calibration_of(fits: list[PositionFit]) -> Calibration:
    """The temperatures of all positions."""
    return Calibration(tuple(fit.temperature for fit in fits), tuple(fit.fitted for fit in fits))


def fit_temperature(
    logits: np.ndarray, survived: np.ndarray, min_samples: int
) -> tuple[float, str]:
    """The temperature with the smallest negative log-likelihood.

    In ``b = 1 / t`` the negative log-likelihood is convex, so its derivative, the sum of
    ``z * (sigmoid(b z) - survived)``, grows with b and its zero is found by halving.

    Args:
        logits: float64 ``[n]``.
        survived: bool ``[n]``.
        min_samples: the least n.

    Returns:
        Temperature to six digits and an empty text; or 1 and why there is none.
    """
    count, accepted = len(logits), int(survived.sum())
    if count < min_samples:
        return 1.0, f"{count} samples, {min_samples} needed"
    if accepted in (0, count):
        outcome = "survived" if accepted else "were rejected"
        return 1.0, f"all {count} drafts {outcome}; both outcomes are needed"

    def slope(temperature: float) -> float:
        return float(logits @ (sigmoid(divide(logits, temperature)) - survived))

    lowest, highest = TEMPERATURE_RANGE
    if slope(highest) >= 0:
        return 1.0, f"no optimum below {highest:g}: larger logits do not survive more often"
    if slope(lowest) <= 0:
        return 1.0, f"no optimum above {lowest:g}: the sign of the logit decides survival"
    low, high = np.log(lowest), np.log(highest)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        # The slope falls with the temperature.
        low, high = (middle, high) if slope(float(np.exp(middle))) > 0 else (low, middle)
    return float(f"{np.exp((low + high) / 2):.{_DIGITS}g}"), ""


def expected_calibration_error(probabilities: np.ndarray, outcomes: np.ndarray) -> float:
    """Mean distance between probability and observed share over ``ECE_BINS`` bins of equal mass.

    Equal probabilities share a bin, so the order of the samples does not matter.

    Args:
        probabilities: float64 ``[n]``, n > 0.
        outcomes: bool ``[n]``.
    """
    excess = np.bincount(_bins(probabilities), probabilities - outcomes, ECE_BINS)
    return float(np.abs(excess).sum() / len(probabilities))


def expected_noise(probabilities: np.ndarray) -> float:
    """The expected calibration error of outcomes drawn with exactly these probabilities.

    A bin's sum of outcomes is close to normal, so its mean distance is sqrt(2 / pi) deviations.

    Args:
        probabilities: float64 ``[n]``, n > 0.
    """
    variance = np.bincount(_bins(probabilities), probabilities * (1 - probabilities), ECE_BINS)
    return float(np.sqrt(2 / np.pi * variance).sum() / len(probabilities))


def _bins(probabilities: np.ndarray) -> np.ndarray:
    """The bin of every sample: that of the middle rank of its probability."""
    _, inverse, counts = np.unique(probabilities, return_inverse=True, return_counts=True)
    twice_middle = 2 * np.cumsum(counts) - counts
    return (twice_middle * ECE_BINS // (2 * len(probabilities)))[inverse]


def _errors(before: np.ndarray, after: np.ndarray, outcomes: np.ndarray) -> CalibrationErrors:
    if not len(outcomes):
        return CalibrationErrors(0, None, None, None)
    return CalibrationErrors(
        len(outcomes),
        round(expected_calibration_error(before, outcomes), _DIGITS),
        round(expected_calibration_error(after, outcomes), _DIGITS),
        round(expected_noise(after), _DIGITS),
    )


def _survival_errors(records: DraftRecords, temperatures: np.ndarray) -> CalibrationErrors:
    """Errors of the product over the positions that have a temperature.

    All blocks in which the last of them was offered count, those rejected earlier included.
    """
    position = len(temperatures) - 1
    rows = records.offered > position
    logits = records.logits[rows, : position + 1]
    return _errors(
        sigmoid(logits).prod(axis=1),
        sigmoid(divide(logits, temperatures)).prod(axis=1),
        records.accepted[rows] > position,
    )

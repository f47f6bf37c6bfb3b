"""Confidences made honest while serving, by what became of the drafts they spoke of.

A planner that believes a drafter which knows nothing trims drafts at random, and one that believes
an overconfident one verifies too many. A calibration file corrects the latter for the texts it was
fitted on; this follows the texts that are served. By position it fits

    logit(chance to survive) = offset + trust * logit(confidence)

to settled drafts, beginning at offset 0 and trust 1. A drafter that knows nothing ends at trust 0:
all sequences then look alike, and plans are those of a static length.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

NUM_BINS = 24
LARGEST_LOGIT = 6.0
REFIT_STEPS = 16
MOST_BLOCKS = 16384  # then all counts are halved, so that old texts are forgotten
PRIOR_DRAFTS = 16.0  # drafts that the first guess counts for
_LEVELS = 4096  # of a chance; the correction is looked up by level, not computed


class Recalibration:
    """Fits and applies the correction.

    Args:
        num_drafts: drafts of a block, K.

    Attributes:
        offset, trust: by position, float64 ``[K]``.
        corrected: by position and level of what the drafter tells, float32 ``[K, levels]``; None
            before the first fit.
    """

    def __init__(self, num_drafts: int) -> None:
        self.offset, self.trust = np.zeros(num_drafts), np.ones(num_drafts)
        # By position and bin of the confidence's logit: drafts that were reached, those that
        # survived, and the sum of their logits.
        self._reached, self._survived, self._logits = np.zeros((3, num_drafts, NUM_BINS))
        self._num_blocks = self._num_steps = 0
        self._position = np.arange(num_drafts)
        self.corrected: NDArray[np.float32] | None = None

    def settle(self, probabilities: NDArray, offered: ArrayLike, accepted: ArrayLike) -> None:
        """Learn from the verified blocks of a step.

        Args:
            probabilities: as the drafter told them, each given that the drafts before it survived,
                ``[n, K]``.
            offered: drafts verified of each block, ``[n]``.
            accepted: drafts that survived, ``[n]``, at most ``offered``.

        Raises:
            ValueError: more survived than were offered, or more were offered than there are.
        """
        offered, accepted = np.atleast_1d(offered), np.atleast_1d(accepted)
        wrong = (accepted < 0) | (accepted > offered) | (offered > len(self.trust))
        if wrong.any():
            raise ValueError(
                f"{accepted[wrong][0]} of {offered[wrong][0]} drafts survived; no more survive "
                f"than were offered, and no more are offered than {len(self.trust)}"
            )
        logits = _logit(probabilities)
        reached = self._position < np.minimum(accepted + 1, offered)[:, None]
        survived = self._position < accepted[:, None]
        share = (logits + LARGEST_LOGIT) / (2 * LARGEST_LOGIT)
        bins = np.minimum((share * NUM_BINS).astype(np.int64), NUM_BINS - 1)
        cells = (self._position * NUM_BINS + bins)[reached]
        for counts, values in (
            (self._reached, None),
            (self._survived, survived[reached]),
            (self._logits, logits[reached]),
        ):
            counts += np.bincount(cells, values, counts.size).reshape(counts.shape)
        self._num_blocks += len(offered)
        self._num_steps += 1
        if self._num_steps % REFIT_STEPS == 0:
            self._refit()

    def survival(self, probabilities: NDArray) -> NDArray:
        """Corrected chances to survive, those of the drafts before included: ``[n, K]`` as the
        drafter told them to cumulative ones of the same type."""
        return corrected_survival(probabilities, self.corrected)

    def _refit(self) -> None:
        """Penalised logistic regression of every position, by Newton steps from the last fit."""
        if self._num_blocks > MOST_BLOCKS:
            self._num_blocks //= 2
            for counts in (self._reached, self._survived, self._logits):
                counts /= 2
        logit = self._logits / np.maximum(self._reached, 1e-9)
        for _ in range(3):
            chance = _sigmoid(self.offset[:, None] + self.trust[:, None] * logit)
            error = self._survived - self._reached * chance
            weight = self._reached * chance * (1 - chance)
            down = error.sum(1) - PRIOR_DRAFTS * self.offset
            along = (error * logit).sum(1) - PRIOR_DRAFTS * (self.trust - 1)
            a = weight.sum(1) + PRIOR_DRAFTS
            b = (weight * logit).sum(1)
            c = (weight * logit**2).sum(1) + PRIOR_DRAFTS
            determinant = a * c - b * b
            self.offset = self.offset + (c * down - b * along) / determinant
            self.trust = np.maximum(0.0, self.trust + (a * along - b * down) / determinant)
        levels = _logit((np.arange(_LEVELS + 1) + 0.5) / _LEVELS)
        corrected = _sigmoid(self.offset[:, None] + self.trust[:, None] * levels)
        self.corrected = corrected.astype(np.float32)


def corrected_survival(probabilities: NDArray, corrected: NDArray[np.float32] | None) -> NDArray:
    """``Recalibration.survival`` by its ``corrected``; what was told where that is None."""
    if corrected is None:
        return np.cumprod(probabilities, axis=1)
    level = (probabilities * (corrected.shape[1] - 1)).astype(np.intp)
    chances = corrected[np.arange(len(corrected)), level]
    return np.cumprod(chances, axis=1, dtype=probabilities.dtype)


def _logit(chance: NDArray) -> NDArray:
    """Clipped to +-``LARGEST_LOGIT``."""
    chance = np.clip(chance, *_CHANCES)
    return np.clip(np.log(chance / (1 - chance)), -LARGEST_LOGIT, LARGEST_LOGIT)


def _sigmoid(logit: NDArray) -> NDArray:
    return 1 / (1 + np.exp(-logit))


_CHANCES = _sigmoid(np.array([-LARGEST_LOGIT, LARGEST_LOGIT]))

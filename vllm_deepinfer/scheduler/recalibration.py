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


class Recalibration:
    """Fits and applies the correction.

    Args:
        num_drafts: drafts of a block, K.
    """

    def __init__(self, num_drafts: int) -> None:
        self.offset, self.trust = np.zeros(num_drafts), np.ones(num_drafts)
        # By position and bin of the confidence's logit: drafts that were reached, those that
        # survived, and the sum of their logits.
        self._reached, self._survived, self._logits = np.zeros((3, num_drafts, NUM_BINS))
        self._num_blocks = self._num_steps = 0

    def settle(self, rates: NDArray, offered: ArrayLike, accepted: ArrayLike) -> None:
        """Learn from the verified blocks of a step.

        Args:
            rates: chances as the drafter told them, cumulative along a row, [n, K].
            offered: drafts verified of each block, [n].
            accepted: drafts that survived, [n], at most ``offered``.
        """
        offered, accepted = np.atleast_1d(offered), np.atleast_1d(accepted)
        wrong = (accepted < 0) | (accepted > offered) | (offered > len(self.trust))
        if wrong.any():
            raise ValueError(
                f"{accepted[wrong][0]} of {offered[wrong][0]} drafts survived; no more survive "
                f"than were offered, and no more are offered than {len(self.trust)}"
            )
        position = np.arange(len(self.trust))
        logits = _conditional_logits(rates)
        reached = position < np.minimum(accepted + 1, offered)[:, None]
        survived = position < accepted[:, None]
        share = (logits + LARGEST_LOGIT) / (2 * LARGEST_LOGIT)
        bins = np.minimum((share * NUM_BINS).astype(np.int64), NUM_BINS - 1)
        cells = (position * NUM_BINS + bins)[reached]
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

    def apply(self, rates: NDArray) -> NDArray:
        """Corrected chances, cumulative along a row, shape and type of ``rates``, [n, K]."""
        offset, trust = self.offset.astype(rates.dtype), self.trust.astype(rates.dtype)
        chance = _sigmoid(offset + trust * _conditional_logits(rates))
        return np.cumprod(chance, axis=1, dtype=rates.dtype)

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


def _conditional_logits(rates: NDArray) -> NDArray:
    """Logit of each draft's chance given that those before it survived; clipped to +-6."""
    chance = rates.copy()
    before = rates[:, :-1]
    np.divide(rates[:, 1:], before, out=chance[:, 1:], where=before > 0)
    np.clip(chance, *_CHANCES, out=chance)
    logits = np.log(chance / (1 - chance))
    return np.clip(logits, -LARGEST_LOGIT, LARGEST_LOGIT, out=logits)


def _sigmoid(logit: NDArray) -> NDArray:
    return 1 / (1 + np.exp(-logit))


_CHANCES = _sigmoid(np.array([-LARGEST_LOGIT, LARGEST_LOGIT]))

"""Which round's confidences a plan may use for what.

Verifying a draft must not depend on that draft or a later one, or sampling is biased, and a
confidence tells of the drafts before it. Hence two inputs:

- The *budget*, how many drafts are verified in all, comes from the round before the one to be
  verified: those drafts are settled.
- The *ranking*, which ones, may use the newest round: a draft's chance to survive depends on
  earlier drafts alone, and no later draft of its sequence comes before it.

While a step is in flight, the newest round known to the scheduler already is the one before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def planning_rates(
    newest: Array,
    previous: Array,
    has_newest: NDArray[np.bool_],
    has_previous: NDArray[np.bool_],
    in_flight: NDArray[np.bool_],
    prior: Array,
) -> tuple[Array, Array]:
    """Budget and ranking rows of sequences, for ``VerificationPlanner.plan``.

    Args:
        newest: survival chances of the newest processed round, cumulative along a row, [n, K].
        previous: those of the round before it, [n, K].
        has_newest: where ``newest`` is known, [n]; other rows are ignored. A sequence that was just
            prefilled has no ``previous``, one whose first drafts are in flight has neither.
        has_previous: the same for ``previous``, [n].
        in_flight: where a step is in flight, so that the round to be verified is not known, [n].
        prior: what stands in for an unknown round, [K] or [n, K]: the mean survival observed per
            position, from settled rounds only.

    Returns:
        budget and ranking rows, [n, K] each.
    """
    fresh = np.where(has_newest[:, None], newest, prior)
    settled = np.where(has_previous[:, None], previous, prior)
    return np.where(in_flight[:, None], fresh, settled), fresh


def compatible_prior(
    has_drafts: NDArray[np.bool_], in_flight: NDArray[np.bool_], num_drafts: int
) -> Array:
    """DeepInfer's stand-in for an unknown round, [n, K]: 1 where drafts exist or will, else 0."""
    exists = has_drafts | in_flight
    return np.repeat(exists[:, None].astype(np.float64), num_drafts, axis=1)

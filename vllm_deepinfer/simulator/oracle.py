"""The yardstick: the best plan of one who knows the machine and every draft's true chance.

No engine can know this much: the true chances of the very block it verifies would, as a budget,
bias what is sampled. It bounds from above what a planner can reach on one rank.
"""

from __future__ import annotations

import numpy as np

from vllm_deepinfer.simulator.curves import MachineCurve


def best_lengths(
    curve: MachineCurve, chances: np.ndarray, limits: np.ndarray, context_tokens: int
) -> np.ndarray:
    """Drafts of each sequence to verify for the most expected tokens per millisecond.

    Args:
        curve: the true one.
        chances: true chances of survival, cumulative along a row, [n, K].
        limits: most drafts of each sequence, [n].
        context_tokens: tokens in the KV cache of all sequences.

    Returns:
        int32 [n].
    """
    sequences = len(limits)
    allowed = np.arange(chances.shape[1]) < limits[:, None]
    order = np.argsort(-chances[allowed], kind="stable")
    gains = chances[allowed][order].astype(np.float64)
    expected = sequences + np.concatenate([[0.0], np.cumsum(gains)])
    rows = sequences + np.arange(len(expected))
    forward_ms = curve.forward_ms(rows, np.full(len(rows), context_tokens))
    added_ms = curve.sampler_ms(np.array([sequences])) + curve.drafter_ms(np.array([sequences]))
    best = int(np.argmax(expected / (forward_ms + added_ms)))
    owner = np.nonzero(allowed)[0][order[:best]]
    return np.bincount(owner, minlength=sequences).astype(np.int32)

"""Policies in Python around the C++ core, lived through from a seed; the same code on both sides.

Needs numpy and no torch.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from aarch64.values import write

from vllm_deepinfer.scheduler import draft_table, vote
from vllm_deepinfer.scheduler.step_report import BlockConfidences

VOTED_STEPS = 400
TABLE_STEPS = 60


def voting(seed: int) -> Any:
    """Verdicts of a vote over random ballots."""
    rng = random.Random(seed)
    settings = vote.VoteSettings(
        mode=rng.choice(("cadence", "slo")),
        all_interval=rng.randint(1, 40),
        any_interval=rng.randint(1, 60),
        resume_interval=rng.randint(0, 12),
        idle_interval=rng.randint(0, 9),
        max_prefill_steps=rng.randint(1, 5),
        ballot_interval=rng.randint(1, 6),
        ttft_target_ms=rng.uniform(100, 3000),
        itl_target_ms=rng.uniform(5, 80),
    )
    own = vote.Vote(settings, num_ranks=rng.randint(1, 5))
    verdicts = []
    for _ in range(VOTED_STEPS):
        due = own.needs_ballots()
        verdict = own.advance([ballot(rng) for _ in range(own.num_ranks)] if due else None)
        kind = None if verdict.kind is None else verdict.kind.value
        verdicts.append((verdict.phase.value, kind, verdict.took_ballots))
    return write(verdicts)


def ballot(rng: random.Random) -> vote.Ballot:
    return vote.Ballot(
        *(int(rng.random() < 0.7) for _ in range(3)),
        rng.randint(0, 6),
        rng.choice((0, 512)),
        rng.randint(0, 4000),
        rng.choice((0, rng.randint(1, 60_000))),
        rng.choice((0, rng.randint(1, 900_000))),
    )


def keeping_confidences(seed: int) -> Any:
    """Columns of a draft table that grows while requests come and go."""
    rng = np.random.default_rng(seed)
    num_drafts = int(rng.integers(1, 6))
    table, seen = draft_table.DraftTable(num_drafts), []
    for step in range(TABLE_STEPS):
        names = [str(n) for n in rng.choice(200, int(rng.integers(0, 30)), replace=False)]
        logits, probabilities = rng.random((2, len(names), num_drafts), dtype=np.float32)
        corrected = rng.random((num_drafts, 9), dtype=np.float32) if step % 3 else None
        kept = (rng.random(len(names)) < 0.8).tolist()
        table.receive(BlockConfidences(names, logits, probabilities), kept, corrected)
        table.forget(str(n) for n in rng.choice(200, 5))
        if step % 20 == 19:
            arrays = {k: v.copy() for k, v in vars(table).items() if isinstance(v, np.ndarray)}
            seen.append((arrays, dict(table.row_by_request)))
    return write(seen)


LIVES: dict[str, Callable[[int], Any]] = {
    "vote": voting,
    "draft_table": keeping_confidences,
}


def live_of(kind: str, seed: int) -> Any:
    return LIVES[kind](seed)

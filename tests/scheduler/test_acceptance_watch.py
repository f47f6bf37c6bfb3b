"""A drafter that stops paying is reported once with numbers, a steady one never.

If a test fails, an operator is left without notice of a collapse, or is flooded with notices.
"""

from __future__ import annotations

import random

from vllm_deepinfer.scheduler.acceptance import (
    BASELINE_DRAFTS,
    COLLAPSE_RATIO,
    RECENT_DRAFTS,
    AcceptanceWatch,
    Collapse,
)

BLOCK = 5
BLOCKS_PER_WINDOW = -(-RECENT_DRAFTS // BLOCK)
BASELINE_BLOCKS = (-(-BASELINE_DRAFTS // RECENT_DRAFTS) + 1) * BLOCKS_PER_WINDOW


def observe(watch: AcceptanceWatch, num_blocks: int, accepted: int) -> list[Collapse]:
    found = [watch.observe(BLOCK, accepted) for _ in range(num_blocks)]
    return [collapse for collapse in found if collapse is not None]


def test_no_alarm_while_acceptance_is_steady():
    for accepted in range(BLOCK + 1):
        assert observe(AcceptanceWatch(), 5 * BASELINE_BLOCKS, accepted) == []


def test_no_alarm_for_noise():
    watch, draws = AcceptanceWatch(), random.Random(0)
    for _ in range(20 * BASELINE_BLOCKS):
        survivors = next((i for i in range(BLOCK) if draws.random() > 0.6), BLOCK)
        assert watch.observe(BLOCK, survivors) is None


def test_no_alarm_before_there_is_a_baseline():
    watch = AcceptanceWatch()
    assert observe(watch, BASELINE_BLOCKS // 4, BLOCK) == []
    assert observe(watch, BLOCKS_PER_WINDOW, 0) == []


def test_one_alarm_for_a_collapse_with_its_numbers():
    watch = AcceptanceWatch()
    observe(watch, BASELINE_BLOCKS, 4)
    [collapse] = observe(watch, 10 * BLOCKS_PER_WINDOW, 1)
    assert collapse.baseline == 0.8
    # The window that was open when it fell holds a few drafts of before.
    assert 0.2 <= collapse.recent < COLLAPSE_RATIO * collapse.baseline
    assert collapse.num_drafts >= RECENT_DRAFTS
    assert "80.0%" in str(collapse)


def test_a_fall_to_just_above_half_is_no_collapse():
    watch = AcceptanceWatch()
    observe(watch, BASELINE_BLOCKS, 3)
    assert observe(watch, 4 * BLOCKS_PER_WINDOW, 2) == []


def test_a_lasting_collapse_does_not_become_the_baseline():
    """So a recovery is told from it, and the next collapse is reported again."""
    watch = AcceptanceWatch()
    observe(watch, BASELINE_BLOCKS, 4)
    assert len(observe(watch, 20 * BASELINE_BLOCKS, 0)) == 1
    assert observe(watch, 3 * BLOCKS_PER_WINDOW, 4) == []
    [again] = observe(watch, 3 * BLOCKS_PER_WINDOW, 0)
    assert again.baseline > 0.75


def test_blocks_of_any_length_are_counted_by_draft():
    watch = AcceptanceWatch()
    for _ in range(2 * BASELINE_DRAFTS):
        watch.observe(1, 1)
        watch.observe(0, 0)
    found = [watch.observe(1, 0) for _ in range(2 * RECENT_DRAFTS)]
    assert sum(collapse is not None for collapse in found) == 1

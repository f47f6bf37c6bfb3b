"""The way of tokens to experts follows a rule that all ranks evaluate alike, and is told as it is.

Claim: the rule takes what every rank knows, changes at the stated token counts only, and what this
release uses is said together with what would be faster. If this breaks, ranks may choose different
collectives and hang, or a log promises an exchange that is not there.
"""

from __future__ import annotations

import pytest

from vllm_deepinfer.distributed.npu_exchange import (
    IMPLEMENTED,
    MC2_MOST_TOKENS,
    Exchange,
    best_exchange,
    describe,
)


@pytest.mark.parametrize(
    ("tokens", "ranks", "experts", "best"),
    [
        (0, 2, 6, Exchange.MC2),
        (MC2_MOST_TOKENS, 64, 6, Exchange.MC2),
        (MC2_MOST_TOKENS + 1, 2, 6, Exchange.ALL_GATHER),
        (MC2_MOST_TOKENS + 1, 6, 6, Exchange.ALL_GATHER),
        (MC2_MOST_TOKENS + 1, 7, 6, Exchange.ALL_TO_ALL),
        (8192, 64, 6, Exchange.ALL_TO_ALL),
    ],
)
def test_rule_changes_at_the_stated_counts(tokens, ranks, experts, best):
    assert best_exchange(tokens, ranks, experts) is best


def test_ranks_that_know_the_same_choose_the_same():
    """A rank without tokens and one with many take one decision: the most tokens decide."""
    across_ranks = (0, 700, 3, 512)
    choices = {best_exchange(max(across_ranks), len(across_ranks), 2) for _ in across_ranks}
    assert choices == {Exchange.ALL_TO_ALL}


def test_one_rank_has_no_exchange():
    with pytest.raises(ValueError, match="num_ranks is 1"):
        best_exchange(1, 1, 6)


def test_what_is_used_is_implemented_and_what_is_missed_is_said():
    assert Exchange.ALL_GATHER in IMPLEMENTED
    text = describe((48, 8192), 8, 6)
    assert text.startswith("Tokens go to the experts of 8 ranks by all-gather and reduce-scatter; ")
    assert "48 tokens, MC2 is better" in text
    assert "8192 tokens, all-to-all is better and not used" in text
    assert describe((1024,), 4, 6) == (
        "Tokens go to the experts of 4 ranks by all-gather and reduce-scatter."
    )

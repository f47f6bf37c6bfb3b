"""Which way tokens should take to experts on an Ascend 950, and which this release takes.

The rule is vllm-ascend's for this generation. It takes only what all ranks know alike: ranks that
chose differently would wait for each other forever.
"""

from __future__ import annotations

from enum import Enum


class Exchange(Enum):
    """Ways of tokens to experts on other ranks and back. MC2 fuses copies with what they feed."""

    MC2 = "MC2"
    ALL_GATHER = "all-gather and reduce-scatter"
    ALL_TO_ALL = "all-to-all"


MC2_MOST_TOKENS = 512
"""Tokens of a rank that fit in MC2's window in its peers' memory."""
IMPLEMENTED = frozenset({Exchange.ALL_GATHER})


def best_exchange(most_tokens: int, num_ranks: int, experts_per_token: int) -> Exchange:
    """The fastest way for a step.

    Args:
        most_tokens: of any rank in this step.
        num_ranks: that hold experts; above 1.
        experts_per_token: as many ranks see a token at most, so with no more ranks than that,
            sending every token to all of them wastes little.
    """
    if num_ranks < 2:
        raise ValueError(f"num_ranks is {num_ranks}; tokens move between 2 ranks or more")
    if most_tokens <= MC2_MOST_TOKENS:
        return Exchange.MC2
    return Exchange.ALL_GATHER if num_ranks <= experts_per_token else Exchange.ALL_TO_ALL


def describe(step_tokens: tuple[int, ...], num_ranks: int, experts_per_token: int) -> str:
    """What moves tokens here, and where another way would be faster but is not used.

    Args:
        step_tokens: tokens a rank of the steps to tell of.
    """
    used = Exchange.ALL_GATHER
    missed = {}
    for tokens in step_tokens:
        best = best_exchange(tokens, num_ranks, experts_per_token)
        if best not in IMPLEMENTED:
            missed.setdefault(best, []).append(tokens)
    text = f"Tokens go to the experts of {num_ranks} ranks by {used.value}"
    for best, sizes in missed.items():
        listed = ", ".join(map(str, sizes))
        text += (
            f"; for steps of {listed} tokens, {best.value} is better and not used by this release"
        )
    return text + "."

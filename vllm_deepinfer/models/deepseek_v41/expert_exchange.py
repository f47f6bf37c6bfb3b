"""Experts on several ranks: who holds which, and what must move between them.

Each rank computes its experts for the tokens of all ranks. Every output of an expert for a token
comes from exactly one rank, so that bringing it back rounds nothing.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

# Rows each rank computes in a forward pass.
RankRows = tuple[int, ...]


class ExpertExchange(Protocol):
    """The way of tokens to experts and back. All ranks call the same methods in the same order."""

    def held(self, num_experts: int) -> range:
        """The experts, of ``num_experts``, whose weights are on this rank."""
        ...

    def row_counts(self, num_rows: int) -> RankRows:
        """Tell all ranks that this one computes ``num_rows`` rows; once per forward pass."""
        ...

    def equal_row_counts(self, num_rows: int) -> RankRows:
        """What ``row_counts`` would say where every rank is known to compute as many rows."""
        ...

    def gather(self, tensors: list[Tensor], rank_rows: RankRows) -> list[Tensor]:
        """Tensors ``[rows here, ...]`` to ``[rows of all ranks, ...]``."""
        ...

    def bring_back(self, outputs: Tensor, rank_rows: RankRows) -> Tensor:
        """Outputs ``[rows of all ranks, ...]``, summed over the ranks, to ``[rows here, ...]``."""
        ...


class LocalExperts:
    """Every expert is here: nothing moves."""

    def held(self, num_experts: int) -> range:
        return range(num_experts)

    def row_counts(self, num_rows: int) -> RankRows:
        return (num_rows,)

    def equal_row_counts(self, num_rows: int) -> RankRows:
        return (num_rows,)

    def gather(self, tensors: list[Tensor], rank_rows: RankRows) -> list[Tensor]:
        return tensors

    def bring_back(self, outputs: Tensor, rank_rows: RankRows) -> Tensor:
        return outputs


def contiguous_share(num_experts: int, rank: int, num_ranks: int) -> range:
    """Neighbouring experts for each rank; the first ranks hold the remainder, one each."""
    each, rest = divmod(num_experts, num_ranks)
    first = rank * each + min(rank, rest)
    return range(first, first + each + (rank < rest))

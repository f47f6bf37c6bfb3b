"""Experts and engram tables on several ranks: who holds which part, and what must move.

Each rank computes its experts, and reads its table rows, for the tokens of all ranks. Every output
of an expert for a token, and every row, comes from exactly one rank, so that bringing it back
rounds nothing.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

# Rows each rank computes in a forward pass.
RankRows = tuple[int, ...]


class ExpertExchange(Protocol):
    """The way of tokens to experts and back. All ranks call the same methods in the same order.

    Attributes:
        num_ranks: that hold weights; with one, nothing moves.
    """

    num_ranks: int

    def held(self, count: int) -> range:
        """The experts or table rows, of ``count``, that are on this rank."""
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
    """Every expert and every table row is here: nothing moves."""

    num_ranks = 1

    def held(self, count: int) -> range:
        return range(count)

    def row_counts(self, num_rows: int) -> RankRows:
        return (num_rows,)

    def equal_row_counts(self, num_rows: int) -> RankRows:
        return (num_rows,)

    def gather(self, tensors: list[Tensor], rank_rows: RankRows) -> list[Tensor]:
        return tensors

    def bring_back(self, outputs: Tensor, rank_rows: RankRows) -> Tensor:
        return outputs


def contiguous_share(count: int, rank: int, num_ranks: int) -> range:
    """Neighbouring experts or rows for each rank; the first ranks hold the remainder, one each."""
    each, rest = divmod(count, num_ranks)
    first = rank * each + min(rank, rest)
    return range(first, first + each + (rank < rest))

"""One forward step: which tokens of which requests are computed, and where their rows live.

Shapes: T tokens of the step, R requests. Tokens of a request are adjacent and in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from vllm_deepinfer.models.deepseek_v41.cache import Cache
from vllm_deepinfer.models.deepseek_v41.expert_exchange import RankRows
from vllm_deepinfer.models.deepseek_v41.probe import Probe
from vllm_deepinfer.ops.rope import Rope


@dataclass(frozen=True)
class Paging:
    """Where the requests of a step keep the rows of one group of caches.

    Attributes:
        block_table: ``[R, width]``, block number of each ``block_tokens`` tokens of a request; for
            the open-group ring the first column is the request's only block.
        slots: int64 ``[T]``, ``block * block_tokens + position % block_tokens``; negative where
            nothing may be written. ``None`` for rings.
        block_tokens: tokens per block (rows per block for rings).
    """

    block_table: Tensor
    slots: Tensor | None
    block_tokens: int


@dataclass(frozen=True)
class WriteRows:
    """Cache rows ``[n]`` to write, negative where nothing is, and the tokens ``[n]`` that complete
    them; ``None`` for every token of the step."""

    tokens: Tensor | None
    rows: Tensor


@dataclass(frozen=True)
class Pairs:
    """Which tokens are pooled in pairs, and what is kept for those still open; see ``pool_pairs``.

    ``closing`` and ``partner_rows`` ``[n]``, ``kept`` and ``kept_rows`` ``[m]``.
    """

    closing: Tensor
    partner_rows: Tensor
    kept: Tensor
    kept_rows: Tensor


@dataclass
class Step:
    """Inputs of one forward pass.

    Attributes:
        positions: int64 ``[T]``.
        query_starts: R + 1 offsets of the requests' tokens.
        context_tokens: R context lengths, tokens of this step included.
        ngram_token_ids: int64 ``[T, n]``, each token and the ones before it, newest first, -1
            before the start of the request.
        paging: by cache name.
        is_draft_block: every token sees its whole block and the window before it, not only what
            precedes it.
        rank_rows: tokens each rank computes in this pass; empty without expert parallelism.
    """

    positions: Tensor
    query_starts: list[int]
    context_tokens: list[int]
    ngram_token_ids: Tensor
    paging: Mapping[str, Paging]
    probe: Probe | None = None
    is_draft_block: bool = False
    rank_rows: RankRows = ()
    _memo: dict = field(default_factory=dict, repr=False)

    @property
    def num_tokens(self) -> int:
        return self.query_starts[-1]

    @property
    def tokens_of_first_request(self) -> int:
        return self.query_starts[1]

    @cached_property
    def max_context_tokens(self) -> int:
        """No context is longer."""
        return max(self.context_tokens)

    @cached_property
    def request_of_token(self) -> Tensor:
        """int64 ``[T]``."""
        starts = torch.tensor(self.query_starts, device=self.positions.device)
        requests = torch.arange(len(self.context_tokens), device=self.positions.device)
        return requests.repeat_interleave(starts.diff(), output_size=self.num_tokens)

    def rotation(self, rope: Rope, tokens_per_row: int = 1) -> tuple[Tensor, Tensor]:
        """Cosines and sines ``[T, pairs]`` at each token's position, or its group's first."""
        return self._remember(
            ("rotation", id(rope), tokens_per_row),
            lambda: rope.at(self.positions, tokens_per_row),
        )

    def row_rotation(self, rope: Rope, cache: Cache) -> tuple[Tensor, Tensor]:
        """Cosines and sines ``[n, pairs]`` of the rows ``write_rows`` names."""
        share, tokens = cache.tokens_per_row, self.write_rows(cache).tokens
        if tokens is None:
            return self.rotation(rope, share)
        return self._remember(
            ("row rotation", id(rope), share, self._table_key(cache)),
            lambda: rope.at(self.positions[tokens], share),
        )

    def visible_rows(self, tokens_per_row: int) -> Tensor:
        """int64 ``[T]``: complete rows of ``tokens_per_row`` tokens each token may attend to."""
        return self._remember(
            ("visible", tokens_per_row), lambda: (self.positions + 1) // tokens_per_row
        )

    def first_rows(self, tokens_per_row: int, count: int) -> Tensor:
        """Logical rows ``[T, count]`` from 0 on, -1 where they are not visible."""

        def compute() -> Tensor:
            rows = torch.arange(count, device=self.positions.device).expand(self.num_tokens, -1)
            return rows.masked_fill(rows >= self.visible_rows(tokens_per_row).unsqueeze(1), -1)

        return self._remember(("first rows", tokens_per_row, count), compute)

    def tokens_beyond(self, tokens_per_row: int, count: int) -> Tensor:
        """Tokens that see more than ``count`` rows."""
        return self._remember(
            ("tokens beyond", tokens_per_row, count),
            lambda: (self.visible_rows(tokens_per_row) > count).nonzero().squeeze(1),
        )

    def locate(self, cache: Cache, rows: Tensor) -> Tensor:
        """Cache rows of logical rows ``[T, K]`` of each token's request; negatives stay."""
        page = self.paging[cache.name]
        return _locate(page.block_table, self.request_of_token, rows, cache.rows_per_block)

    def window_rows(self, cache: Cache, window_tokens: int) -> Tensor:
        """Cache rows ``[T, W]`` of each token's window, oldest first; -1 before the start."""
        newest = self.positions
        if self.is_draft_block:
            window_tokens += self.tokens_of_first_request
            newest = self.newest_position
        width = min(window_tokens, self.max_context_tokens)

        def compute() -> Tensor:
            back = torch.arange(1 - width, 1, device=newest.device)
            return self.locate(cache, (newest.unsqueeze(1) + back).clamp_min_(-1))

        return self._remember(("window", self._table_key(cache), width), compute)

    def write_rows(self, cache: Cache) -> WriteRows:
        """Where the rows of ``cache`` that this step completes are stored."""
        page = self.paging[cache.name]
        assert page.slots is not None, f"{cache.name} has no slots"
        slots, share = page.slots, cache.tokens_per_row

        if share == 1:
            return WriteRows(None, slots)

        def compute() -> WriteRows:
            complete = (slots >= 0) & ((self.positions + 1) % share == 0)
            tokens = complete.nonzero().squeeze(1)
            return WriteRows(tokens, slots[tokens] // share)

        return self._remember(("write", self._table_key(cache), share), compute)

    def pairs(self, ring: Cache, cache: Cache) -> Pairs:
        """Pairs whose second token completes a row of ``cache``, and the newest tokens of each
        request, as many as the ring holds."""

        def compute() -> Pairs:
            closing, requests = self.write_rows(cache).tokens, self.request_of_token
            assert closing is not None, f"{cache.name} keeps every token"
            before = (closing - 1).clamp_min(0)
            earlier = (closing == 0) | (requests[before] != requests[closing])
            partners = self.ring_rows(ring, self.positions - 1)[closing].clamp_min_(0)
            rows = self.ring_rows(ring, self.positions)
            newest = self.positions > self.newest_position - ring.rows_per_block
            kept = (newest & (rows >= 0)).nonzero().squeeze(1)
            return Pairs(closing, partners.masked_fill_(~earlier, -1), kept, rows[kept])

        return self._remember(("pairs", self._table_key(ring), self._table_key(cache)), compute)

    def ring_rows(self, cache: Cache, positions: Tensor) -> Tensor:
        """Cache rows ``[T]`` of the given positions in each token's ring; -1 without a ring."""
        page = self.paging[cache.name]
        block = page.block_table[self.request_of_token, 0].long()
        rows = block * cache.rows_per_block + positions % cache.rows_per_block
        return rows.masked_fill_(block <= 0, -1)

    @cached_property
    def newest_position(self) -> Tensor:
        """int64 ``[T]``: last position of each token's request."""
        lengths = torch.tensor(self.context_tokens, device=self.positions.device)
        return (lengths - 1)[self.request_of_token]

    def _table_key(self, cache: Cache) -> int:
        """Caches paged by one block table share everything derived from it."""
        return self.paging[cache.name].block_table.data_ptr()

    def _remember(self, key: tuple, compute):
        if key not in self._memo:
            self._memo[key] = compute()
        return self._memo[key]


def _locate(block_table: Tensor, requests: Tensor, rows: Tensor, rows_per_block: int) -> Tensor:
    column = rows.clamp_min(0) // rows_per_block
    block = block_table[requests.unsqueeze(1), column].long()
    located = block * rows_per_block + rows % rows_per_block
    return located.masked_fill_(rows < 0, -1)

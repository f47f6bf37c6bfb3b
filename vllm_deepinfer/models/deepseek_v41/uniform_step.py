"""A decode step of which the host reads nothing: every request has the same few tokens.

What a step asks of its rows is here answered in shapes that depend on the number of tokens alone,
so that a step can be launched ahead of the device, or recorded once and replayed. Rows that the
general step leaves out are kept, and write nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from vllm_deepinfer.models.deepseek_v41.cache import Cache
from vllm_deepinfer.models.deepseek_v41.step import Pairs, Step, WriteRows

_NULL_ROW = 0
"""The first row of vLLM's null block, whose content nobody reads."""


@dataclass(kw_only=True)
class UniformStep(Step):
    """A step of ``R`` requests with ``tokens_per_request`` tokens each.

    Requests that pad the step have negative slots; their rows are computed from whatever is there
    and stored nowhere.

    Attributes:
        tokens_per_request: at least 1.
        most_context_tokens: no context is longer; in a recorded step, none ever will be.
    """

    tokens_per_request: int
    most_context_tokens: int
    query_starts: list[int] = field(default_factory=list, init=False)
    context_tokens: list[int] = field(default_factory=list, init=False)

    @property
    def num_tokens(self) -> int:
        return len(self.positions)

    @property
    def tokens_of_first_request(self) -> int:
        return self.tokens_per_request

    @property
    def max_context_tokens(self) -> int:
        return self.most_context_tokens

    @cached_property
    def request_of_token(self) -> Tensor:
        return self._tokens // self.tokens_per_request

    @cached_property
    def newest_position(self) -> Tensor:
        last = self.positions.view(-1, self.tokens_per_request)[:, -1:]
        return last.expand(-1, self.tokens_per_request).flatten()

    def tokens_beyond(self, tokens_per_row: int, count: int) -> Tensor:
        """Every token: one that sees fewer rows selects them all."""
        return self._tokens

    def write_rows(self, cache: Cache) -> WriteRows:
        slots, share = self._slots(cache), cache.tokens_per_row
        if share == 1:
            return WriteRows(None, slots)

        def compute() -> WriteRows:
            complete = (slots >= 0) & ((self.positions + 1) % share == 0)
            return WriteRows(None, torch.where(complete, slots // share, -1))

        return self._remember(("write", self._table_key(cache), share), compute)

    def pairs(self, ring: Cache, cache: Cache) -> Pairs:
        """Every token with the one before it, whether or not they make a pair, and every token
        that is not padding for the ring, which holds more than one step has."""
        if self.tokens_per_request > ring.rows_per_block:
            raise ValueError(
                f"{self.tokens_per_request} tokens of a request do not fit in the "
                f"{ring.rows_per_block} rows of {ring.name}."
            )

        def compute() -> Pairs:
            partners = self.ring_rows(ring, self.positions - 1).clamp_min_(0)
            is_earlier = self._tokens % self.tokens_per_request == 0
            rows = self.ring_rows(ring, self.positions)
            kept = (rows >= 0) & (self._slots(cache) >= 0)
            return Pairs(
                self._tokens,
                partners.masked_fill_(~is_earlier, -1),
                self._tokens,
                rows.masked_fill_(~kept, _NULL_ROW),
            )

        return self._remember(("pairs", self._table_key(ring), self._table_key(cache)), compute)

    @cached_property
    def _tokens(self) -> Tensor:
        return torch.arange(self.num_tokens, device=self.positions.device)

    def _slots(self, cache: Cache) -> Tensor:
        slots = self.paging[cache.name].slots
        assert slots is not None, f"{cache.name} has no slots"
        return slots

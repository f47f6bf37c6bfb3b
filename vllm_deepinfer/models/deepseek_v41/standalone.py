"""The model without an engine: one checkpoint, a few requests, caches of its own.

Self-checks and tests run the very modules the engine runs, with paging laid out here.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from vllm_deepinfer.models.deepseek_v41.cache import OPEN_GROUP_ROWS, CacheKind
from vllm_deepinfer.models.deepseek_v41.checkpoint_files import iterate_tensors
from vllm_deepinfer.models.deepseek_v41.config import V41Config
from vllm_deepinfer.models.deepseek_v41.decoder import Decoder
from vllm_deepinfer.models.deepseek_v41.prepare import (
    load_engram_constants,
    set_engram_constants,
)
from vllm_deepinfer.models.deepseek_v41.probe import Probe
from vllm_deepinfer.models.deepseek_v41.step import Paging, Step
from vllm_deepinfer.models.deepseek_v41.weights import load_weights
from vllm_deepinfer.ops.numerics import Numerics

BLOCK_TOKENS = 128


@dataclass
class Chunk:
    """Tokens one request computes in a step."""

    request: int
    token_ids: list[int]


@dataclass
class StandaloneModel:
    """A loaded decoder with room for ``max_requests`` requests of ``max_tokens`` tokens."""

    config: V41Config
    decoder: Decoder
    max_requests: int
    max_tokens: int
    history: list[list[int]] = field(default_factory=list)

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        numerics: Numerics,
        max_requests: int = 1,
        max_tokens: int = 512,
    ) -> StandaloneModel:
        """Load the checkpoint in ``folder`` and allocate caches."""
        config = V41Config.from_dict(json.loads((Path(folder) / "config.json").read_text()))
        decoder = Decoder(config, numerics)
        load_weights(decoder, iterate_tensors(folder), config, "target")
        set_engram_constants(decoder, load_engram_constants(config, folder))
        model = cls(config, decoder, max_requests, max_tokens)
        model.reset()
        return model

    def reset(self) -> None:
        """Forget every request; block 0 stays unused, as in the engine."""
        self.history = [[] for _ in range(self.max_requests)]
        blocks = self._blocks_per_request() * self.max_requests + 1
        for cache in self.decoder.all_caches():
            ring = cache.kind is CacheKind.OPEN_GROUP
            rows = OPEN_GROUP_ROWS if ring else BLOCK_TOKENS // cache.tokens_per_row
            cache.bind(torch.zeros(blocks, rows, cache.record.num_bytes, dtype=torch.uint8))

    @torch.no_grad()
    def compute(
        self,
        chunks: list[Chunk],
        probe: Probe | None = None,
        taps: dict[int, Tensor] | None = None,
    ) -> Tensor:
        """Append the chunks to their requests and return their hidden states ``[T, D]``.

        ``taps`` see ``Decoder``.
        """
        step = self.step(chunks, probe)
        token_ids = torch.tensor([token for chunk in chunks for token in chunk.token_ids])
        return self.decoder(token_ids, step, taps)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.decoder.logits(hidden)

    def _blocks_per_request(self) -> int:
        return -(-self.max_tokens // BLOCK_TOKENS)

    def step(self, chunks: list[Chunk], probe: Probe | None = None) -> Step:
        """Append the chunks to their requests and lay out the step that computes them."""
        positions, ngrams, starts = [], [], [0]
        for chunk in chunks:
            history = self.history[chunk.request]
            first = len(history)
            history += chunk.token_ids
            if len(history) > self.max_tokens:
                raise ValueError(f"request {chunk.request} exceeds max_tokens {self.max_tokens}.")
            for position in range(first, len(history)):
                positions.append(position)
                ngrams.append(self._ngram(history, position))
            starts.append(len(positions))
        return Step(
            positions=torch.tensor(positions),
            query_starts=starts,
            context_tokens=[len(self.history[chunk.request]) for chunk in chunks],
            ngram_token_ids=torch.tensor(ngrams),
            paging=self._paging(chunks, torch.tensor(positions), starts),
            probe=probe,
        )

    def _ngram(self, history: list[int], position: int) -> list[int]:
        count = self.config.engram_max_ngram_size
        return [history[position - s] if position >= s else -1 for s in range(count)]

    def _paging(self, chunks: list[Chunk], positions: Tensor, starts: list[int]):
        per_request = self._blocks_per_request()
        first = torch.tensor([1 + chunk.request * per_request for chunk in chunks])
        table = (first.unsqueeze(1) + torch.arange(per_request)).to(torch.int32)
        request = torch.repeat_interleave(torch.tensor(starts).diff())
        block = table[request, positions // BLOCK_TOKENS].long()
        rows = Paging(table, block * BLOCK_TOKENS + positions % BLOCK_TOKENS, BLOCK_TOKENS)
        ring = Paging(table[:, :1], None, OPEN_GROUP_ROWS)
        return {
            cache.name: ring if cache.kind is CacheKind.OPEN_GROUP else rows
            for cache in self.decoder.all_caches()
        }

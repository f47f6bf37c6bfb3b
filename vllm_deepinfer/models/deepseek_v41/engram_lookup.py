"""Finding the table rows of a step's tokens for all engram layers, on whichever rank they lie.

Rows depend on token ids alone, so one exchange before the first layer serves every engram layer:
n-grams go to all ranks, each reads the rows it holds, and their bytes come home.

Every rank sends a row's place to every rank, also where it holds nothing: the shapes, which a
recorded step fixes, then depend on the number of tokens alone, and no rank waits to learn how many
rows another needs. A token of the published model receives 12.4 KiB from each rank in a step; the
outputs of its experts are 60 KiB from each rank in every layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vllm_deepinfer.models.deepseek_v41.engram import Engram, TableRows
from vllm_deepinfer.models.deepseek_v41.expert_exchange import ExpertExchange, RankRows
from vllm_deepinfer.models.deepseek_v41.probe import Quantity
from vllm_deepinfer.models.deepseek_v41.step import Step


class EngramLookup:
    """Looks up all of a decoder's engram layers at once, over the ranks of ``exchange``."""

    def __init__(self, engrams: Sequence[Engram], exchange: ExpertExchange) -> None:
        self.engrams, self.exchange = engrams, exchange

    @property
    def is_spread(self) -> bool:
        """Whether ranks exchange rows; the same on all of them."""
        return self.exchange.num_ranks > 1 and bool(self.engrams)

    def find(self, step: Step) -> dict[int, TableRows]:
        """The rows of the step's tokens, by layer."""
        if step.probe is not None:
            for engram in self.engrams:
                numbers = engram.row_numbers(step.ngram_token_ids)
                step.probe.note(Quantity.ENGRAM_ROWS, engram.layer, numbers)
        if self.is_spread:
            return self._unpack(self._exchange(step.ngram_token_ids, step.rank_rows))
        return {
            engram.layer: TableRows(
                engram.embed.weight,
                engram.embed.scale,
                engram.row_numbers(step.ngram_token_ids),
            )
            for engram in self.engrams
        }

    def join(self, rank_rows: RankRows) -> None:
        """Read the rows held here for other ranks' tokens; this rank has none."""
        if self.is_spread:
            first = self.engrams[0]
            size, device = first.config.engram_max_ngram_size, first.q_weight.device
            self._exchange(torch.empty(0, size, dtype=torch.int64, device=device), rank_rows)

    def _exchange(self, ngrams: Tensor, rank_rows: RankRows) -> Tensor:
        """Bytes ``[T, n]`` of this rank's tokens: codes and scales of one layer after another.

        Every byte is the sum of its value on the rank that holds the row and of zeros.
        """
        (ngrams,) = self.exchange.gather([ngrams], rank_rows)
        parts: list[Tensor] = []
        for engram in self.engrams:
            parts += engram.embed.take_held(engram.row_numbers(ngrams))
        return self.exchange.bring_back(torch.cat(parts, 1), rank_rows)

    def _unpack(self, rows: Tensor) -> dict[int, TableRows]:
        """What ``_exchange`` returned, as tables of exactly the rows asked for, in order."""
        found, start = {}, 0
        for engram in self.engrams:
            columns = engram.config.engram_columns
            numbers = torch.arange(len(rows) * columns, device=rows.device).view(-1, columns)
            tables = []
            for part in (engram.embed.weight, engram.embed.scale):
                end = start + columns * part.shape[1]
                table = rows[:, start:end].reshape(-1, part.shape[1])
                tables.append(table.view(part.dtype))
                start = end
            found[engram.layer] = TableRows(*tables, numbers)
        return found

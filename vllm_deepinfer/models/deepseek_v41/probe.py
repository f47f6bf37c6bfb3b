"""Looking into a forward pass, and steering it: for self-checks and tests only.

The model notes what it decided (experts, selected rows, engram rows) and its layer inputs; a test
may force decisions so that two implementations can be compared past a near-tie.
"""

from __future__ import annotations

from collections import defaultdict
from enum import Enum

import torch
from torch import Tensor

from vllm_deepinfer.ops.reference import select_highest


class Quantity(Enum):
    """What is noted, per layer; T counts the tokens of all steps since the probe was attached."""

    STREAMS = "streams"  # [T, S, D] entering the mixes, engram added; layer = count is the end
    PRE_MIX = "pre_mix"  # [T, S] carried into the layer
    EXPERTS = "experts"  # int64 [T, k] ascending
    INDEX_ROWS = "index_rows"  # int64 [T, <= index_topk] ascending, -1 padded, logical rows
    ENGRAM_ROWS = "engram_rows"  # int64 [T, columns]


class Probe:
    """Collects notes of one request's forward passes.

    Args:
        force: values used instead of the model's own, by (quantity, layer).
        torch_ties: where rows at the edge of a selection have exactly equal scores, choose as
            ``torch.topk`` does on a CPU, like the published reference, instead of the lowest.
    """

    def __init__(
        self,
        force: dict[tuple[Quantity, int], Tensor] | None = None,
        torch_ties: bool = False,
    ) -> None:
        self._notes: dict[tuple[Quantity, int], list[Tensor]] = defaultdict(list)
        self._force = force or {}
        self._torch_ties = torch_ties
        self.num_ties = 0

    def note(self, quantity: Quantity, layer: int, value: Tensor) -> None:
        self._notes[quantity, layer].append(value.detach().clone())

    def forced(self, quantity: Quantity, layer: int) -> Tensor | None:
        return self._force.get((quantity, layer))

    def choose_rows(self, scores: Tensor, count: int) -> Tensor:
        """``select_highest`` that counts exact ties at the edge and may break them otherwise."""
        chosen = select_highest(scores, count)
        if scores.shape[1] <= count:
            return chosen
        best = scores.topk(count + 1, dim=-1)
        last, next_best = best.values[:, count - 1], best.values[:, count]
        tied = (last == next_best) & (last > float("-inf"))
        self.num_ties += int(tied.sum())
        if self._torch_ties:
            rows = scores[tied].topk(count, dim=-1).indices
            chosen[tied] = torch.zeros_like(chosen[tied]).scatter_(1, rows, True)
        return chosen

    def layers(self, quantity: Quantity) -> list[int]:
        return sorted(layer for noted, layer in self._notes if noted is quantity)

    def value(self, quantity: Quantity, layer: int) -> Tensor:
        """All notes of a layer along the tokens; index rows padded to one width."""
        notes = self._notes[quantity, layer]
        width = max(note.shape[-1] for note in notes)
        padded = [torch.nn.functional.pad(n, (0, width - n.shape[-1]), value=-1) for n in notes]
        return torch.cat(padded)

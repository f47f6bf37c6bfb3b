"""Looking into a forward pass, and steering it: for self-checks and tests only.

The model notes what it decided (experts, selected rows, engram rows) and its layer inputs; a test
may force decisions so that two implementations can be compared past a near-tie.
"""

from __future__ import annotations

from collections import defaultdict
from enum import Enum

import torch
from torch import Tensor


class Quantity(Enum):
    """What is noted, per layer; T counts the tokens of all steps since the probe was attached."""

    STREAMS = "streams"  # [T, S, D] at layer entry, before engram; layer L = count is the end
    PRE_MIX = "pre_mix"  # [T, S] carried into the layer
    EXPERTS = "experts"  # int64 [T, k] ascending
    INDEX_ROWS = "index_rows"  # int64 [T, <= index_topk] ascending, -1 padded, logical rows
    ENGRAM_ROWS = "engram_rows"  # int64 [T, columns]


class Probe:
    """Collects notes; ``force`` maps (quantity, layer) to values used instead of the model's."""

    def __init__(self, force: dict[tuple[Quantity, int], Tensor] | None = None) -> None:
        self._notes: dict[tuple[Quantity, int], list[Tensor]] = defaultdict(list)
        self._force = force or {}

    def note(self, quantity: Quantity, layer: int, value: Tensor) -> None:
        self._notes[quantity, layer].append(value.detach().clone())

    def forced(self, quantity: Quantity, layer: int) -> Tensor | None:
        return self._force.get((quantity, layer))

    def layers(self, quantity: Quantity) -> list[int]:
        return sorted(layer for noted, layer in self._notes if noted is quantity)

    def value(self, quantity: Quantity, layer: int) -> Tensor:
        """All notes of a layer along the tokens; index rows padded to one width."""
        notes = self._notes[quantity, layer]
        width = max(note.shape[-1] for note in notes)
        padded = [torch.nn.functional.pad(n, (0, width - n.shape[-1]), value=-1) for n in notes]
        return torch.cat(padded)

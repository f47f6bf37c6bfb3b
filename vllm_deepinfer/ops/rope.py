"""Rotary position embedding: plain, and YaRN-scaled for compressed layers.

Source: V4.1 specification, section 2.5.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vllm_deepinfer.ops.rotation import rope_angles


def rope_frequencies(dim: int, theta: float) -> Tensor:
    """``theta ** (-2i / dim)``, float32 ``[dim / 2]``."""
    return 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))


def yarn_frequencies(
    dim: int,
    theta: float,
    factor: float,
    beta_fast: float,
    beta_slow: float,
    original_max_positions: int,
) -> Tensor:
    """Frequencies interpolated by ``factor`` where a turn outlasts the original context."""

    def pair_with_turns(turns: float) -> float:
        return (
            dim * math.log(original_max_positions / (2 * math.pi * turns)) / (2 * math.log(theta))
        )

    low = max(math.floor(pair_with_turns(beta_fast)), 0)
    high = min(math.ceil(pair_with_turns(beta_slow)), dim - 1)
    pairs = torch.arange(dim // 2, dtype=torch.float32)
    ramp = ((pairs - low) / max(high - low, 1e-3)).clamp(0, 1)
    plain = rope_frequencies(dim, theta)
    return plain / factor * ramp + plain * (1 - ramp)


class Rope:
    """Angles of one frequency table."""

    def __init__(self, frequencies: Tensor) -> None:
        self.frequencies = frequencies

    def at(self, positions: Tensor, tokens_per_row: int = 1) -> tuple[Tensor, Tensor]:
        """Cosines and sines, float32 ``[T, pairs]``, at int64 positions ``[T]``; see
        ``rope_angles``."""
        # Moved once: a copy from the host in every step would be a wait, and none in a graph.
        self.frequencies = self.frequencies.to(positions.device)
        return rope_angles(positions, self.frequencies, tokens_per_row)

"""The two switches of the oracle — quantisers and bf16 stores — and the operations that use both.

Accumulation is float64 throughout; the switches only decide where a value is rounded on the way.
source: V4.1 specification, sections 2.3, 2.4, 2.5.
"""

from __future__ import annotations

import math

import numpy as np

from . import formats
from .config import ROPE_DIMS, Config


class Numerics:
    """``quantised``: apply activation and cache quantisers; ``rounding``: None or "bf16"."""

    def __init__(self, quantised: bool, rounding: str | None):
        if rounding not in (None, "bf16"):
            raise ValueError(f'rounding={rounding!r}; allowed are None and "bf16"')
        self.quantised = quantised
        self.rounding = rounding

    def store(self, values: np.ndarray) -> np.ndarray:
        """A bf16 store (identity without rounding)."""
        return formats.round_bf16(values) if self.rounding else values

    def activation_fp8(self, x: np.ndarray) -> np.ndarray:
        """[..., n] per-token groups of 32: operand of every FP8 and FP4 weight."""
        return formats.quantise_fp8_ue8m0(x).dequantised() if self.quantised else x

    def window_kv(self, kv: np.ndarray) -> np.ndarray:
        """[..., 512] as the window cache returns it: FP8, groups of 32."""
        return formats.quantise_fp8_ue8m0(kv).dequantised() if self.quantised else kv

    def compressed_kv(self, kv: np.ndarray) -> np.ndarray:
        """[..., 512] as the compressed cache returns it: FP4, groups of 16, e4m3 scales."""
        return formats.quantise_fp4_e4m3(kv).dequantised() if self.quantised else kv

    def index_fp4(self, x: np.ndarray) -> np.ndarray:
        """[..., 128] index keys and queries: FP4, groups of 32, ue8m0 scales."""
        return formats.quantise_fp4_ue8m0(x).dequantised() if self.quantised else x

    def linear_quantised(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """y = bf16(q8(x) W^T) for weights stored in FP8 or FP4; x [..., in], weight [out, in]."""
        return self.store(self.activation_fp8(x) @ weight.T)

    def linear_bf16(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """y = bf16(x W^T) for weights stored in BF16."""
        return self.store(x @ weight.T)

    def rms_norm(self, x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
        """bf16(w * x * rsqrt(mean(x^2) + eps)) over the last dimension."""
        return self.store(weight * x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps))

    def rope(self, x: np.ndarray, angles: np.ndarray, inverse: bool = False) -> np.ndarray:
        """Rotate interleaved pairs of the last 64 dimensions; x [T, ..., n], angles [T, 32]."""
        shape = (angles.shape[0],) + (1,) * (x.ndim - 2) + (angles.shape[1],)
        cos = np.cos(angles).reshape(shape)
        sin = np.sin(angles).reshape(shape) * (-1.0 if inverse else 1.0)
        even, odd = x[..., -ROPE_DIMS::2], x[..., -ROPE_DIMS + 1 :: 2]
        rotated = np.empty_like(x[..., -ROPE_DIMS:])
        rotated[..., 0::2] = even * cos - odd * sin
        rotated[..., 1::2] = even * sin + odd * cos
        return np.concatenate([x[..., :-ROPE_DIMS], self.store(rotated)], axis=-1)


def rope_frequencies(config: Config, ratio: int) -> np.ndarray:
    """float32 [32]: plain for ratio 0 and draft layers, YaRN-scaled for ratio > 0.  source: 2.5.

    float32 is part of the model here: the angle of a late position depends on it.
    """
    pair = np.arange(0, ROPE_DIMS, 2, dtype=np.float32) / np.float32(ROPE_DIMS)
    theta = config.compress_rope_theta if ratio else config.rope_theta
    frequencies = np.float32(1.0) / np.power(np.float32(theta), pair)
    if ratio == 0:
        return frequencies
    scaling = config.rope_scaling
    original = scaling["original_max_position_embeddings"]

    def correction_dim(rotations: float) -> float:
        return ROPE_DIMS * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(correction_dim(scaling["beta_fast"])), 0)
    high = min(math.ceil(correction_dim(scaling["beta_slow"])), ROPE_DIMS - 1)
    steps = np.arange(ROPE_DIMS // 2, dtype=np.float32)
    ramp = np.clip((steps - np.float32(low)) / np.float32(high - low), 0, 1)
    factor = np.float32(scaling["factor"])
    return frequencies / factor * ramp + frequencies * (1 - ramp)


def rope_angles(config: Config, ratio: int, positions: np.ndarray) -> np.ndarray:
    """[T, 32] float64 holding float32 products position * frequency."""
    frequencies = rope_frequencies(config, ratio)
    return np.outer(positions.astype(np.float32), frequencies).astype(np.float64)

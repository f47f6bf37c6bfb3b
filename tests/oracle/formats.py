"""Number formats of the checkpoint and of the caches, in exact float64 arithmetic.

Every value of bfloat16, e4m3, e2m1 and ue8m0 and every scale is representable in float64, hence
"fake-quantise" means: return the float64 number the stored bytes stand for.

Rounding is to nearest, ties to even, everywhere.
source: V4.1 specification, sections 2.4, 2.6, 2.7, 2.8 and 5.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

E4M3_MAX = 448.0
E2M1_MAX = 6.0
E2M1_MAGNITUDES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def round_to_format(
    values: np.ndarray, significant_bits: int, min_normal_exponent: int
) -> np.ndarray:
    """Round to a binary format without an upper limit (the caller clamps).

    ``significant_bits`` counts the hidden bit; ``min_normal_exponent`` is e of the smallest normal
    number 2**e, below which the spacing no longer shrinks (subnormals).
    """
    _, exponent = np.frexp(values)  # |value| = m * 2**exponent with m in [0.5, 1)
    exponent = np.maximum(exponent, min_normal_exponent + 1)
    spacing = np.ldexp(1.0, exponent - significant_bits)
    return np.rint(values / spacing) * spacing


def round_bf16(values: np.ndarray) -> np.ndarray:
    """bfloat16: 8 significant bits, smallest normal 2**-126."""
    return round_to_format(values, significant_bits=8, min_normal_exponent=-126)


def round_e4m3(values: np.ndarray) -> np.ndarray:
    """e4m3 (finite-only): 4 significant bits, smallest normal 2**-6, saturating at 448."""
    clamped = np.clip(values, -E4M3_MAX, E4M3_MAX)
    return round_to_format(clamped, significant_bits=4, min_normal_exponent=-6)


def round_e2m1(values: np.ndarray) -> np.ndarray:
    """e2m1: magnitudes 0, .5, 1, 1.5, 2, 3, 4, 6; saturating at 6."""
    clamped = np.clip(values, -E2M1_MAX, E2M1_MAX)
    return round_to_format(clamped, significant_bits=2, min_normal_exponent=0)


def ceil_power_of_two(values: np.ndarray) -> np.ndarray:
    """2**ceil(log2(value)) for positive values, without a logarithm's rounding error."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(1.0, np.where(mantissa == 0.5, exponent - 1, exponent))


# ---- bytes <-> values ----


def _e4m3_table() -> np.ndarray:
    table = np.empty(256)
    for byte in range(256):
        sign = -1.0 if byte & 0x80 else 1.0
        exponent, fraction = (byte >> 3) & 0xF, byte & 0x7
        if exponent == 15 and fraction == 7:
            table[byte] = np.nan
        elif exponent == 0:
            table[byte] = sign * fraction * 2.0**-9
        else:
            table[byte] = sign * (8 + fraction) * 2.0 ** (exponent - 10)
    return table


E4M3_TABLE = _e4m3_table()


def decode_e4m3(codes: np.ndarray) -> np.ndarray:
    """uint8 codes -> float64 values, same shape."""
    return E4M3_TABLE[codes]


def encode_e4m3(values: np.ndarray) -> np.ndarray:
    """Representable e4m3 values -> uint8 codes, same shape."""
    magnitudes = np.abs(values)
    code = np.searchsorted(E4M3_TABLE[:127], magnitudes)
    if not np.array_equal(E4M3_TABLE[code], magnitudes):
        raise ValueError("encode_e4m3 needs values already rounded to e4m3")
    return (code | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


def decode_ue8m0(codes: np.ndarray) -> np.ndarray:
    """uint8 exponents (bias 127) -> powers of two."""
    if np.any(codes == 255):
        raise ValueError("a ue8m0 scale byte is 255 (NaN)")
    return np.ldexp(1.0, codes.astype(np.int64) - 127)


def encode_ue8m0(scales: np.ndarray) -> np.ndarray:
    """Powers of two -> uint8 exponents (bias 127)."""
    _, exponent = np.frexp(scales)
    return (exponent - 1 + 127).astype(np.uint8)


def decode_e2m1_packed(packed: np.ndarray) -> np.ndarray:
    """[..., n] bytes -> [..., 2n] values; the even element sits in the low nibble."""
    packed = packed.view(np.uint8)
    nibbles = np.stack([packed & 0xF, packed >> 4], axis=-1)
    nibbles = nibbles.reshape(*packed.shape[:-1], 2 * packed.shape[-1])
    return np.where(nibbles & 8, -1.0, 1.0) * E2M1_MAGNITUDES[nibbles & 7]


def encode_e2m1_packed(values: np.ndarray) -> np.ndarray:
    """[..., 2n] representable e2m1 values -> [..., n] bytes, even element in the low nibble."""
    magnitudes = np.abs(values)
    code = np.searchsorted(E2M1_MAGNITUDES, magnitudes)
    if not np.array_equal(E2M1_MAGNITUDES[code], magnitudes):
        raise ValueError("encode_e2m1_packed needs values already rounded to e2m1")
    code = (code | np.where(np.signbit(values), 8, 0)).astype(np.uint8)
    return code[..., 0::2] | (code[..., 1::2] << 4)


# ---- quantisers ----


class Quantised(NamedTuple):
    """``values`` [..., groups, group] on the format's grid, ``scales`` [..., groups, 1]."""

    values: np.ndarray
    scales: np.ndarray

    def dequantised(self) -> np.ndarray:
        """[..., groups * group] float64."""
        product = self.values * self.scales
        return product.reshape(*product.shape[:-2], -1)


def _grouped(values: np.ndarray, group: int) -> tuple[np.ndarray, np.ndarray]:
    if values.shape[-1] % group:
        raise ValueError(f"last dimension {values.shape[-1]} is not a multiple of {group}")
    grouped = values.reshape(*values.shape[:-1], -1, group)
    return grouped, np.abs(grouped).max(axis=-1, keepdims=True)


def quantise_fp8_ue8m0(values: np.ndarray, group: int = 32) -> Quantised:
    """Activations and window KV: s = 2^ceil(log2(max(amax, 1e-4) / 448)).  source: 2.4, 2.6."""
    grouped, amax = _grouped(values, group)
    scales = ceil_power_of_two(np.maximum(amax, 1e-4) / E4M3_MAX)
    return Quantised(round_e4m3(grouped / scales), scales)


def quantise_fp8_fp32(values: np.ndarray, group: int = 128) -> Quantised:
    """FP8 index keys with one fp32 scale per row: s = fp32(max(amax, 1e-4) / 448).  source: 5.

    The published cast multiplies by fp32(448 / amax) instead of dividing by s; dividing puts a few
    codes on the other side of a midpoint.
    """
    grouped, amax = _grouped(values, group)
    amax = np.maximum(amax, 1e-4)
    scales = (amax / E4M3_MAX).astype(np.float32).astype(np.float64)
    inverse = (E4M3_MAX / amax).astype(np.float32).astype(np.float64)
    scaled = (grouped * inverse).astype(np.float32).astype(np.float64)
    return Quantised(round_e4m3(scaled), scales)


def quantise_fp4_e4m3(values: np.ndarray, group: int = 16) -> Quantised:
    """Compressed KV: s = e4m3(clamp(amax / 6, 2^-9, 448)).  source: 2.7."""
    grouped, amax = _grouped(values, group)
    scales = round_e4m3(np.clip(amax / E2M1_MAX, 2.0**-9, E4M3_MAX))
    return Quantised(round_e2m1(grouped / scales), scales)


def quantise_fp4_ue8m0(values: np.ndarray, group: int = 32) -> Quantised:
    """Index keys and queries: s = 2^ceil(log2(max(amax, 6 * 2^-126) / 6)).  source: 2.8."""
    grouped, amax = _grouped(values, group)
    scales = ceil_power_of_two(np.maximum(amax, E2M1_MAX * 2.0**-126) / E2M1_MAX)
    return Quantised(round_e2m1(grouped / scales), scales)

"""Random bits as a function of a seed and positions: no state, so runs can be compared in pairs.

The luck of a request at its n-th token is the same whatever policy schedules it.
"""

from __future__ import annotations

import numpy as np

_STEP = 0x9E3779B97F4A7C15
_FIRST, _SECOND, _THIRD = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD1342543DE82EF95
_MASK = (1 << 64) - 1
NORMAL_BITS = 12


def random_bits(seed: int, stream: int, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """64 random bits for each pair of positions.

    Args:
        seed, stream: which sequence of bits; streams of one seed are independent.
        first, second: integer arrays of one shape, such as request and token index.

    Returns:
        uint64 array of that shape.
    """
    mixed = first.astype(np.uint64)
    mixed *= np.uint64(_STEP)
    mixed += np.uint64(_scramble(_scramble(seed & _MASK) + stream))
    _finish(mixed)
    mixed += second.astype(np.uint64) * np.uint64(_THIRD)
    return _finish(mixed)


def _finish(mixed: np.ndarray) -> np.ndarray:
    """Spread every input bit over all output bits (the finaliser of SplitMix64), in place."""
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(_FIRST)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(_SECOND)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _scramble(value: int) -> int:
    value = (value + _STEP) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def uniforms(bits: np.ndarray) -> np.ndarray:
    """Float32 in [0, 1) from the top 24 bits."""
    return (bits >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)


def fine_uniforms(bits: np.ndarray) -> np.ndarray:
    """Float64 in [0, 1) from the top 53 bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normals(bits: np.ndarray, shift: int) -> np.ndarray:
    """Standard normal float32 from the 12 bits above `shift`, at the middle of each quantile."""
    return _NORMALS[(bits >> np.uint64(shift)) & np.uint64((1 << NORMAL_BITS) - 1)]


def _normal_quantiles() -> np.ndarray:
    from statistics import NormalDist

    count = 1 << NORMAL_BITS
    quantile = NormalDist().inv_cdf
    return np.array([quantile((i + 0.5) / count) for i in range(count)], dtype=np.float32)


_NORMALS = _normal_quantiles()

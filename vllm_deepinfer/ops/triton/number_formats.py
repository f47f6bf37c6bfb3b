"""Number formats inside kernels: the same codes and scales as ``ops/formats.py``, from integer
arithmetic on float bits, which no compiler flag can round differently.

Scales travel as UE8M0 bytes in int32: ``exponent + 127``, 255 where a group is not finite.
"""

from __future__ import annotations

import triton
import triton.language as tl

# What `constexpr` globals mean: bits of float32 constants of ops/formats.py.
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_FP8_FLOOR = tl.constexpr(0x38D1B717)  # 1e-4
_FP4_FLOOR = tl.constexpr(0x01C00000)  # 6 * 2**-126
_MANTISSA = tl.constexpr(0x7FFFFF)
_MANTISSA_448 = tl.constexpr(0x600000)  # 448 = 1.75 * 2**8
_MANTISSA_6 = tl.constexpr(0x400000)  # 6 = 1.5 * 2**2


@triton.jit
def group_magnitude(values):
    """Bits of the largest magnitude along the last axis; those of infinity and NaN are larger."""
    return tl.max(values.to(tl.int32, bitcast=True) & _MAGNITUDE, axis=-1)


@triton.jit
def fp8_scale_byte(magnitude):
    """UE8M0 byte of ``2**ceil(log2(amax / 448))``: the exponent rounds up past 1.75."""
    bits = tl.maximum(magnitude, _FP8_FLOOR)
    byte = ((bits + (_MANTISSA - _MANTISSA_448)) >> 23) - 8
    return tl.where(bits >= 0x7F800000, 255, byte)


@triton.jit
def fp4_scale_byte(magnitude):
    """UE8M0 byte of ``2**ceil(log2(amax / 6))``: the exponent rounds up past 1.5."""
    bits = tl.maximum(magnitude, _FP4_FLOOR)
    byte = ((bits + (_MANTISSA - _MANTISSA_6)) >> 23) - 2
    return tl.where(bits >= 0x7F800000, 255, byte)


@triton.jit
def scale_value(byte):
    """Float32 value of UE8M0 bytes: 2**-127 is subnormal, 255 is NaN."""
    byte = byte.to(tl.int32)
    bits = tl.where(byte == 0, 0x00400000, byte << 23)
    return tl.where(byte == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def inverse_scale(byte):
    """``1 / scale``, exactly; NaN for 255. Bytes of computed scales leave it a normal number."""
    bits = tl.where(byte == 255, 0x7FC00000, (254 - byte) << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def quantise_fp8_groups(values):
    """e4m3 codes and UE8M0 bytes, int32, of float32 values grouped along the last axis."""
    byte = fp8_scale_byte(group_magnitude(values))
    # No clamp: the scale leaves at most 448. Multiplying by a power of two is exact.
    return (values * tl.expand_dims(inverse_scale(byte), -1)).to(tl.float8e4nv), byte


@triton.jit
def e2m1_values(code):
    """Float32 values of e2m1 codes 0..15, any integer type.

    Shifted into place, exponent and mantissa are those of a float16 smaller by 2**14.
    """
    code = code.to(tl.int16)
    bits = ((code & 8) << 12) | ((code & 7) << 9)
    return bits.to(tl.float16, bitcast=True).to(tl.float32) * 16384.0


@triton.jit
def to_e2m1(values):
    """e2m1 codes 0..15, int32, of float32: midpoints go to the even code, beyond 6 saturates."""
    bits = values.to(tl.int32, bitcast=True)
    size = tl.abs(values)
    code = (size > 0.25).to(tl.int32) + (size >= 0.75).to(tl.int32) + (size > 1.25).to(tl.int32)
    code += (size >= 1.75).to(tl.int32) + (size > 2.5).to(tl.int32)
    code += (size >= 3.5).to(tl.int32) + (size > 5.0).to(tl.int32)
    return code | ((bits >> 28) & 8)


@triton.jit
def fp4_fine_scale(magnitude):
    """e4m3 scale ``clamp(amax / 6, 2**-9, 448)``; NaN where a group holds NaN."""
    amax = magnitude.to(tl.float32, bitcast=True)
    scale = tl.minimum(tl.maximum(tl.div_rn(amax, 6.0), 0.001953125), 448.0)
    return tl.where(amax == amax, scale, amax).to(tl.float8e4nv)

"""Number formats and quantisers: FP8 (e4m3), FP4 (e2m1) and their scales, written once.

Rules, for every quantiser here and every kernel:

- Rounding is to the nearest value, ties to the even code. Magnitudes beyond the largest value
  saturate, infinity too. Codes keep the sign of zero.
- Scales are powers of two (UE8M0: one byte, exponent + 127; 255 is NaN) or, for FP4 groups of 16,
  e4m3. A scale is never zero: the largest magnitude of a group counts as at least some floor, so
  that a group of zeros has a finite scale and codes of zero.
- A group that is not finite gets the scale NaN and reads back as NaN, whole. FP4 groups of 16 do
  so for NaN alone: their scale saturates at 448, and infinity reads back as 2688.
- Packed FP4 keeps the even element in the low nibble.
- A float32 scale is never taken for an exponent: ``encode_ue8m0`` refuses one that is no power of
  two, and ``float_scales.with_power_of_two_scales`` converts, within a stated bound.

Source: V4.1 specification, sections 2.4, 2.7, 2.8 and 5.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

E4M3_MAX = 448.0
E2M1_MAX = 6.0
FP8_GROUP = 32
FP8_BLOCK = 32
FP4_GROUP = 32
FP4_FINE_GROUP = 16
FP8_AMAX_FLOOR = 1e-4
FP4_AMAX_FLOOR = 6.0 * 2.0**-126
FP4_FINE_SCALE_MIN = 2.0**-9

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _e2m1_boundaries() -> Tensor:
    """Smallest magnitude that rounds to each code 1..7: midpoints go to the even code."""
    values = torch.tensor(E2M1_VALUES, dtype=torch.float32, device="cpu")
    midpoints = (values[1:] + values[:-1]) / 2
    upper_is_even = torch.arange(1, 8, device="cpu") % 2 == 0
    above = torch.nextafter(midpoints, torch.full_like(midpoints, torch.inf))
    return torch.where(upper_is_even, midpoints, above)


_BOUNDARIES = _e2m1_boundaries()
_SIGNED_VALUES = torch.tensor(
    E2M1_VALUES + tuple(-value for value in E2M1_VALUES), dtype=torch.float32, device="cpu"
)
_BYTES = torch.arange(256, dtype=torch.uint8, device="cpu")
_PAIRS = torch.stack(
    [_SIGNED_VALUES[(_BYTES & 15).long()], _SIGNED_VALUES[(_BYTES >> 4).long()]], dim=1
)
# Both float32 values of a byte as one 8-byte element, so that a look-up moves them together.
_PACKED_PAIRS = _PAIRS.view(torch.float64).flatten()


@cache
def _boundaries_on(device: torch.device) -> Tensor:
    """Copied once: a copy from the host waits for the device, and no graph captures it."""
    return _BOUNDARIES.to(device)


@cache
def _packed_pairs_on(device: torch.device) -> Tensor:
    return _PACKED_PAIRS.to(device)


@cache
def _ue8m0_values_on(device: torch.device) -> Tensor:
    """Float32 ``[256]`` by byte."""
    return _BYTES.view(torch.float8_e8m0fnu).to(torch.float32).to(device)


# -- scales ---------------------------------------------------------------------------------------


def power_of_two_at_least(x: Tensor) -> Tensor:
    """Return ``2**ceil(log2(x))`` for normal positive float32 ``x``, exactly; NaN if not finite.

    Adding the largest mantissa carries into the exponent unless the mantissa was zero.
    """
    bits = x.view(torch.int32)
    power = ((bits + 0x007FFFFF) & 0x7F800000).view(torch.float32)
    return power + (x - x)  # adds zero, or NaN where x is infinite or NaN


def exponent_byte(scale: Tensor) -> Tensor:
    """UE8M0 bytes, uint8, of scales from ``power_of_two_at_least``; NaN keeps its code, 255."""
    return (scale.view(torch.int32) >> 23).to(torch.uint8)


def encode_ue8m0(scale: Tensor) -> Tensor:
    """Encode float32 powers of two from anywhere as UE8M0 bytes (``exponent + 127``), uint8.

    Raises:
        ValueError: if a scale is not a power of two within 2**-127 .. 2**127; such a scale would
            be misread by every consumer of the format.
    """
    mantissa, exponent = torch.frexp(scale)
    code = exponent - 1 + 127
    valid = (mantissa == 0.5) & (code >= 0) & (code <= 254)
    if not bool(valid.all()):
        value = scale[~valid].flatten()[0].item()
        raise ValueError(
            f"scale {value} is not a power of two in 2**-127..2**127 and has no UE8M0 encoding; "
            "convert codes and scales together: ops.float_scales.with_power_of_two_scales()."
        )
    return code.to(torch.uint8)


def decode_ue8m0(code: Tensor) -> Tensor:
    """Decode UE8M0 bytes (uint8 or float8_e8m0fnu) to float32."""
    if code.device.type == "npu":
        # torch_npu hands this dtype out as bytes; a look-up needs no cast of it.
        numbers = code.view(torch.uint8).to(torch.int32).flatten()
        return torch.index_select(_ue8m0_values_on(code.device), 0, numbers).view(code.shape)
    if code.dtype == torch.uint8:
        code = code.view(torch.float8_e8m0fnu)
    return code.to(torch.float32)


def pack_scales(scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Pack scale bytes ``[..., n]``, uint8, into integers ``[..., ceil(n / bytes)]``.

    The first scale is the lowest byte, as in memory; what is left over of the last integer is
    zero. Matrix products on SM100 take four as int32, those of Ascend two as int16 (by groups:
    ``pack_scales(...).mT``). Caches hold the same bytes unpacked.
    """
    spare = -scales.shape[-1] % _scales_in(dtype)
    padded = torch.nn.functional.pad(scales, (0, spare)).contiguous()
    return padded.flatten().view(dtype).view(*scales.shape[:-1], padded.shape[-1] // dtype.itemsize)


def unpack_scales(packed: Tensor, num_scales: int) -> Tensor:
    """The first ``num_scales`` scale bytes of every row of ``pack_scales``, uint8."""
    held = packed.shape[-1] * _scales_in(packed.dtype)
    if not held - packed.element_size() < num_scales <= held:
        raise ValueError(
            f"num_scales is {num_scales}; {packed.shape[-1]} integers of {packed.dtype} hold "
            f"{max(held - packed.element_size() + 1, 0)} to {held}."
        )
    return packed.contiguous().view(torch.uint8)[..., :num_scales]


def _scales_in(dtype: torch.dtype) -> int:
    if dtype not in (torch.int16, torch.int32):
        raise ValueError(
            f"scales are packed as {dtype}; allowed: torch.int32 (SM100), torch.int16 (Ascend)."
        )
    return dtype.itemsize


def fp8_scale(amax: Tensor) -> Tensor:
    """Power-of-two scale that brings a group of maximum magnitude ``amax`` into e4m3 range."""
    return power_of_two_at_least(amax.clamp_min(FP8_AMAX_FLOOR) / E4M3_MAX)


def fp4_scale(amax: Tensor) -> Tensor:
    """Power-of-two scale of an FP4 group of 32."""
    return power_of_two_at_least(amax.clamp_min(FP4_AMAX_FLOOR) / E2M1_MAX)


def fp4_fine_scale(amax: Tensor) -> Tensor:
    """e4m3-representable float32 scale of an FP4 group of 16 (compressed KV rows)."""
    scale = (amax / E2M1_MAX).clamp(FP4_FINE_SCALE_MIN, E4M3_MAX)
    return scale.to(torch.float8_e4m3fn).to(torch.float32)


# -- element codes --------------------------------------------------------------------------------


def to_e4m3(x: Tensor) -> Tensor:
    """Round float32 to e4m3 with saturation at +-448."""
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def to_e2m1(x: Tensor) -> Tensor:
    """Round float32 to e2m1 codes 0..15 (bit 3 is the sign), uint8, with saturation at +-6."""
    code = torch.bucketize(x.abs(), _boundaries_on(x.device), right=True, out_int32=True)
    return (code + 8 * torch.signbit(x)).to(torch.uint8)


def pack_e2m1(code: Tensor) -> Tensor:
    """Pack e2m1 codes ``[..., n]`` two to a byte ``[..., n/2]``, even element in the low nibble."""
    return code[..., 0::2] | (code[..., 1::2] << 4)


def unpack_e2m1(packed: Tensor) -> Tensor:
    """Decode packed e2m1 bytes ``[..., n/2]`` (uint8 or int8) to float32 ``[..., n]``."""
    codes = packed.view(torch.uint8).to(torch.int32).flatten()
    pairs = torch.index_select(_packed_pairs_on(packed.device), 0, codes)
    return pairs.view(torch.float32).view(*packed.shape[:-1], 2 * packed.shape[-1])


def unpack_e4m3(code: Tensor) -> Tensor:
    """Decode finite e4m3 bytes (uint8) to float32, about ten times faster than torch's cast.

    Shifted into place, exponent and mantissa are those of a float16 smaller by 2**8. The two NaN
    codes, which ``to_e4m3`` never makes from finite values, would read as +-480.
    """
    wide = code.view(torch.int8).to(torch.int16)
    half = wide.bitwise_left_shift_(7).bitwise_and_(~0x4000).view(torch.float16)
    return half.to(torch.float32).mul_(2.0**8)


# -- groups along the last dimension --------------------------------------------------------------


def group_amax(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Split the last dimension into groups: float32 ``[..., n/group, group]`` and its maxima."""
    if x.shape[-1] % group:
        raise ValueError(f"last dimension {x.shape[-1]} is not a multiple of the group {group}.")
    grouped = x.to(torch.float32).unflatten(-1, (-1, group))
    return grouped, grouped.abs().amax(-1, keepdim=True)


def quantise_fp8(x: Tensor, group: int = FP8_GROUP) -> tuple[Tensor, Tensor]:
    """Quantise ``[..., n]`` to e4m3 ``[..., n]`` with float32 scales ``[..., n/group]``."""
    grouped, amax = group_amax(x, group)
    scale = fp8_scale(amax)
    return to_e4m3(grouped / scale).flatten(-2), scale.squeeze(-1)


def fake_quantise_fp8(x: Tensor, group: int = FP8_GROUP) -> Tensor:
    """What ``x`` becomes after FP8 quantisation, float32 ``[..., n]``."""
    grouped, amax = group_amax(x, group)
    scale = fp8_scale(amax)
    return (to_e4m3(grouped / scale).to(torch.float32) * scale).flatten(-2)


def quantise_fp4(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise ``[..., n]`` to packed e2m1 ``[..., n/2]``, power-of-two scales ``[..., n/32]``."""
    grouped, amax = group_amax(x, FP4_GROUP)
    scale = fp4_scale(amax)
    return pack_e2m1(to_e2m1((grouped / scale).flatten(-2))), scale.squeeze(-1)


def quantise_fp4_fine(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise ``[..., n]`` to packed e2m1 ``[..., n/2]``, e4m3-valued scales ``[..., n/16]``."""
    grouped, amax = group_amax(x, FP4_FINE_GROUP)
    scale = fp4_fine_scale(amax)
    return pack_e2m1(to_e2m1((grouped / scale).flatten(-2))), scale.squeeze(-1)


def scale_groups_(values: Tensor, scale: Tensor) -> Tensor:
    """Multiply float32 ``[..., n]`` by per-group scales ``[..., n/group]``, in place."""
    values.unflatten(-1, (scale.shape[-1], -1)).mul_(scale.unsqueeze(-1))
    return values


# -- weights --------------------------------------------------------------------------------------


def quantise_fp8_blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise a weight ``[out, in]`` to e4m3 with one UE8M0 scale per 32x32 block."""
    out, columns = weight.shape
    rows, groups = -(-out // FP8_BLOCK), -(-columns // FP8_BLOCK)
    padded = weight.new_zeros(rows * FP8_BLOCK, groups * FP8_BLOCK, dtype=torch.float32)
    padded[:out, :columns] = weight
    amax = padded.abs().view(rows, FP8_BLOCK, groups, FP8_BLOCK).amax((1, 3))
    scale = fp8_scale(amax)
    code = to_e4m3(weight.to(torch.float32) / expand_blocks(scale, weight))
    return code, encode_ue8m0(scale).view(torch.float8_e8m0fnu)


def dequantise_fp8_blocks(weight: Tensor, scale: Tensor) -> Tensor:
    """Float32 values ``[out, in]`` of an e4m3 weight with 32x32 UE8M0 block scales."""
    return weight.to(torch.float32) * expand_blocks(decode_ue8m0(scale), weight)


def expand_blocks(
    scale: Tensor, weight: Tensor, block: tuple[int, int] = (FP8_BLOCK, FP8_BLOCK)
) -> Tensor:
    """One value per element of ``weight`` ``[out, in]`` from one per block of rows and columns."""
    wide = scale.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return wide[: weight.shape[0], : weight.shape[1]]


def quantise_fp8_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise rows ``[rows, n]`` to e4m3 with UE8M0 scales ``[rows, n/32]`` (engram tables)."""
    code, scale = quantise_fp8(weight)
    return code, encode_ue8m0(scale).view(torch.float8_e8m0fnu)


def dequantise_fp8_rows(weight: Tensor, scale: Tensor) -> Tensor:
    """Float32 values ``[..., n]`` of e4m3 rows with UE8M0 scales ``[..., n/32]``."""
    return scale_groups_(weight.to(torch.float32), decode_ue8m0(scale))


def quantise_fp4_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise ``[..., out, in]`` to packed e2m1 int8 with UE8M0 scales ``[..., out, in/32]``."""
    packed, scale = quantise_fp4(weight)
    return packed.view(torch.int8), encode_ue8m0(scale).view(torch.float8_e8m0fnu)


def dequantise_fp4_rows(weight: Tensor, scale: Tensor) -> Tensor:
    """Float32 values ``[..., n]`` of packed e2m1 rows with UE8M0 scales ``[..., n/32]``."""
    return scale_groups_(unpack_e2m1(weight), decode_ue8m0(scale))

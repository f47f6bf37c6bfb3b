"""How torch_npu's operators lay out scales, packed weights and cache rows: conversions, pure torch.

An operator of the MX formats takes UE8M0 scales in pairs: the two bytes of neighbouring groups of
32 columns side by side, the even group first, uint8 ``[rows, ceil(groups / 2), 2]``. The second
byte of a lone last group is zero. As integers of two bytes and by groups, ``[ceil(groups / 2),
rows]``, the same bytes are what block-scaled kernels of the vector language take.

Values are never changed, only moved, and weights keep the orientation of the checkpoint: an
operator that wants ``[in, out]`` gets a transposed view. Source: docs of torch_npu 2.13.0
(npu_dynamic_mx_quant, npu_quant_matmul) and its meta kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_deepinfer.ops import formats

SCALES_PER_PAIR = 2


# -- scales ---------------------------------------------------------------------------------------


def scale_pairs(scales: Tensor) -> Tensor:
    """Scale bytes ``[..., n]``, uint8, to pairs ``[..., ceil(n / 2), 2]``; a view where n is even
    and the bytes are contiguous."""
    if scales.shape[-1] % SCALES_PER_PAIR:
        scales = torch.nn.functional.pad(scales, (0, 1))
    return scales.contiguous().unflatten(-1, (-1, SCALES_PER_PAIR))


def scales_of_pairs(pairs: Tensor, num_scales: int) -> Tensor:
    """The first ``num_scales`` scale bytes ``[..., n]`` of pairs ``[..., ceil(n / 2), 2]``."""
    if pairs.shape[-1] != SCALES_PER_PAIR or pairs.shape[-2] != -(-num_scales // SCALES_PER_PAIR):
        raise ValueError(
            f"pairs are {list(pairs.shape)}; {num_scales} scales need [..., "
            f"{-(-num_scales // SCALES_PER_PAIR)}, {SCALES_PER_PAIR}]."
        )
    return pairs.flatten(-2)[..., :num_scales].contiguous()


def pair_major(scales: Tensor) -> Tensor:
    """Scale bytes ``[rows, n]`` to int16 ``[ceil(n / 2), rows]``, contiguous; low byte even."""
    return formats.pack_scales(scales, torch.int16).t().contiguous()


def scales_of_pair_major(packed: Tensor, num_scales: int) -> Tensor:
    """Scale bytes ``[rows, num_scales]`` of ``pair_major``."""
    return formats.unpack_scales(packed.t(), num_scales)


# -- weights --------------------------------------------------------------------------------------


def linear_weight(weight: Tensor) -> Tensor:
    """e4m3 ``[out, in]`` as the ``[in, out]`` that npu_quant_matmul multiplies by: a view."""
    return weight.t()


def linear_weight_scales(scale: Tensor, rows: int) -> Tensor:
    """Scales per block ``[ceil(rows / 32), groups]`` as pairs ``[ceil(groups / 2), rows, 2]``.

    Blocks are repeated along rows only: along columns the operator's groups are the blocks'.
    """
    per_row = scale.view(torch.uint8).repeat_interleave(formats.FP8_BLOCK, 0)[:rows]
    return scale_pairs(per_row).transpose(0, 1)


def expert_weights(packed: Tensor) -> Tensor:
    """Packed e2m1 ``[experts, out, in / 2]`` as uint8 ``[experts, in / 2, out]``: a view."""
    return packed.view(torch.uint8).transpose(1, 2)


def expert_weight_scales(scale: Tensor) -> Tensor:
    """Scales per row and 32 columns ``[experts, out, groups]`` as UE8M0 pairs ``[experts, out,
    ceil(groups / 2), 2]``."""
    return scale_pairs(scale.view(torch.uint8)).view(torch.float8_e8m0fnu)


# -- cache rows -----------------------------------------------------------------------------------


def fp8_records(codes: Tensor, pairs: Tensor) -> Tensor:
    """e4m3 codes ``[n, width]`` with scale pairs as records of ``Fp8Record``, uint8."""
    scales = scales_of_pairs(pairs, codes.shape[-1] // formats.FP8_GROUP)
    return torch.cat([codes.view(torch.uint8), scales], -1)

"""What torch_npu's operators are given holds the checkpoint's and the caches' bytes, moved only.

If this fails, weights are multiplied by their neighbours' scales, or a cache row is written that no
reader of this package understands.
"""

from __future__ import annotations

import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vllm_deepinfer.ops import formats
from vllm_deepinfer.ops.npu import layouts
from vllm_deepinfer.ops.records import Fp8Record


def scale_bytes(rows: int, groups: int) -> torch.Tensor:
    """Each different from its neighbours."""
    return (torch.arange(rows * groups) * 37 % 251).to(torch.uint8).view(rows, groups)


sizes = st.integers(1, 9)


@given(rows=sizes, groups=sizes)
def test_pairs_are_neighbouring_groups_even_first(rows, groups):
    scales = scale_bytes(rows, groups)
    pairs = layouts.scale_pairs(scales)
    assert pairs.shape == (rows, -(-groups // 2), 2) and pairs.is_contiguous()
    for row in range(rows):
        for group in range(groups):
            assert pairs[row, group // 2, group % 2] == scales[row, group]
    if groups % 2:
        assert not pairs[:, -1, 1].any()
    assert torch.equal(layouts.scales_of_pairs(pairs, groups), scales)


@given(rows=sizes, groups=sizes)
def test_integers_hold_the_same_pairs_by_groups_low_byte_even(rows, groups):
    scales = scale_bytes(rows, groups)
    packed = layouts.pair_major(scales)
    assert packed.dtype == torch.int16 and packed.shape == (-(-groups // 2), rows)
    assert packed.is_contiguous()
    pairs = layouts.scale_pairs(scales)
    for row in range(rows):
        for pair in range(pairs.shape[1]):
            as_bytes = struct.pack("<h", int(packed[pair, row]))
            assert as_bytes == bytes(pairs[row, pair].tolist())
    assert torch.equal(layouts.scales_of_pair_major(packed, groups), scales)


def test_even_contiguous_scales_are_not_copied():
    scales = scale_bytes(3, 4)
    assert layouts.scale_pairs(scales).data_ptr() == scales.data_ptr()


@pytest.mark.parametrize(("shape", "groups"), [((3, 2, 2), 5), ((3, 2, 2), 2), ((3, 4), 4)])
def test_pairs_of_another_size_are_refused(shape, groups):
    with pytest.raises(ValueError, match=f"{groups} scales need"):
        layouts.scales_of_pairs(torch.zeros(shape, dtype=torch.uint8), groups)


@given(out=st.integers(1, 100), groups=sizes)
def test_blocks_are_repeated_along_rows_only(out, groups):
    block = scale_bytes(-(-out // 32), groups)
    pairs = layouts.linear_weight_scales(block.view(torch.float8_e8m0fnu), out)
    assert pairs.shape == (-(-groups // 2), out, 2)
    for row in {0, 31, 32, out - 1} & set(range(out)):
        for group in range(groups):
            assert pairs[group // 2, row, group % 2] == block[row // 32, group]


def test_a_weight_multiplies_by_what_the_layouts_say():
    """Values read through the layouts, as the operator does, are the weight's."""
    weight, scale = formats.quantise_fp8_blocks(torch.randn(72, 96) * 3)
    pairs = layouts.linear_weight_scales(scale, 72)
    columns = layouts.linear_weight(weight)
    assert columns.data_ptr() == weight.data_ptr() and columns.shape == (96, 72)
    groups = pairs.permute(1, 0, 2).flatten(1)[:, :3]
    values = columns.t().float() * formats.decode_ue8m0(groups.contiguous()).repeat_interleave(
        32, 1
    )
    assert torch.equal(values, formats.dequantise_fp8_blocks(weight, scale))


def test_expert_weights_are_views_of_the_stored_bytes():
    packed, scale = formats.quantise_fp4_rows(torch.randn(2, 64, 96))
    weights, pairs = layouts.expert_weights(packed), layouts.expert_weight_scales(scale)
    assert weights.data_ptr() == packed.data_ptr() and weights.shape == (2, 48, 64)
    assert pairs.dtype == torch.float8_e8m0fnu and pairs.shape == (2, 64, 2, 2)
    restored = weights.transpose(1, 2).view(torch.int8)
    flat = pairs.view(torch.uint8).flatten(-2)[..., :3].contiguous().view(torch.float8_e8m0fnu)
    values = formats.dequantise_fp4_rows(restored, flat)
    assert torch.equal(values, formats.dequantise_fp4_rows(packed, scale))


@given(width=st.sampled_from([32, 96, 128, 512]), rows=st.integers(1, 5), seed=st.integers(0, 9))
def test_records_are_the_caches_own(width, rows, seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, width, generator=generator) * 10.0 ** (seed - 6)
    codes, scales = formats.quantise_fp8(values)
    pairs = layouts.scale_pairs(formats.exponent_byte(scales))
    assert torch.equal(layouts.fp8_records(codes, pairs), Fp8Record(width).encode(values))

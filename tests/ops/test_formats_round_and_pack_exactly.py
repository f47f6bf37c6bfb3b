"""Number formats: rounding to the nearest even code, saturation, scales and packing, bit for bit.

If one of these fails, weights or cached rows are misread, or two platforms round differently.
Source of the byte vectors: the published torch casts, in tests/data/kv_formats.json.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_deepinfer.ops import formats, records

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "kv_formats.json").read_text())
RECORDS = {
    "mxfp8_kv_528": records.Fp8Record(512),
    "mxfp8_index_132": records.Fp8Record(128),
    "fp8_fp32_index_132": records.FloatScaleRecord(128),
    "fp4_kv_288": records.Fp4FineRecord(512),
    "fp4_index_68": records.Fp4Record(128),
}
ALL_BYTES = torch.arange(256, dtype=torch.uint8)

finite = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False)


def recorded_rows(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    entry = RECORDED["formats"][name]

    def decode(key: str) -> np.ndarray:
        return np.frombuffer(base64.b64decode(entry[key]), dtype=np.uint8)

    rows = torch.from_numpy(decode("input_bf16").copy()).view(torch.bfloat16)
    data = decode("data").reshape(entry["rows"], -1)
    scales = decode("scales").reshape(entry["rows"], -1)
    wanted = torch.from_numpy(np.concatenate([data, scales], 1))
    return rows.view(entry["rows"], entry["elements"]), wanted


@pytest.mark.parametrize("name", RECORDS)
def test_records_equal_the_published_casts_byte_for_byte(name):
    rows, wanted = recorded_rows(name)
    assert torch.equal(RECORDS[name].encode(rows), wanted)


@pytest.mark.parametrize("name", RECORDS)
def test_record_size_is_in_its_name(name):
    assert RECORDS[name].num_bytes == int(name.rsplit("_", 1)[1])


@pytest.mark.parametrize(
    "name", [name for name in RECORDS if "mxfp8" in name or "index_68" in name]
)
def test_decoded_records_encode_to_themselves(name):
    """True of power-of-two scales only: a scale of another value does not divide evenly again."""
    _, stored = recorded_rows(name)
    record = RECORDS[name]
    values = record.decode(stored)
    values = values[values.isfinite().all(1)]  # the largest bfloat16 values round up to infinity
    assert len(values) > 16
    assert torch.equal(record.decode(record.encode(values)), values)


@pytest.mark.parametrize("record", [records.Fp8Record(64), records.Fp4Record(64)])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_group_that_is_not_finite_reads_back_as_nan_and_spoils_no_other(record, value):
    rows = torch.randn(2, 64)
    wanted = record.decode(record.encode(rows))
    rows[1, 3] = value
    found = record.decode(record.encode(rows))
    assert torch.equal(found[0], wanted[0]) and torch.equal(found[1, 32:], wanted[1, 32:])
    assert found[1, :32].isnan().all()


def test_scale_bytes_of_computed_scales_are_their_encoding():
    scales = formats.power_of_two_at_least(torch.rand(1000) * 1e6 + 1e-30)
    assert torch.equal(formats.exponent_byte(scales), formats.encode_ue8m0(scales))


def test_fast_e4m3_decoding_equals_torchs_on_every_finite_code():
    finite_codes = ALL_BYTES[(ALL_BYTES & 0x7F) != 0x7F]
    wanted = finite_codes.view(torch.float8_e4m3fn).to(torch.float32)
    assert torch.equal(formats.unpack_e4m3(finite_codes), wanted)


def test_every_e4m3_code_survives_a_round_trip():
    """Zeros keep their sign and NaN stays NaN."""
    values = ALL_BYTES.view(torch.float8_e4m3fn).to(torch.float32)
    codes = formats.to_e4m3(values).view(torch.uint8)
    is_nan = (ALL_BYTES & 0x7F) == 0x7F
    assert torch.equal(values.isnan(), is_nan)
    assert torch.equal(codes[~is_nan], ALL_BYTES[~is_nan])
    assert ((codes[is_nan] & 0x7F) == 0x7F).all()


def test_e4m3_rounds_to_the_nearest_code_and_from_midpoints_to_the_even_one():
    values = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    midpoints = (values[1:] + values[:-1]) / 2
    lower = torch.arange(0x7E)
    even = lower + lower % 2
    for number, wanted in (
        (midpoints.float(), even),
        (torch.nextafter(midpoints.float(), torch.tensor(torch.inf)), lower + 1),
        (torch.nextafter(midpoints.float(), torch.tensor(0.0)), lower),
    ):
        assert torch.equal(formats.to_e4m3(number).view(torch.uint8).long(), wanted)
        assert torch.equal(formats.to_e4m3(-number).view(torch.uint8).long(), wanted + 0x80)


def test_every_packed_fp4_byte_holds_the_even_element_low():
    values = formats.unpack_e2m1(ALL_BYTES).view(256, 2)
    table = torch.tensor([*formats.E2M1_VALUES, *(-value for value in formats.E2M1_VALUES)])
    assert torch.equal(values[:, 0], table[ALL_BYTES.int() & 15])
    assert torch.equal(values[:, 1], table[ALL_BYTES.int() >> 4])
    assert torch.equal(formats.pack_e2m1(formats.to_e2m1(values)).squeeze(1), ALL_BYTES)


def test_fp4_midpoints_go_to_the_even_code():
    midpoints = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert formats.to_e2m1(midpoints).tolist() == [0, 2, 2, 4, 4, 6, 6]
    above = torch.nextafter(midpoints, torch.tensor(torch.inf))
    below = torch.nextafter(midpoints, torch.tensor(0.0))
    assert formats.to_e2m1(above).tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert formats.to_e2m1(below).tolist() == [0, 1, 2, 3, 4, 5, 6]


@given(st.lists(finite, min_size=1, max_size=64))
def test_fp4_code_is_a_nearest_value(numbers):
    x = torch.tensor(numbers, dtype=torch.float32).clamp(-6, 6)
    table = torch.tensor(formats.E2M1_VALUES, dtype=torch.float64)
    found = table[(formats.to_e2m1(x) & 7).long()]
    nearest = (x.double().abs().unsqueeze(1) - table).abs().amin(1)
    assert torch.equal((x.double().abs() - found).abs(), nearest)


@pytest.mark.parametrize("value", [449.0, 1e30, float("inf")])
def test_codes_saturate(value):
    numbers = torch.tensor([value, -value])
    assert formats.to_e4m3(numbers).float().tolist() == [448.0, -448.0]
    assert formats.to_e2m1(numbers).tolist() == [7, 15]


@pytest.mark.parametrize("name", RECORDS)
def test_rows_of_zeros_have_finite_scales_and_stay_zero(name):
    record = RECORDS[name]
    stored = record.encode(torch.zeros(2, record.width))
    assert torch.equal(record.decode(stored), torch.zeros(2, record.width))
    assert stored[:, record.num_value_bytes :].any(1).all(), "a scale of zero bytes alone"


def test_fine_fp4_group_is_nan_for_nan_and_saturates_for_infinity():
    rows = torch.randn(2, 32)
    rows[0, 3], rows[1, 20] = float("nan"), -float("inf")
    record = records.Fp4FineRecord(32)
    found = record.decode(record.encode(rows))
    assert found[0, :16].isnan().all() and found[0, 16:].isfinite().all()
    assert found[1].isfinite().all() and found[1, 20] == -448.0 * 6.0


@given(st.floats(min_value=2.0**-126, max_value=2.0**126, width=32))
def test_scales_round_up_to_a_power_of_two(number):
    power = formats.power_of_two_at_least(torch.tensor([number])).item()
    assert number <= power < 2 * number
    assert np.frexp(power)[0] == 0.5


def test_every_scale_byte_survives_a_round_trip():
    codes = ALL_BYTES[:255]
    assert torch.equal(formats.encode_ue8m0(formats.decode_ue8m0(codes)), codes)


def test_scale_byte_of_nan_reads_as_nan_and_the_smallest_as_itself():
    assert formats.decode_ue8m0(torch.tensor([255], dtype=torch.uint8)).isnan().all()
    assert formats.decode_ue8m0(torch.tensor([0], dtype=torch.uint8)).item() == 2.0**-127


@given(st.integers(1, 4), st.integers(0, 40), st.sampled_from([torch.int16, torch.int32]))
def test_packed_scales_are_the_bytes_in_order_and_zeros_behind(rows, count, dtype):
    scales = torch.randint(0, 256, (rows, count), dtype=torch.uint8)
    packed = formats.pack_scales(scales, dtype)
    held = dtype.itemsize * -(-count // dtype.itemsize)
    assert packed.dtype == dtype and packed.shape == (rows, held // dtype.itemsize)
    number = sum(
        torch.nn.functional.pad(scales, (0, held - count))[:, byte :: dtype.itemsize].long()
        << 8 * byte
        for byte in range(dtype.itemsize)
    )
    assert torch.equal(packed.long() % (1 << 8 * dtype.itemsize), number)
    assert torch.equal(formats.unpack_scales(packed, count), scales)
    by_group = packed.mT.contiguous()
    assert torch.equal(formats.unpack_scales(by_group.mT, count), scales)


def test_other_packings_of_scales_are_refused():
    packed = torch.zeros(2, 3, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"int64; allowed: torch.int32 \(SM100\), torch.int16"):
        formats.pack_scales(torch.zeros(2, 4, dtype=torch.uint8), torch.int64)
    for count in (8, 13):
        with pytest.raises(ValueError, match=f"num_scales is {count}; 3 .* hold 9 to 12"):
            formats.unpack_scales(packed, count)


@pytest.mark.parametrize("scale", [0.3, 0.0, -1.0, 3.0, float("inf"), float("nan")])
def test_scale_that_is_no_power_of_two_is_refused_by_value(scale):
    with pytest.raises(ValueError, match="not a power of two"):
        formats.encode_ue8m0(torch.tensor([1.0, scale]))


@settings(max_examples=50)
@given(st.integers(0, 2**31), st.integers(-30, 30))
def test_fake_quantisation_equals_quantise_then_dequantise(seed, exponent):
    x = torch.randn(3, 96, generator=torch.Generator().manual_seed(seed)) * 2.0**exponent
    code, scale = formats.quantise_fp8(x)
    stored = formats.dequantise_fp8_rows(code, formats.encode_ue8m0(scale))
    assert torch.equal(formats.fake_quantise_fp8(x), stored)
    assert torch.equal(formats.fake_quantise_fp8(stored), stored)


@settings(max_examples=30)
@given(st.integers(1, 70), st.integers(1, 3), st.integers(0, 2**31))
def test_weights_survive_their_own_format(rows, groups, seed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, 32 * groups, generator=generator)
    for quantise, dequantise, error in (
        (formats.quantise_fp8_blocks, formats.dequantise_fp8_blocks, 2.0**-4),
        (formats.quantise_fp4_rows, formats.dequantise_fp4_rows, 0.25),
        (formats.quantise_fp8_rows, formats.dequantise_fp8_rows, 2.0**-4),
    ):
        stored = dequantise(*quantise(weight))
        assert torch.equal(dequantise(*quantise(stored)), stored)
        assert (stored - weight).abs().max() <= error * weight.abs().max()


def test_block_scales_cover_ragged_edges():
    weight = torch.ones(33, 64)
    weight[32] = 64.0
    code, scale = formats.quantise_fp8_blocks(weight)
    assert scale.shape == (2, 2)
    assert torch.equal(formats.dequantise_fp8_blocks(code, scale), weight)


def test_group_that_does_not_divide_the_row_is_refused():
    with pytest.raises(ValueError, match="33 is not a multiple of the group 32"):
        formats.quantise_fp8(torch.ones(1, 33))

"""Records and float scales of other engines are read as what they mean, or refused.

If one of these fails, a cache or a checkpoint made elsewhere is silently misread. vLLM's own kernel
is the oracle of its 584-byte record; it runs in Triton's interpreter (15 s).
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton_kernels.interpreter import Interpreter

from vllm_deepinfer.ops import formats, records
from vllm_deepinfer.ops.float_scales import with_power_of_two_scales

UPSTREAM = records.PlainTailRecord(512)
PAGE_ROWS, PAGE_ALIGNMENT = 64, 576


def upstream_pages(rows: torch.Tensor, slots: torch.Tensor, num_pages: int) -> torch.Tensor:
    """Pages as vLLM's kernel writes them; runs in the interpreter's process."""
    from runner_kernels.interpreter_oracle import _pretend_triton_runs_on_cpu

    _pretend_triton_runs_on_cpu()
    from vllm.models.deepseek_v41.common.ops import cache_utils

    page_bytes = PAGE_ALIGNMENT * -(-PAGE_ROWS * cache_utils.V4_BYTES_PER_TOKEN // PAGE_ALIGNMENT)
    pages = torch.zeros(num_pages, page_bytes, dtype=torch.uint8)
    cache_utils.quantize_and_insert_k_cache(rows, pages, slots, PAGE_ROWS)
    return pages


def test_vllms_record_is_what_its_own_kernel_writes(monkeypatch):
    pytest.importorskip("triton", reason="the oracle is a Triton kernel")
    monkeypatch.setenv("VLLM_PLUGINS", "")
    rows = torch.randn(48, 512) * 2.0 ** torch.randint(-30, 30, (48, 1))
    rows[::5] = torch.randint(-24, 25, rows[::5].shape) * 1.5
    rows[7], rows[9, :64] = 0.0, 0.0
    rows, slots = rows.to(torch.bfloat16), torch.randperm(2 * PAGE_ROWS)[:48]
    interpreter = Interpreter()
    try:
        pages = interpreter.submit(upstream_pages, rows, slots, 2)
    finally:
        interpreter.close()
    stored = torch.zeros(2 * PAGE_ROWS, UPSTREAM.num_bytes, dtype=torch.uint8)
    stored[slots] = UPSTREAM.encode(rows)
    stored = stored.unflatten(0, (2, PAGE_ROWS))
    assert torch.equal(records.page_of(stored, UPSTREAM, pages.shape[1]), pages)
    assert torch.equal(records.rows_of_page(pages, UPSTREAM, PAGE_ROWS), stored)


def test_vllms_record_has_its_size_and_keeps_the_tail():
    rows = torch.randn(3, 512).to(torch.bfloat16)
    stored = UPSTREAM.encode(rows)
    values = UPSTREAM.decode(stored)
    assert stored.shape == (3, 584) and not stored[:, -1].any()
    assert torch.equal(values[:, 448:], rows[:, 448:].float())
    head = formats.fake_quantise_fp8(rows[:, :448], records.PLAIN_TAIL_GROUP)
    assert torch.equal(values[:, :448], head)
    assert torch.equal(UPSTREAM.encode(values), stored)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(0, 100), st.integers(0, 2**31))
def test_pages_hold_all_values_then_all_scales(rows, spare, seed):
    generator = torch.Generator().manual_seed(seed)
    for codec in (records.Fp4Record(128), records.FloatScaleRecord(128), UPSTREAM):
        size = (2, rows, codec.num_bytes)
        stored = torch.randint(0, 256, size, dtype=torch.uint8, generator=generator)
        page = records.page_of(stored, codec, rows * codec.num_bytes + spare)
        assert torch.equal(records.rows_of_page(page, codec, rows), stored)
        first = codec.num_value_bytes
        assert torch.equal(page[:, :first], stored[:, 0, :first])
        assert torch.equal(page[:, rows * first :][:, : size[2] - first], stored[:, 0, first:])
        assert not page[:, rows * codec.num_bytes :].any()


def test_pages_that_are_too_small_are_refused():
    stored = torch.zeros(64, 584, dtype=torch.uint8)
    with pytest.raises(ValueError, match="64 rows of 584 bytes need at least 37376"):
        records.page_of(stored, UPSTREAM, 37375)
    with pytest.raises(ValueError, match="37375 bytes holds no 64 rows of 584 bytes"):
        records.rows_of_page(torch.zeros(37375, dtype=torch.uint8), UPSTREAM, 64)


def float_scale(generator: torch.Generator, *shape: int) -> torch.Tensor:
    exponents = torch.randint(-60, 60, shape, generator=generator)
    return (1.0 + torch.rand(shape, generator=generator)) * 2.0**exponents


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 70), st.integers(1, 90), st.sampled_from([(32, 32), (128, 128), (1, 32)]),
    st.booleans(), st.integers(0, 2**31),
)  # fmt: skip
def test_float_scales_become_powers_of_two_within_the_bound(out, columns, block, exact, seed):
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (out, columns), dtype=torch.uint8, generator=generator)
    codes[codes & 0x7F == 0x7F] = 0
    scale = float_scale(generator, -(-out // block[0]), -(-columns // block[1]))
    if exact:
        scale = formats.power_of_two_at_least(scale)
    code = codes.view(torch.float8_e4m3fn)
    found, power = with_power_of_two_scales(code, scale, block)

    def values(code: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return code.double() * formats.expand_blocks(scale.double(), code, block)

    old, new = values(code, scale), values(found, formats.decode_ue8m0(power))
    if exact:
        assert torch.equal(found.view(torch.uint8), codes)
    bound = torch.maximum(old.abs() / 16, formats.expand_blocks(scale.double(), code, block) / 512)
    assert ((new - old).abs() <= bound * (1 + 2.0**-20)).all()


@pytest.mark.parametrize(
    "value", [0.0, -1.0, 1e-39, 2.0**127 * 1.5, float("inf"), float("nan")], ids=str
)
def test_float_scale_without_a_power_of_two_is_refused_by_value(value):
    codes, scale = torch.zeros(2, 32).to(torch.float8_e4m3fn), torch.ones(2, 1)
    scale[1] = value
    with pytest.raises(ValueError, match="scale .* is not a normal positive number"):
        with_power_of_two_scales(codes, scale, (1, 32))


@pytest.mark.parametrize("scale", [torch.ones(1, 2), torch.ones(2, 1), torch.ones(1, 1).double()])
def test_float_scales_of_another_shape_or_dtype_are_refused(scale):
    codes = torch.zeros(32, 32).to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match=r"need torch.float32 \[1, 1\]"):
        with_power_of_two_scales(codes, scale)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(-30, 30))
def test_index_keys_with_a_float_scale_are_converted_and_not_read_as_exponents(seed, exponent):
    """Both records have 132 bytes."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(2, 5, 128, generator=generator) * 2.0**exponent
    theirs, ours = records.FloatScaleRecord(128), records.Fp8Record(128)
    assert theirs.num_bytes == ours.num_bytes == 132
    stored = theirs.encode(rows)
    values = theirs.decode(stored)
    scale = stored[..., 128:].contiguous().view(torch.float32)
    assert ((values - rows).abs() <= torch.maximum(rows.abs() / 16, scale / 1024) * 1.0001).all()
    converted = ours.decode(theirs.to_power_of_two_scales(stored))
    assert ((converted - values).abs() <= torch.maximum(values.abs() / 16, scale / 512)).all()
    assert not torch.allclose(ours.decode(stored), values, rtol=0.2)

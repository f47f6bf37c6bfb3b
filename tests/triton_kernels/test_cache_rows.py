"""Cache rows are the reference's bytes, and read back as its values.

If this fails, a cache written on a GPU is another cache: prefixes differ, and attention reads keys
that were never computed.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from triton_kernels.errors import relative_error

from vllm_deepinfer.ops import caches, formats, records

RECORDS = {
    "mxfp8_kv_528": records.Fp8Record(512),
    "fp4_kv_288": records.Fp4FineRecord(512),
    "fp4_index_68": records.Fp4Record(128),
}
RECORDED = Path(__file__).parents[1] / "data" / "kv_formats.json"
BLOCKS, PER_BLOCK, PADDING = 3, 4, 32


def strided_cache(record: records.Record) -> torch.Tensor:
    """Rows of noise, and blocks with a gap between them as in a slab that layers share."""
    size = PER_BLOCK * record.num_bytes + PADDING
    memory = torch.randint(0, 255, (BLOCKS, size), dtype=torch.uint8)
    return memory[:, : size - PADDING].unflatten(1, (PER_BLOCK, record.num_bytes))


def stored(interpreter, record, cache, rows, x, cos, sin, dtype=torch.bfloat16):
    arguments = cache, rows, x, cos, sin, record.kind, dtype
    _, after = interpreter.run_in_place("store_rotated", *arguments)
    wanted = cache.clone()
    caches._store_reference(wanted, *arguments[1:])
    return after[0], wanted


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rotated_rows_are_stored_as_the_reference_stores_them(interpreter, name, dtype):
    record = RECORDS[name]
    x = (torch.randn(5, record.width) * 2.0 ** torch.randint(-30, 20, (5, 1))).to(dtype)
    angles = torch.rand(5, 32) * 7
    rows = torch.tensor([7, 0, -1, 11, 3])
    found, wanted = stored(
        interpreter, record, strided_cache(record), rows, x, angles.cos(), angles.sin(), dtype
    )
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("name", RECORDS)
def test_recorded_rows_become_the_published_bytes(interpreter, name):
    record = RECORDS[name]
    entry = json.loads(RECORDED.read_text())["formats"][name]

    def decode(key: str) -> torch.Tensor:
        return torch.from_numpy(np.frombuffer(base64.b64decode(entry[key]), np.uint8).copy())

    x = decode("input_bf16").view(torch.bfloat16).view(entry["rows"], -1)
    wanted = torch.cat([decode(key).view(entry["rows"], -1) for key in ("data", "scales")], 1)
    cache = torch.zeros(1, entry["rows"], record.num_bytes, dtype=torch.uint8)
    still = torch.ones(entry["rows"], 32), torch.zeros(entry["rows"], 32)
    found, _ = stored(interpreter, record, cache, torch.arange(entry["rows"]), x, *still)
    assert torch.equal(found[0], wanted)


def halfway_values() -> torch.Tensor:
    """Every midpoint between neighbouring e2m1 values, and what is just beside it."""
    values = torch.tensor(formats.E2M1_VALUES)
    middle = (values[1:] + values[:-1]) / 2
    return torch.cat(
        [middle, torch.nextafter(middle, values[1:]), torch.nextafter(middle, -middle)]
    )


@pytest.mark.parametrize("name", ["fp4_kv_288", "fp4_index_68"])
def test_midpoints_round_to_the_even_code(interpreter, name):
    """Under scales of one; both signs, even and odd columns."""
    record = RECORDS[name]
    values = halfway_values().repeat(record.width // 21 + 1)[: record.width]
    x = torch.stack([values, -values, values.roll(1)])
    x[:, ::16] = 6.0
    still = torch.ones(3, 32), torch.zeros(3, 32)
    cache = strided_cache(record)
    found, wanted = stored(
        interpreter, record, cache, torch.tensor([0, 5, 9]), x, *still, torch.float32
    )
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_group_that_is_not_finite_reads_back_as_the_reference_reads_it(interpreter, name, value):
    record = RECORDS[name]
    x = torch.randn(2, record.width)
    x[1, 3] = value
    still = torch.ones(2, 32), torch.zeros(2, 32)
    found, wanted = stored(
        interpreter, record, strided_cache(record), torch.tensor([1, 6]), x, *still, torch.float32
    )
    assert torch.equal(found[0], wanted[0])
    found, wanted = record.decode(found[1, 2]), record.decode(wanted[1, 2])
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


def every_byte(record: records.Record) -> torch.Tensor:
    """Rows that hold every code under every scale byte."""
    rows = torch.arange(256, dtype=torch.uint8).unsqueeze(1).repeat(1, record.num_bytes)
    codes = record.width if record.kind == records.RecordKind.FP8 else record.width // 2
    rows[:, :codes] = torch.arange(256, dtype=torch.uint8).repeat(-(-codes // 256))[:codes]
    return rows


@pytest.mark.parametrize("name", RECORDS)
def test_every_code_under_every_scale_decodes_exactly(interpreter, name):
    record = records.record_of(RECORDS[name].kind, 512)
    rows = every_byte(record)
    found = interpreter.run("load_rows", rows.unsqueeze(0), torch.arange(256), record.kind, 512)
    wanted = record.decode(rows)
    if record.kind == records.RecordKind.FP8:
        nan = (rows[:, :512] & 0x7F) == 0x7F  # which the reference's fast decoding does not know
        assert found[nan].isnan().all()
        found, wanted = found.masked_fill(nan, 0.0), wanted.masked_fill(nan, 0.0)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", RECORDS)
def test_rows_read_back_as_the_reference_reads_them(interpreter, name):
    record = RECORDS[name]
    cache = strided_cache(record)
    rows = torch.tensor([[7, 0, -1], [11, 3, 7]])
    found = interpreter.run("load_rows", cache, rows, record.kind, record.width)
    wanted = caches._load_reference(cache, rows, record.kind, record.width)
    if record.kind == records.RecordKind.FP8:
        # Noise holds e4m3's NaN codes, which no store makes of finite values.
        wanted = torch.where(found.isnan(), found, wanted)
    assert torch.equal(found.nan_to_num(), wanted.nan_to_num())
    assert not found.isnan().all()


def test_pairs_are_pooled_from_the_step_and_from_the_ring(interpreter):
    width, tokens = 48, 6
    ring = records.PlainRecord(2 * width, torch.float32).encode(torch.randn(3, 4, 2 * width))
    arguments = (
        torch.randn(tokens, width), torch.randn(tokens, width) * 5, ring,
        torch.tensor([0, 3, 5]), torch.tensor([7, -1, 2]), torch.tensor([5, 1]),
        torch.tensor([2, 9]),
    )  # fmt: skip
    found, after = interpreter.run_in_place("pool_pairs", *arguments)
    wanted_ring = ring.clone()
    wanted = caches._pool_reference(*arguments[:2], wanted_ring, *arguments[3:])
    assert relative_error(found, wanted) <= 1e-6
    assert torch.equal(after[2], wanted_ring)

"""Norms, streams, rotations, caches, attention, indexer, engram and router equal their reference.

To the bit where a value is stored, selected or only moved, else to 1e-6 relative L2, in every
version of the kernels. If this fails, the model computes something else on a machine with C++
kernels than on one without.
"""

from __future__ import annotations

import pytest
import torch
from kernels.model_cases import (
    BF16,
    BLOCK_ROWS,
    BLOCKS,
    CASES,
    F32,
    FORMATS,
    WIDTH,
    filled_cache,
    operation,
    random_rows,
)
from kernels.quantised_operands import relative, same_bits

from vllm_deepinfer.ops.attention import sink_attention
from vllm_deepinfer.ops.caches import load_rows, pool_pairs, store_rotated
from vllm_deepinfer.ops.engram import load_table_rows
from vllm_deepinfer.ops.indexer import candidate_blocks, index_scores, select_rows
from vllm_deepinfer.ops.library import OperationError
from vllm_deepinfer.ops.norm import rms_norm
from vllm_deepinfer.ops.records import RecordKind, record_of
from vllm_deepinfer.ops.rotation import rotate
from vllm_deepinfer.ops.router import route

ROWS = 70
E4M3 = torch.float8_e4m3fn


@pytest.mark.parametrize("name", CASES)
def test_operation(isa, name):
    case = CASES[name]
    run = case.make(ROWS)
    for part in (slice(0, ROWS), slice(11, 14), slice(5, 6), slice(0, 0)):
        torch.manual_seed(3)
        found = run(False, part)
        torch.manual_seed(3)
        for ours, wanted in zip(found, run(True, part), strict=True):
            assert ours.shape == wanted.shape and ours.dtype == wanted.dtype
            if case.exact or not ours.is_floating_point():
                assert same_bits(ours, wanted)
            elif ours.numel():
                finite = wanted.isfinite()
                assert torch.equal(ours[~finite], wanted[~finite])
                assert relative(ours[finite], wanted[finite]) < 1e-6


@pytest.mark.parametrize("kind", FORMATS[:3])
def test_every_record_byte_is_read_as_the_reference_reads_it(isa, kind):
    """All codes under every scale that is finite."""
    record = record_of(kind, 32)
    scales = record.num_bytes - (32 if kind is RecordKind.FP8 else 16)
    cache = torch.randint(0, 256, (255, 16, record.num_bytes), dtype=torch.uint8)
    cache[..., -scales:] = torch.arange(255, dtype=torch.uint8).view(255, 1, 1)
    if kind is RecordKind.FP8:
        codes = cache[..., :32]
        codes[codes & 0x7F == 0x7F] = 1
    if kind is RecordKind.FP4_FINE:
        cache[..., -scales:][cache[..., -scales:] & 0x7F == 0x7F] = 2
    rows = torch.arange(255 * 16)
    found = load_rows(cache, rows, kind, 32)
    assert same_bits(found, record.decode(cache).flatten(0, 1))


@pytest.mark.parametrize("kind", FORMATS)
def test_nothing_is_stored_in_negative_rows(isa, kind):
    cache = torch.full((2, 4, record_of(kind, WIDTH).num_bytes), 7, dtype=torch.uint8)
    turns = torch.ones(3, 4), torch.zeros(3, 4)
    store_rotated(cache, torch.tensor([-1, 5, -1]), torch.randn(3, WIDTH), *turns, kind, BF16)
    untouched = torch.arange(8) != 5
    assert (cache.view(8, -1)[untouched] == 7).all()
    assert not (cache.view(8, -1)[5] == 7).all()


def test_missing_keys_change_no_bit(isa):
    """How wide a batch makes the lists of rows is no business of a token's."""
    window, query, sink = (
        filled_cache(RecordKind.FP8, WIDTH),
        torch.randn(3, 5, WIDTH),
        torch.ones(5),
    )
    rows = random_rows(3, 9)
    spread = torch.full((3, 18), -1)
    spread[:, ::2] = rows
    none = torch.full((3, 4), -1)
    base = sink_attention(query, sink, 0.1, F32, window, rows, RecordKind.FP8)
    kinds = RecordKind.FP8, window, none, RecordKind.FP8
    assert same_bits(sink_attention(query, sink, 0.1, F32, window, spread, *kinds), base)


def test_partners_in_the_step_and_in_the_ring_pool_to_the_same_bits(isa):
    values, scores = torch.randn(2, 2, WIDTH).unbind(0)
    none, closing = torch.empty(0, dtype=torch.int64), torch.tensor([1])
    ring = torch.zeros(1, 2, 8 * WIDTH, dtype=torch.uint8)
    together = pool_pairs(values, scores, ring, closing, torch.tensor([-1]), none, none)
    first = torch.tensor([0])
    pool_pairs(values[:1], scores[:1], ring, none, none, first, torch.tensor([1]))
    later = pool_pairs(values[1:], scores[1:], ring, first, torch.tensor([1]), none, none)
    assert same_bits(together, later)


def test_nan_is_above_all_numbers(isa):
    """The rule of ops/indexer: what a fault made is chosen, and shows."""
    nan = torch.tensor([float("nan"), -float("nan")])
    scores = torch.randn(2, 5000)
    scores[0, [7, 4000]], scores[1, :600], scores[1, 600:] = nan, nan[0], float("-inf")
    assert set(select_rows(scores, 3)[0].tolist()) >= {7, 4000}
    assert select_rows(scores, 512)[1].tolist() == list(range(512))
    kept = candidate_blocks(scores, torch.tensor([5000, 0]), 10, 3)
    assert kept[0].nonzero().flatten().tolist() == [0, 400, 499]
    logits = torch.randn(2, 24)
    logits[0, [3, 9]] = nan
    chosen, weights = route(logits, torch.zeros(24), 4, True, 1.0)
    wanted, wanted_weights = operation(True, "route")(logits, torch.zeros(24), 4, True, 1.0)
    assert torch.equal(chosen, wanted) and {3, 9} <= set(chosen[0].tolist())
    assert weights[0].isnan().all() and wanted_weights[0].isnan().all()
    assert relative(weights[1], wanted_weights[1]) < 1e-6


@pytest.mark.parametrize("kind", [RecordKind.FP4, RecordKind.BFLOAT16])
def test_a_query_that_is_nan_scores_nan(isa, kind):
    cache, table = filled_cache(kind, WIDTH), torch.arange(BLOCKS, dtype=torch.int32).unsqueeze(0)
    query, none = torch.randn(2, 3, WIDTH).to(BF16), torch.zeros(2, dtype=torch.int64)
    query[1, 2, 40] = float("nan")
    arguments = (
        query, torch.rand(2, 3), cache, kind, table, none, torch.tensor([90, 50]), 99, True
    )  # fmt: skip
    for reference in (False, True):
        scores = operation(reference, "index_scores")(*arguments)
        assert scores[0, :90].isfinite().all()
        assert scores[1, :50].isnan().all() and (scores[1, 50:] == float("-inf")).all()


def test_selection_with_every_score_equal_takes_the_first():
    rows = select_rows(torch.zeros(2, 1000), 7)
    assert rows.tolist() == [list(range(7))] * 2


@pytest.mark.parametrize("name", CASES)
def test_fakes_promise_what_comes(name):
    """Under torch's fake tensors every operation returns the shapes and dtypes of the real one."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    arguments = []
    real = operation(False, next(n for n in OPERATIONS if name.startswith(n)))

    def record(*args):
        arguments.append(args)
        return real(*args)

    run = CASES[name].make(6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kernels.model_cases.operation", lambda reference, name: record)
        run(False, slice(0, 6))
    result = real(*arguments[0])
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in arguments[0]]
        promised = real(*fakes)
    for ours, fake in zip(as_tuple(result), as_tuple(promised), strict=True):
        assert (ours.shape, ours.dtype) == (fake.shape, fake.dtype)


OPERATIONS = (
    "rms_norm", "stream_mixes", "mix_streams", "expand_streams", "rope_angles", "rotate",
    "store_rotated", "load_rows", "pool_pairs", "sink_attention", "index_scores",
    "candidate_blocks", "select_rows", "engram_rows", "load_table_rows", "add_memory", "route",
    "clamped_swiglu", "sum_experts",
)  # fmt: skip


def as_tuple(result):
    if result is None:
        return ()
    return result if isinstance(result, tuple) else (result,)


CACHE = torch.zeros(BLOCKS, BLOCK_ROWS, 99, dtype=torch.uint8)
ONE = torch.ones(1, 4)
ROW = torch.zeros(1, 1, dtype=torch.int64)
REFUSALS = [
    (lambda: rms_norm(torch.ones(2, 8), torch.ones(8).bfloat16(), 0.1, F32), "multiple of 16"),
    (lambda: rms_norm(torch.ones(2, 16), torch.ones(16), 0.1, F32), "weight is float32 [16]"),
    (lambda: rotate(torch.ones(2, 6), ONE, ONE, F32), "cos is float32 [1, 4]"),
    (
        lambda: store_rotated(CACHE, ROW[0], torch.ones(1, 64), ONE, ONE, RecordKind.FP8, F32),
        "cache is uint8 [6, 40, 99]",
    ),
    (
        lambda: store_rotated(CACHE, ROW[0], torch.ones(1, WIDTH), ONE, ONE, 9, F32),
        "kind is 9",
    ),
    (
        lambda: load_rows(CACHE, torch.tensor([240]), RecordKind.FP8, WIDTH),
        "row 240 of a cache of 6 blocks of 40 rows",
    ),
    (
        lambda: sink_attention(
            torch.ones(1, 2, WIDTH), torch.ones(2), 1.0, F32, CACHE, ROW - 1, RecordKind.FP8
        ),
        "token 0 sees no key",
    ),
    (
        lambda: index_scores(
            torch.ones(1, 2, WIDTH), torch.ones(1, 2), CACHE, RecordKind.FP8,
            torch.zeros(1, 2, dtype=torch.int32), ROW[0], ROW[0], 81, True,
        ),
        "num_keys is 81; allowed: 0 to 80",
    ),
    (
        lambda: load_table_rows(torch.ones(3, 32).to(E4M3), torch.ones(3, 1).byte(), ROW + 3, F32),
        "row 3 of a table of 3",
    ),
    (lambda: select_rows(torch.ones(2, 5), 0), "count is 0"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "words"), REFUSALS, ids=range(len(REFUSALS)))
def test_bad_arguments_are_refused(call, words):
    with pytest.raises((OperationError, ValueError)) as error:
        call()
    assert words in str(error.value)

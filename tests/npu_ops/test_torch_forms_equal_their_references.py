"""What is registered for npu tensors without torch_npu gives the references' results, unasked.

If this fails, a graph on Ascend cannot be captured, or replays other tokens than the CPU computes.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vllm_deepinfer.ops import npu
from vllm_deepinfer.ops.npu import torch_forms
from vllm_deepinfer.ops.npu.probes import PROBES, TOKENS
from vllm_deepinfer.ops.npu.selfcheck import relative_error, written_arguments
from vllm_deepinfer.ops.npu.table import NATIVE, NOT_NATIVE, REFERENCES
from vllm_deepinfer.ops.npu.torch_forms import TORCH_FORMS
from vllm_deepinfer.ops.records import RecordKind, record_of

CASES = [(name, number) for name, cases in PROBES.items() for number in range(len(cases))]
BF16, F32 = torch.bfloat16, torch.float32


def copied(arguments: list) -> list:
    return [x.clone() if isinstance(x, torch.Tensor) else x for x in arguments]


def results(compute, operation: str, arguments: list) -> list[torch.Tensor]:
    """What an operation returns and writes."""
    result = compute(*arguments)
    returned = [] if result is None else [result] if isinstance(result, torch.Tensor) else result
    return [*returned, *(arguments[number] for number in written_arguments(operation))]


def assert_same(operation: str, arguments: list, relative: float = 0.0) -> None:
    wanted = results(REFERENCES[operation], operation, copied(arguments))
    found = results(TORCH_FORMS[operation], operation, arguments)
    for ours, right in zip(found, wanted, strict=True):
        if right.dtype in (BF16, F32):
            assert ours.dtype == right.dtype and ours.shape == right.shape
            assert relative_error(ours, right) <= relative
        else:
            assert torch.equal(ours, right)


def test_every_operation_has_one_entry():
    assert set(NATIVE) | set(NOT_NATIVE) == set(REFERENCES) == set(PROBES)
    assert not set(NATIVE) & set(NOT_NATIVE)
    defined = {name.split("::")[1] for name in torch._C._dispatch_get_all_op_names()
               if name.startswith("vllm_deepinfer::")}  # fmt: skip
    assert defined == set(REFERENCES)


@pytest.mark.parametrize(("operation", "case"), CASES)
def test_nothing_asks_the_host(operation, case):
    """A tensor without data cannot be asked for its values, and shapes must not hang on them."""
    arguments = PROBES[operation][case]()
    wanted = results(REFERENCES[operation], operation, copied(arguments))
    without_data = [x.to("meta") if isinstance(x, torch.Tensor) else x for x in arguments]
    compute = npu.implementations(native=False)[operation].compute
    found = results(compute, operation, without_data)
    assert [(x.dtype, x.shape) for x in found] == [(x.dtype, x.shape) for x in wanted]


@pytest.mark.parametrize(("operation", "case"), [case for case in CASES if case[0] in TORCH_FORMS])
def test_forms_give_the_references_results(operation, case):
    assert_same(operation, PROBES[operation][case](), 1e-2 if operation == "fp8_linear" else 1e-5)


# -- rows of the caches ---------------------------------------------------------------------------

kinds = st.sampled_from([RecordKind.FP8, RecordKind.FP4, RecordKind.FP4_FINE, RecordKind.BFLOAT16])


different_rows = st.lists(
    st.integers(-3, 23), max_size=9, unique_by=lambda row: row if row >= 0 else object()
)


@given(rows=different_rows, kind=kinds)
def test_rows_are_stored_where_they_are_not_negative(rows, kind):
    record = record_of(kind, 64)
    cache = torch.randint(0, 255, (3, 2, 8, record.num_bytes), dtype=torch.uint8)[:, 0]
    x, angles = torch.randn(len(rows), 64, dtype=BF16), torch.randn(len(rows), 4)
    numbers = torch.tensor(rows, dtype=torch.int64)
    assert_same("store_rotated", [cache, numbers, x, angles.cos(), angles.sin(), int(kind), BF16])


@given(seed=st.integers(0, 99), kept=st.integers(0, 3))
def test_pairs_are_pooled_and_the_ring_is_read_before_it_is_written(seed, kept):
    generator = torch.Generator().manual_seed(seed)
    ring = record_of(RecordKind.FLOAT32, 64).encode(torch.randn(2, 4, 64, generator=generator))
    state = [torch.randn(6, 32, generator=generator) for _ in range(2)]
    closing = torch.tensor([0, 3, 5])
    partner_rows = torch.tensor([5, -1, int(torch.randint(-1, 8, (), generator=generator))])
    kept_rows = torch.randperm(8, generator=generator)[:kept]
    assert_same("pool_pairs", [*state, ring, closing, partner_rows, torch.arange(kept), kept_rows])


# -- attention and indexer ------------------------------------------------------------------------


@given(tokens=st.integers(0, 4), seen=st.integers(1, 9), seed=st.integers(0, 99))
def test_attention_sees_the_rows_that_are_there(tokens, seen, seed):
    generator = torch.Generator().manual_seed(seed)
    window, selected = (
        record_of(kind, 64).encode(torch.randn(2, 8, 64, generator=generator))
        for kind in (RecordKind.FP8, RecordKind.FP4_FINE)
    )
    query = torch.randn(tokens, 3, 64, generator=generator).to(BF16)
    rows = torch.randint(0, 16, (tokens, seen), generator=generator)
    others = torch.randint(-1, 16, (tokens, 5), generator=generator)
    sink = torch.randn(3, generator=generator)
    arguments = [query, sink, 0.125, BF16, window, rows, int(RecordKind.FP8)]
    assert_same("sink_attention", copied(arguments), 1e-6)
    arguments += [selected, others, int(RecordKind.FP4_FINE)]
    assert_same("sink_attention", arguments, 1e-6)


@pytest.mark.parametrize("kind", [RecordKind.FP8, RecordKind.FP4_FINE, RecordKind.BFLOAT16])
@pytest.mark.parametrize("compute", ["reference", "form", "operation"])
def test_rows_that_nobody_sees_may_hold_anything(kind, compute):
    """Of a padded step, rows nobody stores and that are never NaN in an eager step are NaN here."""
    cache = record_of(kind, 64).encode(torch.randn(2, 8, 64))
    noise = cache.clone()
    noise[:, :3] = 255
    rows = torch.tensor([[3, 12, -1, -1], [-1, -1, 5, -1]])
    query, sink = torch.randn(2, 3, 64, dtype=BF16), torch.randn(3)
    attend = {
        "reference": REFERENCES["sink_attention"],
        "form": TORCH_FORMS["sink_attention"],
        "operation": torch.ops.vllm_deepinfer.sink_attention,
    }[compute]
    clean, noisy = (
        attend(query, sink, 0.125, F32, held, rows, int(kind), held, rows, int(kind))
        for held in (cache, noise)
    )
    assert clean.isfinite().all() and torch.equal(clean, noisy)


@pytest.mark.parametrize("tokens", [0, 1, 16, 17, 40])
@pytest.mark.parametrize("num_keys", [0, 1, 40])
def test_scores_are_the_same_per_token_and_per_request(tokens, num_keys, monkeypatch):
    """Two requests: up to sixteen tokens are scored one by one, more request by request."""
    monkeypatch.setattr(torch_forms, "SCORED_KEYS", 100)
    kind = RecordKind.FP4
    cache = record_of(kind, 64).encode(torch.randn(4, 16, 64))
    table = torch.tensor([[3, 1, 2], [0, 2, 1]], dtype=torch.int32)
    query, weights = torch.randn(tokens, 4, 64, dtype=BF16), torch.randn(tokens, 4)
    requests = torch.arange(tokens) % 2
    visible = torch.randint(0, num_keys + 1, (tokens,))
    assert_same(
        "index_scores", [query, weights, cache, int(kind), table, requests, visible, num_keys, True]
    )


scores_of_rows = st.lists(
    st.lists(st.sampled_from([-float("inf"), -1.0, 0.0, 0.5, 2.0]), min_size=13, max_size=13),
    max_size=4,
)


@given(rows=scores_of_rows, count=st.integers(1, 20), kept=st.integers(0, 2**5 - 1))
def test_selection_is_the_same_over_ties_and_hidden_rows(rows, count, kept):
    scores = torch.tensor(rows, dtype=F32).view(len(rows), 13)
    assert_same("select_rows", [scores.clone(), count])
    blocks = torch.tensor([bool(kept >> number & 1) for number in range(5)]).expand(len(rows), 5)
    assert_same("select_rows", [scores, count, blocks.contiguous(), 3])


@given(rows=scores_of_rows, count=st.integers(1, 6), newest=st.integers(0, 13))
def test_candidate_blocks_are_the_same_with_the_newest_always_kept(rows, count, newest):
    scores = torch.tensor(rows, dtype=F32).view(len(rows), 13)
    visible = torch.tensor([newest, 13, 0, 1][: len(rows)], dtype=torch.int64)
    assert_same("candidate_blocks", [scores, visible, 4, count])


# -- products -------------------------------------------------------------------------------------


def test_experts_that_nobody_chose_and_plain_rows_are_the_same():
    arguments = PROBES["fp4_experts"][0]()
    plain = torch.randn(TOKENS, arguments[0].shape[1])
    assert_same("fp4_experts", [plain, None, *arguments[2:-1], F32], 1e-5)
    elsewhere = torch.full_like(arguments[2], 5)
    assert_same("fp4_experts", [*arguments[:2], elsewhere, *arguments[3:]])


def test_plain_products_in_parts_are_the_whole_product(monkeypatch):
    monkeypatch.setattr(torch_forms, "ROWS_AT_ONCE", 7)
    x, weight = torch.randn(3, 64), torch.randn(40, 64, dtype=BF16)
    assert_same("plain_linear", [x, weight], 1e-5)
    assert_same("plain_linear", [x[:0], weight])

"""Properties of the torch reference: paging, selection, candidates, normalisation, routing.

Formulas are checked against the float64 oracle elsewhere; these are the cases it does not reach.
If one fails, two implementations may choose different rows or experts for the same scores.
"""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_deepinfer.ops import reference
from vllm_deepinfer.ops.records import Fp8Record, PlainRecord

# Few distinct values: most rows have ties, and some scores are minus infinity.
tied_scores = st.lists(
    st.lists(st.sampled_from([0.0, 1.0, 2.0, float("-inf")]), min_size=5, max_size=5),
    min_size=1,
    max_size=6,
)


@given(tied_scores, st.integers(1, 7))
def test_selection_takes_the_highest_and_the_lowest_index_among_equals(rows, count):
    chosen = reference.select_highest(torch.tensor(rows), count)
    for scores, selected in zip(rows, chosen.tolist(), strict=True):
        order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:count]
        wanted = {i for i in order if scores[i] > float("-inf")}
        assert {i for i, taken in enumerate(selected) if taken} == wanted


@given(tied_scores)
def test_selection_does_not_depend_on_the_other_rows(rows):
    together = reference.select_highest(torch.tensor(rows), 2)
    for number, row in enumerate(rows):
        alone = reference.select_highest(torch.tensor([row]), 2)
        assert torch.equal(together[number], alone[0])


@given(tied_scores)
def test_selected_rows_are_ascending_and_padded(rows):
    chosen = reference.select_highest(torch.tensor(rows), 4)
    listed = reference.selected_rows(chosen, 4)
    for selected, numbers in zip(chosen.tolist(), listed.tolist(), strict=True):
        wanted = [i for i, taken in enumerate(selected) if taken]
        assert numbers == wanted + [-1] * (4 - len(wanted))


@settings(max_examples=60)
@given(st.integers(1, 60), st.integers(1, 8), st.integers(0, 2**31))
def test_candidates_hold_the_newest_block_and_the_best_others(num_visible, num_blocks, seed):
    size, rows = 8, 64
    scores = torch.randn(1, rows, generator=torch.Generator().manual_seed(seed))
    scores[0, num_visible:] = float("-inf")
    kept = reference.candidate_blocks(scores, torch.tensor([num_visible]), size, num_blocks)[0]
    newest = (num_visible - 1) // size
    best = {
        block: scores[0, block * size : (block + 1) * size].max().item()
        for block in range(rows // size)
    }
    best[newest] = float("inf")
    order = sorted(best, key=lambda block: (-best[block], block))[:num_blocks]
    wanted = {block for block in order if best[block] > float("-inf")}
    assert set(kept.nonzero().flatten().tolist()) == wanted


def test_token_without_any_row_has_no_candidates():
    scores = torch.full((1, 16), float("-inf"))
    assert not reference.candidate_blocks(scores, torch.tensor([0]), 8, 2).any()


def test_rows_of_a_strided_pool_read_back_as_written():
    pool = torch.zeros(9 * 4096, dtype=torch.uint8)
    cache = pool.as_strided((9, 7, 528), (4096, 528, 1), 64)
    record = Fp8Record(512)
    rows = torch.tensor([8, 62, 30, 14])
    values = record.decode(record.encode(torch.randn(4, 512)))
    reference.store_rows(cache, rows, values, record)
    assert torch.equal(reference.load_rows(cache, rows, record), values)
    assert int((cache.reshape(63, 528) != 0).any(1).sum()) == 4
    table = rows.flip(0).expand(3, 4)
    for repeated in (False, True):
        loaded = reference.load_rows(cache, table, record, repeated)
        assert torch.equal(loaded, values.flip(0).expand(3, 4, 512))


def test_invisible_keys_and_the_sink_share_no_value():
    query, keys = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    visible = torch.tensor([[True, True, False, False, False], [True] * 5])
    garbage = keys.masked_fill(~visible.unsqueeze(-1), 1e30)
    sink = torch.zeros(3)
    first = reference.sink_attention(query, [reference.Keys(keys, visible)], sink, 0.3)
    second = reference.sink_attention(query, [reference.Keys(garbage, visible)], sink, 0.3)
    assert torch.equal(first, second)
    weights = torch.exp(query[0] @ keys[0, :2].T * 0.3)
    wanted = weights @ keys[0, :2] / (weights.sum(-1, keepdim=True) + 1.0)
    torch.testing.assert_close(first[0], wanted)


def test_keys_in_two_parts_attend_as_in_one():
    query, keys, visible = torch.randn(4, 3, 8), torch.randn(4, 6, 8), torch.rand(4, 6) > 0.3
    visible[:, 0] = True
    sink = torch.randn(3)
    whole = reference.sink_attention(query, [reference.Keys(keys, visible)], sink, 0.5)
    parts = [
        reference.Keys(keys[:, :2], visible[:, :2]),
        reference.Keys(keys[:, 2:], visible[:, 2:]),
    ]
    torch.testing.assert_close(reference.sink_attention(query, parts, sink, 0.5), whole)


def test_sinkhorn_leaves_rows_and_columns_summing_to_one():
    comb = torch.softmax(torch.randn(50, 4, 4), -1) + 1e-6
    done = reference.sinkhorn(comb.clone(), 1e-6, 20)
    torch.testing.assert_close(done.sum(-2), torch.ones(50, 4), atol=1e-4, rtol=0)
    torch.testing.assert_close(done.sum(-1), torch.ones(50, 4), atol=1e-4, rtol=0)


def test_zero_rows_normalise_to_zero():
    out = reference.rms_norm(torch.zeros(1, 8), torch.ones(8), 1e-20, torch.float32)
    assert torch.equal(out, torch.zeros(1, 8))


def test_rotation_undone_is_the_identity():
    x, angles = torch.randn(5, 2, 96), torch.randn(5, 32)
    turned = reference.rotate_pairs(x, angles.cos(), angles.sin(), 64)
    assert torch.equal(turned[..., :32], x[..., :32])
    back = reference.rotate_pairs(turned, angles.cos(), -angles.sin(), 64)
    torch.testing.assert_close(back, x)


def test_bias_chooses_experts_but_does_not_weigh_them():
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    experts, weights = reference.route(logits, torch.tensor([9.0, 9.0, 0.0, 0.0]), 2, True, 1.5)
    assert experts.tolist() == [[0, 1]]
    scores = torch.sqrt(torch.log1p(torch.exp(logits[0, :2])))
    torch.testing.assert_close(weights[0], 1.5 * scores / scores.sum())


def test_equal_experts_are_taken_from_the_lowest_number():
    experts, _ = reference.route(torch.zeros(3, 8), torch.zeros(8), 2, True, 1.0)
    assert experts.tolist() == [[0, 1]] * 3


def test_large_router_logits_stay_finite():
    _, weights = reference.route(torch.tensor([[1e4, -1e4, 50.0]]), torch.zeros(3), 2, True, 1.0)
    assert weights.isfinite().all()


def test_plain_records_keep_every_bit():
    rows = torch.randn(3, 16)
    record = PlainRecord(16, torch.float32)
    assert torch.equal(record.decode(record.encode(rows)), rows)

"""Scores and choices are the reference's exactly, with ties, padding and any number of rows.

If this fails, a token attends to other rows on a GPU than on a CPU, or than it would alone.
"""

from __future__ import annotations

import pytest
import torch

from vllm_deepinfer.ops import indexer, records, reference

WIDTH, HEADS, PER_BLOCK = 128, 32, 8


def scoring_case(tokens: int) -> tuple:
    record = records.Fp4Record(WIDTH)
    cache = torch.zeros(20, PER_BLOCK, record.num_bytes, dtype=torch.uint8)
    reference.store_rows(cache, torch.arange(160), torch.randn(160, WIDTH) * 3, record)
    query = torch.randn(tokens, HEADS, WIDTH).to(torch.bfloat16)
    weights = torch.randn(tokens, HEADS).to(torch.bfloat16).to(torch.float32)
    table = torch.randperm(20)[:18].view(2, 9).to(torch.int32)
    visible = torch.tensor([70, 0, 33, 65])[:tokens]
    return query, weights, cache, record.kind, table, torch.arange(tokens) % 2, visible, 70


@pytest.mark.parametrize("rounded", [True, False])
def test_scores_equal_the_reference(interpreter, rounded):
    arguments = (*scoring_case(4), rounded)
    found = interpreter.run("index_scores", *arguments)
    wanted = indexer._scores_reference(*arguments)
    if rounded:
        assert torch.equal(found, wanted)
    else:
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)


def scores_with_ties(tokens: int, count: int) -> torch.Tensor:
    """Few distinct values, both zeros, hidden rows, NaN in one row, and one of nothing."""
    values = torch.tensor([-2.0, -0.0, 0.0, 0.5, 3.0, float("-inf")])
    scores = values[torch.randint(0, 6, (tokens, count))]
    scores[0] = float("-inf")
    scores[1] = torch.randn(count)
    scores[2, 11::40], scores[2, 17] = float("nan"), -float("nan")
    return scores


def test_a_query_that_is_nan_scores_nan(interpreter):
    arguments = (*scoring_case(4), True)
    arguments[0][0, 3, 5] = float("nan")
    found, wanted = (
        interpreter.run("index_scores", *arguments),
        indexer._scores_reference(*arguments),
    )
    assert found[0].isnan().all()
    assert torch.equal(found[1:], wanted[1:]) and wanted[0].isnan().all()


@pytest.mark.parametrize("count", [1, 7, 40, 200])
def test_ties_go_to_the_lowest_row(interpreter, count):
    scores = scores_with_ties(5, 130)
    found = interpreter.run("select_rows", scores, count)
    assert torch.equal(found, indexer._select_reference(scores, count))


def test_rows_beyond_one_tile_are_chosen_alike(interpreter):
    scores = torch.randn(2, 2500).to(torch.bfloat16).to(torch.float32)
    found = interpreter.run("select_rows", scores, 512)
    assert torch.equal(found, indexer._select_reference(scores, 512))


@pytest.mark.parametrize(("block_rows", "count"), [(8, 3), (3, 1), (8, 100)])
def test_blocks_and_rows_within_them_equal_the_reference(interpreter, block_rows, count):
    scores = scores_with_ties(5, 130)
    visible = torch.tensor([0, 130, 1, 64, 99])
    kept = interpreter.run("candidate_blocks", scores, visible, block_rows, count)
    assert torch.equal(kept, indexer._blocks_reference(scores, visible, block_rows, count))
    found = interpreter.run("select_rows", scores, 10, kept, block_rows)
    assert torch.equal(found, indexer._select_reference(scores, 10, kept, block_rows))


def test_choice_is_the_same_alone(interpreter):
    scores = scores_with_ties(4, 100)
    batch = interpreter.run("select_rows", scores, 20)
    for token in range(4):
        assert torch.equal(
            interpreter.run("select_rows", scores[token : token + 1], 20)[0], batch[token]
        )

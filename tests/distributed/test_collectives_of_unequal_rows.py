"""The communicator gathers and sums rows of every number, dtype and shape, on two and three ranks.

Claim: all_gatherv joins the ranks' rows in rank order without changing a bit, reduce_scatterv gives
each rank its rows of the sum and leaves its input alone, zero rows included, and sizes that do not
fit are refused before any rank waits. If this breaks, expert parallelism computes with wrong
tokens, or hangs.
"""

from __future__ import annotations

import pytest
from distributed import rank_work


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("work", [rank_work.gathers, rank_work.scatters])
def test_rows_arrive_as_they_were(ranks, work, num_ranks):
    ranks.run(num_ranks, work, 5, 60)


def test_without_sizes_ranks_have_equally_many(ranks):
    ranks.run(3, rank_work.equal_sizes)


def test_sizes_that_do_not_fit_are_refused(ranks):
    for errors in ranks.run(2, rank_work.wrong_sizes):
        assert len(errors) == 5
        assert errors[0].startswith("sizes is [1, 1], but rank ")
        assert errors[0].endswith("has 2 rows instead of 1.")
        assert errors[1] == "sizes is [2], but there are 2 ranks."
        assert errors[3].endswith("has 2 rows instead of 4.")
        assert "3 rows cannot be divided equally among 2 ranks; give sizes." == errors[4]


def test_ranks_in_different_passes_notice(ranks):
    for error in ranks.run(2, rank_work.different_passes):
        assert error.endswith("run different forward passes at the same time: target, draft.")

"""What one rank decides for all, all learn; the start-up profile ends on the same size everywhere.

If this breaks, a rank runs a batch that no other takes part in, and the server never gets ready.
"""

from __future__ import annotations

from distributed import rank_work


def test_one_yes_is_everybodys(ranks):
    asked = [[False, False, False], [False, True, False], [True, True, True], [False, False, True]]
    assert ranks.run(3, rank_work.asks, asked) == [[False, True, True, True]] * 3


def test_a_slow_rank_ends_the_profile_of_all(ranks):
    """Alone, the fast rank would time every size."""
    sizes = ranks.run(2, rank_work.profiles, 0.001, 0.5)
    assert sizes[0] == sizes[1] == [1, 2, 4]

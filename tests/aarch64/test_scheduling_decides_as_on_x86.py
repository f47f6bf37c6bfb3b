"""Loops over requests, the draft table and the vote decide on ARM64, emulated, what they do on x86.

If this fails, a rank on an ARM host drafts, counts or votes otherwise than its peers.
"""

from __future__ import annotations

import pytest
from aarch64.conftest import recorded_counts


@pytest.mark.parametrize("operation", recorded_counts("scheduling"))
def test_loop_over_requests(replay, operation):
    tally = replay("scheduling")
    assert tally["calls"][operation] == recorded_counts("scheduling")[operation]
    assert not tally["different"].get(operation), tally["told"][operation]


def test_everything_exported_was_called(replay):
    assert replay("scheduling")["exports"] == sorted(recorded_counts("scheduling"))


@pytest.mark.parametrize("policy", ["vote", "draft_table"])
def test_policy(replay, policy):
    tally = replay("policies")
    assert tally["calls"][policy] == recorded_counts("policies")[policy] > 0
    assert not tally["different"].get(policy), tally["told"][policy]

"""Every kernel, built for ARM64 and emulated, leaves the bytes in memory that it leaves on x86.

Claim: on all calls that the tests of the kernels make, with 1 to 3 threads, all that the memory of
a call holds afterwards is the same, but for which NaN a NaN is. If this fails, a model on an ARM
host computes other logits, caches or selections than what is tested everywhere else.
"""

from __future__ import annotations

import pytest
from aarch64.conftest import recorded_counts

OF_THE_MACHINE = {"isa", "choose_isa", "available_isas"}


@pytest.mark.parametrize("operation", recorded_counts("kernels"))
def test_operation(replay, operation):
    tally = replay("kernels")
    assert tally["calls"][operation] == recorded_counts("kernels")[operation]
    assert not tally["different"].get(operation), tally["told"][operation]


def test_every_exported_function_was_called(replay):
    assert set(replay("kernels")["exports"]) == OF_THE_MACHINE | set(recorded_counts("kernels"))


def test_the_portable_version_alone_runs_there(replay):
    tally = replay("kernels")
    assert tally["machine"] == "aarch64"
    assert tally["isa"] == tally["available_isas"] == "portable"
    assert tally["refused"] == ["ValueError", "isa is 'avx2'; this machine can run: portable."]

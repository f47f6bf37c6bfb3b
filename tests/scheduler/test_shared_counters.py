"""Counters written in one process are read whole in another, and never from a foreign file.

If a test fails, ``/metrics`` shows numbers of another version or another server, or none.
"""

from __future__ import annotations

import stat

import pytest

from vllm_deepinfer.metrics.shared_counters import SharedCounters, counter_file

NAMES = ["offered_0", "offered_1", "accepted_0"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "counters"


def test_two_maps_of_one_file_agree(path):
    writer = SharedCounters(path, NAMES, create=True)
    reader = SharedCounters(path, NAMES, create=False)
    assert [reader[name] for name in NAMES] == [0, 0, 0]
    writer.add("offered_1")
    writer.add("offered_1", 0.25)
    writer.set("accepted_0", 7)
    assert [reader[name] for name in NAMES] == [0, 1.25, 7]


def test_a_new_file_starts_at_zero(path):
    SharedCounters(path, NAMES, create=True).add("offered_0", 5)
    assert SharedCounters(path, NAMES, create=True)["offered_0"] == 0


@pytest.mark.parametrize("names", [NAMES[:2], [*NAMES, "more"]])
def test_another_size_is_refused(path, names):
    SharedCounters(path, NAMES, create=True)
    with pytest.raises(ValueError, match=f"24 bytes, not the {8 * len(names)} of {len(names)}"):
        SharedCounters(path, names, create=False)


def test_a_missing_file_is_not_made_by_a_reader(path):
    with pytest.raises(FileNotFoundError):
        SharedCounters(path, NAMES, create=False)
    assert not path.exists()


def test_values_stay_readable_after_removal(path):
    writer = SharedCounters(path, NAMES, create=True)
    reader = SharedCounters(path, NAMES, create=False)
    writer.add("offered_0", 3)
    writer.remove()
    writer.remove()
    assert not path.exists()
    assert reader["offered_0"] == 3


def test_an_unknown_counter_is_an_error(path):
    with pytest.raises(KeyError):
        SharedCounters(path, NAMES, create=True).add("offered_9")


def test_only_the_owner_may_read_the_file(path):
    SharedCounters(path, NAMES, create=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_instances_and_ranks_have_files_of_their_own():
    files = {counter_file(instance, rank) for instance in ("a", "b") for rank in (0, 1)}
    assert len(files) == 4

"""The scheduler benchmark measures what it says, and both planners choose the same budget.

If this breaks, published times may be of another batch than they say. No speed is asserted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "scheduler.py"


def run(*argv: str) -> str:
    done = subprocess.run([sys.executable, SCRIPT, *argv], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_json_holds_every_measure(tmp_path):
    file = tmp_path / "results" / "scheduler.json"
    argv = ["--sequences", "3", "40", "--calls", "20", "--repeats", "2", "--json"]
    argv += ["--cases", "adaptive_and_vote_shortening", "--requests", "6", "--steps", "3"]
    printed = json.loads(run(*argv, "--out", str(file)))
    assert printed == json.loads(file.read_text(encoding="utf-8"))
    assert printed["settings"]["sequences"] == [3, 40]
    measures = printed["planner"]["measures"]
    assert [(entry["sequences"], entry["drafts"]) for entry in measures] == [(3, 5), (40, 5)]
    for entry in measures:
        assert set(entry["microseconds"]) == set(printed["planner"]["meaning"])
        for value in entry["microseconds"].values():
            assert len(value["runs"]) == 2
            assert 0 < min(value["runs"]) <= value["median"] <= max(value["runs"])
        assert entry["sequences"] < entry["budget"]["planner"] <= 6 * entry["sequences"]
    [(case, entry)] = printed["mixin"]["measures"].items()
    assert case == "adaptive_and_vote_shortening" and printed["settings"]["requests"] == 6
    for values in entry["microseconds"].values():
        assert set(values) == set(printed["mixin"]["meaning"])
        assert all(len(value["runs"]) == 2 for value in values.values())
        # The mixin's own time is part of its call; what it adds may be saved elsewhere.
        assert min(values["upstream_us"]["runs"]) > 0 and min(values["around_us"]["runs"]) > 0
    called = entry["microseconds"]
    for share, values in entry["share_of_schedule"].items():
        for run_, found in enumerate(values["runs"]):
            both = sum(called[call][f"{share}_us"]["runs"][run_] for call in called)
            assert found == pytest.approx(both / called["schedule"]["upstream_us"]["runs"][run_])


def test_bad_arguments_are_refused():
    refused = {
        "--calls is 0": ["--calls", "0"],
        "each must": ["--sequences", "0"],
        "--steps is 900": ["--steps", "900"],
        "invalid choice": ["--cases", "other"],
    }
    for told, argv in refused.items():
        done = subprocess.run([sys.executable, SCRIPT, *argv], capture_output=True, text=True)
        assert done.returncode == 2 and told in done.stderr

"""The scheduler benchmark measures what it says, and both planners choose the same budget.

If this breaks, published times may be of another batch than they say. No speed is asserted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "scheduler.py"


def run(*argv: str) -> str:
    done = subprocess.run([sys.executable, SCRIPT, *argv], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_json_holds_every_measure(tmp_path):
    file = tmp_path / "results" / "scheduler.json"
    argv = ["--sequences", "3", "40", "--calls", "20", "--repeats", "2", "--json"]
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


def test_bad_arguments_are_refused():
    for argv, told in ((["--calls", "0"], "--calls is 0"), (["--sequences", "0"], "each must")):
        done = subprocess.run([sys.executable, SCRIPT, *argv], capture_output=True, text=True)
        assert done.returncode == 2 and told in done.stderr

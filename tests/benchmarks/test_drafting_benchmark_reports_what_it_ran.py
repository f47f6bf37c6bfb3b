"""The drafting benchmark measures all its engines and its JSON is consistent with what was asked.

If this breaks, published gains may be of another acceptance or batch than they say. No speed is
asserted. Takes about 35 s.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "drafting.py"
ACCEPTANCES, BATCHES, REPEATS = (0.0, 0.5, 1.0), (1, 4), 2


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON on standard output and the one in the file."""
    file = tmp_path_factory.mktemp("benchmark") / "results" / "drafting.json"
    sizes = {"--repeats": REPEATS, "--prompt-tokens": 8, "--new-tokens": 61}
    argv = [str(item) for pair in sizes.items() for item in pair]
    argv += ["--tiny-new-tokens", "12", "--batches", *map(str, BATCHES)]
    argv += ["--acceptances", *map(str, ACCEPTANCES), "--json", "--out", str(file)]
    run = subprocess.run([sys.executable, SCRIPT, *argv], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout), json.loads(file.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def result(printed) -> dict[str, Any]:
    return printed[0]


def test_the_file_holds_what_is_printed(printed):
    assert printed[0] == printed[1]
    assert (printed[0]["benchmark"], printed[0]["format"]) == ("drafting", 1)


def test_every_engine_is_measured_as_asked(result):
    asked = {
        "stand_in_plain": [(None, batch) for batch in BATCHES],
        "stand_in_drafting": [(a, batch) for a in ACCEPTANCES for batch in BATCHES],
        "deepseek_v41_tiny_drafting": [(None, batch) for batch in BATCHES],
    }
    for name, measures in asked.items():
        found = result["engines"][name]["measures"]
        assert [(entry["acceptance"], entry["batch"]) for entry in found] == measures
        for entry in found:
            repeats = 1 if name.startswith("deepseek") else REPEATS
            for speed in (entry["steps_per_s"], entry["tokens_per_s"]):
                assert len(speed["values"]) == repeats
                assert speed["best"] == max(speed["values"]) > 0


def test_the_set_acceptance_is_the_one_found(result):
    for entry in result["engines"]["stand_in_drafting"]["measures"]:
        chance = entry["acceptance"]
        survivors = sum(chance**count for count in range(1, 6))
        tolerance = 0.0 if chance in (0.0, 1.0) else 0.35
        assert entry["tokens_per_block"] == pytest.approx(1 + survivors, abs=tolerance)
        assert entry["accepted_share"] * 5 + 1 == pytest.approx(entry["tokens_per_block"])


def test_the_drafters_share_of_a_step_adds_up(result):
    assert "drafting" not in result["engines"]["stand_in_plain"]["measures"][0]
    for name in ("stand_in_drafting", "deepseek_v41_tiny_drafting"):
        for entry in result["engines"][name]["measures"]:
            drafting = entry["drafting"]
            assert drafting["steps"] > 0 and min(drafting["parts_ms"].values()) > 0
            assert sum(drafting["parts_ms"].values()) == pytest.approx(drafting["draft_ms"])
            assert 0 < drafting["draft_share"] < 1


def test_ratios_compare_equal_batches(result):
    plain = {
        entry["batch"]: entry["tokens_per_s"]["best"]
        for entry in result["engines"]["stand_in_plain"]["measures"]
    }
    drafting = result["engines"]["stand_in_drafting"]["measures"]
    for ratio, entry in zip(result["tokens_per_s_ratio_to_plain"], drafting, strict=True):
        assert ratio["ratio"] == entry["tokens_per_s"]["best"] / plain[entry["batch"]]


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--acceptances", "1.5"], "--acceptances [1.5]"),
        (["--new-tokens", "11"], "--new-tokens is 11"),
        (["--batches", "100"], "--batches [100]"),
    ],
)
def test_settings_that_cannot_be_measured_are_refused_by_name(argv, named):
    run = subprocess.run([sys.executable, SCRIPT, *argv], capture_output=True, text=True)
    assert run.returncode == 2
    assert named in run.stderr

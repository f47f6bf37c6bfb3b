"""The benchmark runs both engines to the end and its JSON says what was run, consistently.

If this breaks, published numbers may come from the wrong platform, from unequal models, or from
other runs than the settings say. No speed is asserted. Takes about 40 s.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPT = BENCHMARKS / "serving.py"
BATCHES, NEW_TOKENS, PREFILL_TOKENS, REPEATS = (1, 3), 4, 16, 2
MEASURES = {"prefill_1x16", "decode_batch_1", "decode_batch_3"}
START_PARTS = {
    "interpreter_s",
    "import_vllm_s",
    "llm_constructor_s",
    "process_to_ready_s",
    "first_token_s",
}


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON on standard output and the one in the file."""
    file = tmp_path_factory.mktemp("benchmark") / "results" / "serving.json"
    sizes = {
        "--starts": 1,
        "--repeats": REPEATS,
        "--prompt-tokens": 8,
        "--new-tokens": NEW_TOKENS,
        "--prefill-tokens": PREFILL_TOKENS,
    }
    argv = [str(item) for pair in sizes.items() for item in pair]
    argv += ["--batches", *map(str, BATCHES), "--profile", "--json", "--out", str(file)]
    run = subprocess.run([sys.executable, SCRIPT, *argv], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout), json.loads(file.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def result(printed) -> dict[str, Any]:
    return printed[0]


def test_the_file_holds_what_is_printed(printed):
    assert printed[0] == printed[1]


def test_the_peer_ran_on_stock_vllm_and_ours_on_the_plugin(result):
    platforms = {name: engine["platform"] for name, engine in result["engines"].items()}
    assert platforms == {"deepseek_v41_tiny": "DeepInferCpuPlatform", "llama_peer": "CpuPlatform"}


def test_both_models_have_equally_many_parameters(result):
    ours, peer = (engine["num_parameters"] for engine in result["engines"].values())
    assert ours > 10_000_000
    assert abs(ours - peer) / ours < 0.005


def test_machine_and_settings_are_described(result):
    assert (result["benchmark"], result["format"]) == ("serving", 1)
    machine = result["machine"]
    assert machine["cpu_model"] and machine["usable_cores"] >= 1 and machine["memory_bytes"] > 0
    assert machine["versions"]["torch"] and machine["versions"]["vllm-deepinfer"]
    settings = result["settings"]
    assert (settings["threads"], settings["repeats"]) == (1, REPEATS)
    assert settings["batches"] == list(BATCHES)


@pytest.mark.parametrize("name", ["deepseek_v41_tiny", "llama_peer"])
def test_every_quantity_is_measured_as_often_as_asked(result, name):
    engine = result["engines"][name]
    assert len(engine["load_average_before"]) == 1
    assert set(engine["tokens_per_s"]) == MEASURES
    assert set(engine["start"]) == START_PARTS
    for speed in engine["tokens_per_s"].values():
        assert len(speed["values"]) == len(speed["cpu_share"]) == REPEATS
        assert speed["best"] == max(speed["values"]) > 0
        assert 0 <= speed["spread"] < 1
        assert speed["ms_per_step"] > 0 and speed["best_per_cpu_s"] > 0
    start = {part: value["best"] for part, value in engine["start"].items()}
    parts = start["interpreter_s"] + start["import_vllm_s"] + start["llm_constructor_s"]
    assert parts == pytest.approx(start["process_to_ready_s"])
    assert engine["peak_rss_bytes"]["best"] > 200 << 20  # torch alone is larger


def test_ratios_compare_the_best_runs(result):
    ours, peer = result["engines"].values()
    ratios = result["ratios_to_peer"]
    assert set(ratios) == MEASURES | {"process_to_ready_s", "peak_rss_bytes"}
    for measure in MEASURES:
        assert ratios[measure] == pytest.approx(
            ours["tokens_per_s"][measure]["best"] / peer["tokens_per_s"][measure]["best"]
        )


def test_the_profile_accounts_for_every_step(result):
    engines = result["engines"]
    assert "profile" not in engines["llama_peer"]
    profiles = engines["deepseek_v41_tiny"]["profile"]
    assert set(profiles) == MEASURES
    for profile in profiles.values():
        assert {group["group"] for group in profile["groups"]} == {"model", "runner", "engine"}
        for entries in (profile["groups"], profile["parts"]):
            assert sum(entry["share"] for entry in entries) == pytest.approx(1)
            assert sum(entry["ms"] for entry in entries) == pytest.approx(profile["step_ms"])
    # The step in which the requests got their first tokens is not measured. With asynchronous
    # scheduling, the next one has run by the time their first tokens are seen.
    assert profiles["decode_batch_3"]["steps"] in (NEW_TOKENS - 1, NEW_TOKENS - 2)
    assert profiles["prefill_1x16"]["steps"] == 1


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--threads", "0"], "--threads is 0"),
        (["--new-tokens", "1"], "--new-tokens is 1"),
        (["--batches", "100"], "--batches [100]"),
        (["--prefill-tokens", "5000"], "5001 tokens"),
    ],
)
def test_settings_that_cannot_be_measured_are_refused_by_name(argv, named):
    run = subprocess.run([sys.executable, SCRIPT, *argv], capture_output=True, text=True)
    assert run.returncode == 2
    assert named in run.stderr

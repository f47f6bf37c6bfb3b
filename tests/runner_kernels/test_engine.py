"""vLLM's V2 runner without Triton generates what its V1 runner generates.

Claim: a stock model on the V2 runner with torch kernels only gives the V1 runner's greedy tokens
(chunked prefill beside decoding, prefix-cache hits, penalties, biases, allowed and stop tokens),
its scores and ranks, and seeded samples that are the same alone and in a batch. If this breaks, no
request can be served on a CPU, whatever the kernel tests say.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("engine_without_triton.py")
GREEDY = ("greedy", "again", "scores", "penalties", "bias", "allowed", "length")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, dict]:
    folder = tmp_path_factory.mktemp("engine")
    environment = {**os.environ, "VLLM_PLUGINS": "", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    results = {}
    for runner in ("v1", "v2"):
        result = folder / f"{runner}.json"
        command = [sys.executable, str(SCRIPT), str(folder / "model"), str(result), runner]
        finished = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=600
        )
        assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-4000:]
        results[runner] = json.loads(result.read_text())
    return results


@pytest.mark.parametrize("name", GREEDY)
def test_greedy_tokens_are_those_of_the_other_runner(runs, name):
    tokens = {runner: [request["tokens"] for request in runs[runner][name]] for runner in runs}
    assert tokens["v2"] == tokens["v1"]


def test_options_change_what_is_generated(runs):
    # Otherwise the comparisons above would compare one and the same completion.
    completions = {name: str([r["tokens"] for r in runs["v2"][name]]) for name in GREEDY}
    assert completions["again"] == completions["scores"] == completions["greedy"]
    assert len(set(completions.values())) == len(GREEDY) - 2


def test_scores_and_ranks_are_those_of_the_other_runner(runs):
    for ours, theirs in zip(runs["v2"]["scores"], runs["v1"]["scores"], strict=True):
        assert len(ours["scores"]) == len(theirs["scores"]) > 12
        for our_position, their_position in zip(ours["scores"], theirs["scores"], strict=True):
            assert [(token, rank) for token, _, rank in our_position] == [
                (token, rank) for token, _, rank in their_position
            ]
            for (_, our_score, _), (_, their_score, _) in zip(
                our_position, their_position, strict=True
            ):
                # The same bfloat16 logits; the log-sum's terms are added in another order.
                assert our_score == pytest.approx(their_score, abs=1e-4)


def test_a_seed_gives_the_same_tokens_alone_and_in_a_batch(runs):
    assert runs["v2"]["alone"] == runs["v2"]["seeded"]
    assert runs["v2"]["seeded"] != runs["v2"]["greedy"]
    assert runs["v2"]["narrow"] != runs["v2"]["seeded"]

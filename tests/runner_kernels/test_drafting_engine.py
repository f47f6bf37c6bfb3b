"""vLLM's DSpark speculator and the coupled verification change nothing on the torch kernels.

Claim: a stock model with a stock drafter on the V2 runner, without Triton, gives the tokens, scores
and ranks it gives without a drafter, greedy or seeded (chunked prefill beside verification,
penalties, allowed and stop tokens), with drafts accepted and rejected at every position, and seeded
samples that are the same alone and in a batch. If this breaks, the kernels agree with Triton's but
not with how vLLM calls them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("engine_with_drafts.py")
SAME = ("greedy", "scores", "penalties", "allowed", "length", "narrow", "seeded")


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, dict]:
    folder = tmp_path_factory.mktemp("drafts")
    environment = {**os.environ, "VLLM_PLUGINS": "", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    found = {}
    for drafter in ("none", "dspark"):
        result = folder / f"{drafter}.json"
        command = [sys.executable, str(SCRIPT), str(folder / "models"), str(result), drafter]
        finished = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=600
        )
        assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-4000:]
        found[drafter] = json.loads(result.read_text())
    return found


def tokens(results: dict[str, dict], drafter: str, name: str) -> list[list[int]]:
    return [request["tokens"] for request in results[drafter]["runs"][name]]


@pytest.mark.parametrize("name", SAME)
def test_drafting_changes_no_token(results, name):
    assert tokens(results, "dspark", name) == tokens(results, "none", name)


def test_every_position_is_accepted_and_rejected(results):
    (accepted,) = results["dspark"]["accepted"]
    assert len(accepted) == 5
    assert all(before > after > 0 for before, after in zip(accepted, accepted[1:], strict=False))


def test_scores_and_ranks_are_those_without_drafts(results):
    ours, theirs = (results[drafter]["runs"]["scores"] for drafter in ("dspark", "none"))
    for our_request, their_request in zip(ours, theirs, strict=True):
        assert len(our_request["scores"]) == len(their_request["scores"]) > 16
        for our_position, their_position in zip(
            our_request["scores"], their_request["scores"], strict=True
        ):
            assert [(token, rank) for token, _, rank in our_position] == [
                (token, rank) for token, _, rank in their_position
            ]
            for (_, our_score, _), (_, their_score, _) in zip(
                our_position, their_position, strict=True
            ):
                # Attention over one row or several adds in another order.
                assert our_score == pytest.approx(their_score, abs=1e-4)


def test_a_seed_gives_the_same_tokens_alone_and_in_a_batch(results):
    assert tokens(results, "dspark", "alone") == tokens(results, "dspark", "seeded")
    assert tokens(results, "dspark", "seeded") != tokens(results, "dspark", "greedy")

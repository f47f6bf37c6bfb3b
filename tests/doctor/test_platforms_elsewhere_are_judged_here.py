"""Options for an SM100 or an Ascend 950 are judged on a machine that has neither.

Claim: the asked platform decides everything that vLLM asks of one, none of it the machine's own;
SM100's rules refuse there what they refuse on the GPU, and a model that no GPU can hold is an error
for either class. If this breaks, doctor says yes on a laptop to what ends on the GPU's machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from doctor.platform_elsewhere import DEVICE_BYTES

PROGRAM = Path(__file__).with_name("platform_elsewhere.py")
LENGTH = ["--max-model-len", "2048"]


def options(**values):
    return ["--additional-config", json.dumps({"deepinfer": values})]


EIGHT = ["--data-parallel-size", "8", "--enable-expert-parallel"]
OURS = options(model="deepinfer")
CASES = {
    "tiny": ["tiny", *LENGTH],
    "tiny, ours": ["tiny", *LENGTH, *OURS],
    "vllm's on one": ["published", *LENGTH],
    "vllm's on eight": ["published", *LENGTH, *EIGHT],
    "ours on one": ["published", *LENGTH, *OURS],
    "ours on eight": ["published", *LENGTH, *EIGHT, *OURS],
    "invariant": ["tiny", *LENGTH, *options(batch_invariant=True)],
}


def judged(platform, cases):
    environ = {name: value for name, value in os.environ.items() if name != "DEEPINFER_PLATFORM"}
    result = subprocess.run(
        [sys.executable, str(PROGRAM), platform, json.dumps(cases)],
        env=environ,
        capture_output=True,
        text=True,
    )
    lines = [x for x in result.stdout.splitlines() if x.startswith("RESULT ")]
    assert lines, result.stdout[-3000:] + result.stderr[-3000:]
    return json.loads(lines[0].removeprefix("RESULT "))


@pytest.fixture(scope="module")
def sm100():
    return judged("sm100", list(CASES.values()))


@pytest.fixture(scope="module")
def find(sm100):
    documents = dict(zip(CASES, sm100["documents"], strict=True))

    def found(name):
        document = documents[name]
        return document, {finding["check"]: finding for finding in document["findings"]}

    return found


def test_vllm_asks_the_asked_platform_alone(sm100):
    ascend = judged("ascend950", [CASES["tiny"]])
    assert sm100["others"] == ascend["others"] == []
    assert ascend["documents"][0]["ok"]


@pytest.mark.parametrize(
    ("name", "whose", "graphs"),
    [("tiny", "vLLM's", "FULL_AND_PIECEWISE"), ("tiny, ours", "vllm-deepinfer's", "NONE")],
)
def test_a_model_that_fits_is_judged_by_the_class_that_serves(find, name, whose, graphs):
    document, found = find(name)
    assert document["ok"] and "configuration" not in found
    assert "judged for 8 GPUs NVIDIA B200 of 180 GiB" in found["device"]["message"]
    features = {row["name"]: row["detail"] for row in document["model"]["features"]}
    assert features["model class"] == whose
    assert document["model"]["graphs"]["mode"] == graphs
    # vLLM's default for a GPU of 70 GiB or more; with an unknown size it is 2048.
    assert features["chunked prefill"] == "16384 tokens per step"


def test_a_model_that_does_not_fit_is_an_error_for_either_class(find):
    for name in ("vllm's on one", "ours on one"):
        document, found = find(name)
        assert not document["ok"] and found["memory_fits"]["level"] == "error", name
    rank = find("ours on one")[0]["model"]["memory"]["ranks"][0]
    experts = f"{rank['experts_bytes'] / (1 << 30):.2f} GiB"
    said = find("vllm's on one")[1]["memory_fits"]["message"]
    usable = 0.92 * DEVICE_BYTES / (1 << 30)
    assert f"experts alone take {experts}, and {usable:.2f} GiB" in said
    document, found = find("vllm's on eight")
    assert document["ok"] and found["memory_fits"]["level"] == "not_checked"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ours on eight", "--data-parallel-size is 8 (allowed: 1;"),
        ("invariant", "option batch_invariant is True (allowed: False;"),
    ],
)
def test_what_sm100_refuses_is_an_error_here(find, name, words):
    document, found = find(name)
    assert not document["ok"] and words in found["configuration"]["message"]

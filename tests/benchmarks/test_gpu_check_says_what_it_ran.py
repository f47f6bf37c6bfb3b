"""The check on a GPU says "ok" of nothing that did not run, and fails where a part fails.

Without a GPU it runs nothing and succeeds. Its parts for the model are tried on the host. If this
breaks, a broken kernel passes on the one day that a GPU is at hand.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPT = FOLDER / "gpu_check.py"
WITHOUT_GPU = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def check(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import gpu_check

    return gpu_check


def run_with(check, monkeypatch, tmp_path, source, timeout_s=60.0):
    """The verdict on a part whose process runs ``source``."""
    script = tmp_path / "part.py"
    script.write_text(source)
    monkeypatch.setattr(check, "PARTS", script)
    return check.run_part("kernels", timeout_s)


def test_nothing_runs_without_a_gpu(tmp_path):
    command = [sys.executable, str(SCRIPT), "--json", "--results", str(tmp_path / "results")]
    done = subprocess.run(command, capture_output=True, text=True, env=WITHOUT_GPU)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["gpu"] is None
    assert set(result["parts"]) == {"kernels", "model", "invariance", "engine", "speed"}
    for part in result["parts"].values():
        assert part["state"] == "not run" and "no CUDA device" in part["reason"]
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("source", "state", "reason"),
    [
        ("""print('RESULT {"state": "ok", "reason": "fine"}')""", "ok", "fine"),
        ("""print('RESULT {"state": "not run", "reason": "no vLLM"}')""", "not run", "no vLLM"),
        ("raise SystemExit(3)", "failed", "its process ended with 3"),
        ("print('nothing')", "failed", "its process ended with 0"),
        ("""print('RESULT {"state": "ok"}'); import os; os.abort()""", "failed", "ended with -6"),
    ],
)
def test_verdict_is_what_the_part_ended_in(check, monkeypatch, tmp_path, source, state, reason):
    found = run_with(check, monkeypatch, tmp_path, source)
    assert found["state"] == state and reason in found["reason"]


def test_part_that_hangs_fails(check, monkeypatch, tmp_path):
    found = run_with(check, monkeypatch, tmp_path, "import time; time.sleep(60)", 0.5)
    assert found["state"] == "failed" and "more than" in found["reason"]


def test_one_failed_part_fails_the_whole(check):
    def status(*states):
        parts = {str(i): check.verdict(state) for i, state in enumerate(states)}
        return check.exit_status({"parts": parts})

    assert status("ok", "not run") == 0
    assert status("ok", "failed", "not run") == 1


PARTS_ON_HOST = """
import json, sys
sys.path[:0] = [{folder!r}]
import gpu_parts
from vllm_deepinfer.ops import triton

def reference(name):
    from triton_kernels.model_run import reference_of
    original = reference_of(name)
    if name == {wrong!r}:
        return lambda *a, **k: original(*a, **k) * 1.01
    return original

triton.launcher = reference
print("RESULT", json.dumps(gpu_parts.PARTS[{part!r}]("cpu")))
"""


def on_host(part, wrong=""):
    """A part with the host for a GPU and references for kernels, one of them off by 1 %."""
    source = PARTS_ON_HOST.format(folder=str(FOLDER), wrong=wrong, part=part)
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "DEEPINFER_REFERENCE_OPS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, env=environ
    )
    lines = [x for x in done.stdout.splitlines() if x.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    return json.loads(lines[0].removeprefix("RESULT "))


def test_kernels_that_equal_their_references_pass_and_all_are_reached():
    found = on_host("kernels")
    assert found["state"] == "ok", found
    assert "not reached" not in found["reason"]


def test_one_kernel_that_is_off_is_named():
    found = on_host("kernels", wrong="fp8_linear")
    assert found["state"] == "failed"
    assert found["reason"] == "differ from their reference: fp8_linear"

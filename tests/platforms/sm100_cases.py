"""The cases that are configured for SM100, and what comes of them in processes of ``sm100_host``.

One process a version of vLLM serves all test modules: it imports vLLM and inspects its model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from upstream_sources import FETCHED_TAGS, fetched_folder

ROOT = Path(__file__).parents[2]
HOST = Path(__file__).with_name("sm100_host.py")
SOURCES = {"installed": None, **{tag: fetched_folder(tag) for tag in FETCHED_TAGS}}
TINY = str(ROOT / "tests" / "data" / "v41_tiny")
DRAFTING = {"method": "dspark", "num_speculative_tokens": 3}
PREPARED = {**DRAFTING, "enable_adaptive_verification": True}


def case(drafting=None, environ=None, capability=None, model=TINY, arguments=None):
    found = {"model": model, **(arguments or {})}
    if drafting:
        found["speculative_config"] = drafting
    if environ:
        found["environ"] = environ
    if capability:
        found["capability"] = capability
    return found


def with_options(made, **options):
    made["additional_config"] = {"deepinfer": options}
    return made


EAGER = {"enforce_eager": True}
CASES = {
    "auto": case(),
    "vllm": with_options(case(), model="vllm"),
    "ours": with_options(case(), model="deepinfer"),
    "drafting": case(DRAFTING),
    "ours drafting": with_options(case(DRAFTING), model="deepinfer"),
    "adaptive": with_options(case(DRAFTING), verification="adaptive"),
    "adaptive eager": with_options(case(DRAFTING, arguments=EAGER), verification="adaptive"),
    "adaptive ours": with_options(case(DRAFTING), verification="adaptive", model="deepinfer"),
    "compatible": with_options(case(DRAFTING), verification="compatible"),
    "profiled by vllm": case(PREPARED),
    "vote": with_options(case(), prefill_vote="slo"),
    "sync": case(arguments={"async_scheduling": False}),
    "invariant": with_options(case(), model="deepinfer", batch_invariant=True),
    "no longer invariant": with_options(case(), model="deepinfer"),
    "block size": with_options(case(arguments={"block_size": 64}), model="deepinfer"),
    "sm90": case(capability=(9, 0), environ={"DEEPINFER_PLATFORM": "sm100"}),
}
REFUSED = {
    "sm90 by accident": (case(capability=(9, 0)), "the GPU has compute capability 9.0 (allowed:"),
    "sm80": (
        case(capability=(8, 0), environ={"DEEPINFER_PLATFORM": "sm100"}),
        "the GPU has compute capability 8.0 (allowed: 10.x; 9.x for testing",
    ),
    "invariant vllm": (
        with_options(case(), batch_invariant=True),
        "option batch_invariant is True (allowed: False;",
    ),
    "vllm's switch alone": (
        with_options(case(environ={"VLLM_BATCH_INVARIANT": "1"}), model="deepinfer"),
        "VLLM_BATCH_INVARIANT is 1 (allowed: unset",
    ),
    "switch to the contrary": (
        with_options(
            case(environ={"VLLM_BATCH_INVARIANT": "0"}), model="deepinfer", batch_invariant=True
        ),
        "batch_invariant is true while VLLM_BATCH_INVARIANT=0",
    ),
    "two planners": (
        with_options(case(PREPARED), verification="compatible"),
        "enable_adaptive_verification with verification compatible is True",
    ),
    "vllm's planner without graphs": (
        with_options(case(PREPARED), model="deepinfer"),
        "--speculative-config enable_adaptive_verification is True (allowed: False;",
    ),
    "records nobody could keep": (
        with_options(case(DRAFTING), verification="adaptive", draft_records="/nowhere"),
        "draft_records is '/nowhere' (allowed: '')",
    ),
    "quantization off": (
        with_options(case(), quantization="off"),
        "option quantization is off (allowed: stored;",
    ),
    "calibration": (
        with_options(case(DRAFTING), confidence_calibration="/nowhere"),
        "option confidence_calibration is /nowhere",
    ),
    "tensor parallel": (
        with_options(case(arguments={"tensor_parallel_size": 2}), model="deepinfer"),
        "--tensor-parallel-size is 2 (allowed: 1;",
    ),
    "data parallel": (
        with_options(
            case(arguments={"data_parallel_size": 2, "enable_expert_parallel": True}),
            model="deepinfer",
        ),
        "--data-parallel-size is 2 (allowed: 1; this package's class runs on one GPU",
    ),
    "pipeline": (
        with_options(case(arguments={"pipeline_parallel_size": 2}), prefill_vote="slo"),
        "--pipeline-parallel-size with prefill_vote or verification is 2 (allowed: 1;",
    ),
    "worker": (
        case(arguments={"worker_cls": "vllm.v1.worker.gpu_worker.Worker"}),
        "--worker-cls is vllm.v1.worker.gpu_worker.Worker (allowed: auto,",
    ),
    "first runner": (
        case(environ={"VLLM_USE_V2_MODEL_RUNNER": "0"}),
        "VLLM_USE_V2_MODEL_RUNNER (what it chooses) is False (allowed: True;",
    ),
    "unknown option": (with_options(case(), modell="vllm"), "unknown option(s) modell"),
}


def found_by(version: str) -> dict[str, Any]:
    """Under "cases" what was decided for each of both tables, by name; "workers" of our class.

    Raises:
        AssertionError: the process printed nothing; for every test that asks, of one process.
    """
    outcome = _outcome(version)
    assert isinstance(outcome, dict), outcome
    return outcome


@cache
def _outcome(version: str) -> dict[str, Any] | str:
    every = {**CASES, **{name: made for name, (made, _) in REFUSED.items()}}
    order = {"cases": list(every.values()), "workers_of": CASES["ours"]}
    try:
        found = run(order, SOURCES[version])
    except AssertionError as error:
        return str(error)
    return {**found, "cases": dict(zip(every, found["cases"], strict=True))}


def run(order: dict[str, Any], source: Path | None = None) -> dict[str, Any]:
    """What ``sm100_host`` prints for an order, with the Python of ``source`` before the installed.

    Raises:
        AssertionError: it printed nothing; shows the end of what it said.
    """
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in (
        "DEEPINFER_PLATFORM",
        "VLLM_BATCH_INVARIANT",
        "VLLM_USE_V2_MODEL_RUNNER",
        "CUBLAS_WORKSPACE_CONFIG",
        "CUBLASLT_WORKSPACE_SIZE",
    ):
        environ.pop(name, None)
    if source is not None:
        environ["PYTHONPATH"] = str(source)
    result = subprocess.run(
        [sys.executable, str(HOST), json.dumps(order)],
        env=environ,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    lines = [x for x in result.stdout.splitlines() if x.startswith("RESULT ")]
    assert lines, result.stdout[-3000:] + result.stderr[-3000:]
    return json.loads(lines[0].removeprefix("RESULT "))

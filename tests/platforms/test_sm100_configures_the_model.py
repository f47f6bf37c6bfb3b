"""The SM100 platform decides by the options, and leaves everything it does not decide to vLLM.

Claims: `model` chooses whose class runs and the whole configuration follows it; one planner at most
trims drafts, and which one is said; what cannot hold is refused by name; other models and other
hardware see stock vLLM; on 0.32.0 and on 0.33.0, whose Python is put before the installed one.
No GPU: vLLM's CUDA platform runs for real, its GPUs are told (`sm100_host.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOST = Path(__file__).with_name("sm100_host.py")
UPSTREAM = ROOT / ".cache" / "vllm-0.33.0-src"
TINY = str(ROOT / "tests" / "data" / "v41_tiny")
WORKER = "vllm_deepinfer.worker.sm100.DeepInferSm100Worker"
ASYNC = "vllm_deepinfer.scheduler.mixin.DeepInferAsyncScheduler"
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


def run(cases, source=None, stock=False):
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in ("DEEPINFER_PLATFORM", "VLLM_BATCH_INVARIANT", "VLLM_USE_V2_MODEL_RUNNER"):
        environ.pop(name, None)
    if source is not None:
        environ["PYTHONPATH"] = str(source)
    order = json.dumps({"cases": cases, "stock": stock})
    result = subprocess.run(
        [sys.executable, str(HOST), order], env=environ, capture_output=True, text=True, cwd=ROOT
    )
    lines = [x for x in result.stdout.splitlines() if x.startswith("RESULT ")]
    assert lines, result.stdout[-3000:] + result.stderr[-3000:]
    return json.loads(lines[0].removeprefix("RESULT "))


@pytest.fixture(scope="module", params=["installed", "0.33.0"])
def results(request):
    """What was decided for every case, by one process per version of vLLM."""
    every = {**CASES, **{name: made for name, (made, _) in REFUSED.items()}}
    found = run(list(every.values()), UPSTREAM if request.param == "0.33.0" else None)
    return dict(zip(every, found, strict=True))


@pytest.fixture
def decided(results):
    def find(name):
        assert "error" not in results[name], results[name]
        return results[name]

    return find


def test_automatic_choice_is_vllms_class_as_vllm_configures_it(decided):
    found = decided("auto")
    assert found["multimodal"] and found["scheduler_multimodal"] and found["info_multimodal"]
    assert found["quantization"] == "deepseek_v4_fp8"
    assert found["quant_class"] == "DeepseekV4FP8Config"
    assert found["graphs"] == "FULL_AND_PIECEWISE"
    assert (found["worker"], found["scheduler"], found["v2"]) == (WORKER, ASYNC, True)
    assert found["grammar"] == "xgrammar"
    assert "vLLM's class of the model (option model auto)" in found["said"][0]
    explicit = decided("vllm")
    del explicit["text"], explicit["said"]
    assert explicit == {key: found[key] for key in explicit}


def test_this_packages_class_is_described_throughout(decided):
    found = decided("ours drafting")
    assert not (found["multimodal"] or found["scheduler_multimodal"] or found["info_multimodal"])
    assert found["quantization"] == found["draft_quantization"] == "deepseek_v41_stored"
    assert found["quant_class"] == "DeepseekV41StoredConfig"
    assert (found["graphs"], found["block"]) == ("NONE", 128)
    assert decided("block size")["block"] == 64
    assert "this package's class" in found["said"][0]


def test_scheduling_of_either_class_is_this_packages(decided):
    for name in CASES:
        scheduler = decided(name)["scheduler"]
        assert scheduler == (ASYNC if decided(name)["async"] else ASYNC.replace("Async", ""))
    assert not decided("sync")["async"]
    assert decided("vote")["parts"] == ["voting"]
    assert decided("drafting")["parts"] == decided("ours drafting")["parts"] == ["ledger"]


def test_one_planner_at_most_trims_drafts(decided):
    for name in CASES:
        found = decided(name)
        assert not (found["vllm_plans"] and {"ledger", "verification"} & set(found["parts"])), name


@pytest.mark.parametrize(
    ("name", "vllm_plans", "planned_by_us", "clause"),
    [
        ("drafting", False, False, "all drafts verified"),
        ("adaptive", True, False, "by vLLM in the worker with costs measured as it serves"),
        ("adaptive eager", False, True, "by the scheduler (no full CUDA graphs)"),
        ("adaptive ours", False, True, "by the scheduler (this package's class runs without"),
        ("compatible", False, True, "by the scheduler (verification compatible)"),
        ("profiled by vllm", True, False, "by vLLM with the costs of its start-up profile"),
    ],
)
def test_planner_is_the_one_that_can_run_and_is_named(
    decided, name, vllm_plans, planned_by_us, clause
):
    found = decided(name)
    assert found["vllm_plans"] is vllm_plans
    assert ("verification" in found["parts"]) is planned_by_us
    assert clause in found["said"][0]


def test_hook_is_idempotent_and_its_result_travels_to_other_processes(decided):
    for name in CASES:
        found = dict(decided(name))
        again = found["again"]
        assert again == {key: found[key] for key in again}, name


def test_switch_of_an_engine_does_not_outlive_it(decided):
    assert decided("invariant")["batch_invariant"] == "1"
    assert decided("no longer invariant")["batch_invariant"] is None


def test_sm90_is_marked_as_for_testing(decided):
    assert "SM90 (compute capability 9.0), for testing only" in decided("sm90")["said"][0]


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_hold_is_refused_by_name(results, name):
    _, sentence = REFUSED[name]
    assert sentence in results[name].get("error", "accepted")


def test_other_models_keep_stock_behaviour(llama_dir):
    llama = case(model=str(llama_dir))
    draft = case(model=str(llama_dir), arguments={"max_model_len": 512, **EAGER})
    (mine, eager), (stock, stock_eager) = (
        run([llama, draft], stock=stock) for stock in (False, True)
    )
    assert "error" not in mine, mine
    assert mine["worker"] == "vllm.v1.worker.gpu_worker.Worker"
    assert mine.pop("parts") == eager.pop("parts") == []
    assert mine["text"] == stock["text"] and eager["text"] == stock_eager["text"]
    assert mine == stock and eager == stock_eager

"""The SM100 platform decides by the options, and leaves everything it does not decide to vLLM.

Claims: `model` chooses whose class runs and the whole configuration follows it; one planner at most
trims drafts, and which one is said; what cannot hold is refused by name; other models and other
hardware see stock vLLM; on 0.32.0 and on 0.33.0, whose Python is put before the installed one.
No GPU: vLLM's CUDA platform runs for real, its GPUs are told (`sm100_host.py`).
"""

from __future__ import annotations

import pytest
from platforms.sm100_cases import CASES, EAGER, REFUSED, SOURCES, case, found_by, run

WORKER = "vllm_deepinfer.worker.sm100.DeepInferSm100Worker"
ASYNC = "vllm_deepinfer.scheduler.mixin.DeepInferAsyncScheduler"


@pytest.fixture(params=SOURCES)
def results(request):
    """What was decided for every case, with each version of vLLM."""
    return found_by(request.param)["cases"]


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
    assert explicit["again"] == {key: found[key] for key in explicit["again"]}


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
    short = case(model=str(llama_dir), arguments={"max_model_len": 512, **EAGER})
    (mine, eager), (stock, stock_eager) = (
        run({"cases": [llama, short], "stock": stock})["cases"] for stock in (False, True)
    )
    assert "error" not in mine, mine
    assert mine["worker"] == "vllm.v1.worker.gpu_worker.Worker"
    assert mine.pop("parts") == eager.pop("parts") == []
    assert mine["text"] == stock["text"] and eager["text"] == stock_eager["text"]
    assert mine == stock and eager == stock_eager

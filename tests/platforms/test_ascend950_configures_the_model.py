"""`vllm serve` on an Ascend 950 gets this package's worker, scheduler, graphs and refusals.

Claim: engine arguments become a configuration for device npu on the V2 runner, with graphs of whole
decode steps by default and the user's choices kept; what cannot hold, and every other model, is one
sentence; torch_npu is not imported by any of it, and a worker's variables are not set before there
is a worker. If this breaks, vLLM starts another worker than this package's, or touches the device
in the wrong process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from vllm.utils.import_utils import resolve_obj_by_qualname

HERE = Path(__file__).parent
V41_TINY = HERE.parent / "data" / "v41_tiny"
TIMEOUT_S = 300
UNSET = (
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
    "VLLM_WORKER_MULTIPROC_METHOD",
    "HCCL_BUFFSIZE",
    "PYTORCH_NPU_ALLOC_CONF",
)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    from platforms.conftest import LLAMA

    llama = tmp_path_factory.mktemp("llama")
    (llama / "config.json").write_text(json.dumps(LLAMA))
    script = HERE / "ascend950_configurations.py"
    environ = {
        **{name: value for name, value in os.environ.items() if name not in UNSET},
        "DEEPINFER_PLATFORM": "ascend950",
        "DEEPINFER_NPU_MODULE": script.stem,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH")))),
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    done = subprocess.run(
        [sys.executable, str(script), str(V41_TINY), str(llama)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_platform_is_ours_and_touches_no_device(found):
    assert found["platform"] == "DeepInferAscend950Platform"
    assert found["torch_npu"] is False and found["capability"] is None
    assert found["default"]["device"] == "npu"
    assert resolve_obj_by_qualname(found["communicator"]).__name__ == "DeepInferNpuCommunicator"


def test_model_gets_our_worker_scheduler_and_runner(found):
    default = found["default"]
    assert default["worker"] == "vllm_deepinfer.worker.ascend950.DeepInferAscend950Worker"
    assert default["scheduler"].endswith(".DeepInferAsyncScheduler")
    assert found["synchronous"]["scheduler"].endswith(".DeepInferScheduler")
    assert default["v2"] and default["hybrid"]
    assert default["block_size"] == 128 and found["block"]["block_size"] == 64


def test_decode_steps_are_captured_in_sizes_that_count_drafts(found):
    assert found["default"]["graphs"] == "FULL_DECODE_ONLY"
    assert found["default"]["mode"] == "NONE"
    assert found["default"]["sizes"] == [1, 2, 4, 5]
    assert found["drafting"]["sizes"] == [6, 12, 24, 30]


def test_choices_of_the_user_are_kept(found):
    assert found["own sizes"]["sizes"] == [2, 8]
    for case in ("eager", "no graphs"):
        assert (found[case]["graphs"], found[case]["sizes"]) == ("NONE", []), case


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("piecewise", "cudagraph_mode is FULL_AND_PIECEWISE (allowed: NONE, FULL_DECODE_ONLY"),
        ("two ranks of heads", "--tensor-parallel-size is 2 (allowed: 1"),
        ("invariant", "batch_invariant is true"),
        ("llama", "serves DeepseekV41ForCausalLM only, not LlamaForCausalLM"),
    ],
)
def test_what_cannot_hold_is_one_sentence(found, case, words):
    assert words in found[case]["error"]


def test_variables_of_this_process_are_vllms_and_those_of_a_worker_are_not_set(found):
    assert found["before"] == dict.fromkeys(UNSET)
    variables = found["variables"]
    assert variables["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"] == "3000"
    assert variables["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert variables["HCCL_BUFFSIZE"] is None and variables["PYTORCH_NPU_ALLOC_CONF"] is None

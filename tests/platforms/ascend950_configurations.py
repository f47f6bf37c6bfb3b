"""Run by test_ascend950_configures_the_model.py: what the platform makes of engine arguments.

python ascend950_configurations.py V41_FOLDER LLAMA_FOLDER

The device is this module itself under the name of `DEEPINFER_NPU_MODULE`: a name and no memory.
"""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path

import torch


def register_device() -> None:
    """What importing torch_npu does for a configuration: torch knows the name."""
    if torch._C._get_privateuse1_backend_name() != "npu":
        torch.utils.rename_privateuse1_backend("npu")
    if not hasattr(torch, "npu"):
        made = types.ModuleType("torch.npu")
        made.is_available = lambda: True
        torch._register_device_module("npu", made)


register_device()

CASES = {
    "default": {},
    "drafting": {"speculative_config": {"method": "dspark", "num_speculative_tokens": 5}},
    "own sizes": {"compilation_config": {"cudagraph_capture_sizes": [2, 8]}},
    "eager": {"enforce_eager": True},
    "no graphs": {"compilation_config": {"cudagraph_mode": "NONE"}},
    "synchronous": {"async_scheduling": False},
    "block": {"block_size": 64},
    "piecewise": {"compilation_config": {"cudagraph_mode": "FULL_AND_PIECEWISE"}},
    "two ranks of heads": {"tensor_parallel_size": 2},
    "invariant": {"additional_config": {"deepinfer": {"batch_invariant": True}}},
}


def described(folder: str, arguments: dict) -> dict:
    from vllm.engine.arg_utils import EngineArgs

    settings = {"skip_tokenizer_init": True, "max_num_seqs": 5, "max_model_len": 512}
    try:
        config = EngineArgs(model=folder, **{**settings, **arguments}).create_engine_config()
    except Exception as error:  # noqa: BLE001 - which one, and what it says, is the result
        return {"error": str(error)}
    return {
        "worker": config.parallel_config.worker_cls,
        "scheduler": config.scheduler_config.scheduler_cls,
        "block_size": config.cache_config.block_size,
        "mode": config.compilation_config.mode.name,
        "graphs": config.compilation_config.cudagraph_mode.name,
        "sizes": config.compilation_config.cudagraph_capture_sizes,
        "v2": config.use_v2_model_runner,
        "device": str(config.device_config.device),
        "hybrid": not config.scheduler_config.disable_hybrid_kv_cache_manager,
    }


def main() -> None:
    v41, llama = sys.argv[1:]
    from vllm.platforms import current_platform

    before = {name: os.environ.get(name) for name in _VARIABLES}
    print(
        json.dumps(
            {
                "platform": type(current_platform).__name__,
                "before": before,
                "llama": described(llama, {}),
                **{name: described(v41, arguments) for name, arguments in CASES.items()},
                "variables": {name: os.environ.get(name) for name in _VARIABLES},
                "torch_npu": "torch_npu" in sys.modules,
                "communicator": current_platform.get_device_communicator_cls(),
                "capability": current_platform.get_device_capability(),
            }
        )
    )


_VARIABLES = (
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
    "VLLM_WORKER_MULTIPROC_METHOD",
    "HCCL_BUFFSIZE",
    "PYTORCH_NPU_ALLOC_CONF",
)

if __name__ == "__main__":
    assert Path(sys.argv[1]).is_dir()
    main()

"""The SM100 platform on a machine without a GPU, in a process of its own.

    python sm100_host.py '{"cases": [{"model": DIR, ...engine arguments}]}'

vLLM's CUDA platform is the real one; its GPUs are told, and where the installed vLLM is not a build
for CUDA, its extensions are empty modules. Prints a line ``RESULT {...}``: under "cases" what was
decided for each, or the error it ended in. With ``"stock": true`` vLLM's own platform decides. With
``"workers_of": {...engine arguments}`` there is also what workers of such an engine find, see
``sm100_workers``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

CUDA_EXTENSIONS = ("vllm._C_stable_libtorch", "vllm.vllm_flash_attn")
# What vLLM asks of its extension when its modules are imported: whether kernels would run.
QUESTIONS = (
    "cutlass_scaled_mm_supports_fp8",
    "cutlass_scaled_mm_supports_block_fp8",
    "cutlass_scaled_mm_supports_fp4",
    "cutlass_group_gemm_supported",
)
STOCK = "vllm.platforms.cuda.CudaPlatform"
_kept: list[Any] = []


def is_cuda_build() -> bool:
    """Whether the vLLM that would be imported brings its extension for CUDA."""
    folders = importlib.util.find_spec("vllm").submodule_search_locations
    return any(any(Path(folder).glob("_C_stable_libtorch*.so")) for folder in folders)


def stand_in_for_extensions() -> None:
    import torch

    library = torch.library.Library("_C", "FRAGMENT")
    for question in QUESTIONS:
        library.define(f"{question}(int capability) -> bool")
        library.impl(question, lambda capability: True, "CompositeExplicitAutograd")
    _kept.append(library)
    for name in CUDA_EXTENSIONS:
        sys.modules[name] = module = ModuleType(name)
        module.__getattr__ = lambda attribute: None


def become_gpu_host(stock: bool = False) -> None:
    """Make vLLM take this machine for one with eight B200s. Call it before vLLM is imported."""
    from vllm_deepinfer.platforms import detect

    if not is_cuda_build():
        stand_in_for_extensions()
    qualname = STOCK if stock else detect.PLATFORM_CLASSES["sm100"]
    detect.detect = lambda *_: detect.Detection("sm100", qualname, "a test")
    import vllm.config.vllm
    from vllm.platforms import current_platform

    # Triton is there, but has no backend for a machine without a GPU.
    vllm.config.vllm.HAS_TRITON = True
    platform = type(current_platform)
    platform.get_device_name = classmethod(lambda cls, device_id=0: "a stand-in GPU")
    platform.get_device_total_memory = classmethod(lambda cls, device_id=0: 180 << 30)
    platform.num_compute_units = classmethod(lambda cls, device_id=0: 148)
    platform.device_count = classmethod(lambda cls: 8)
    set_capability((10, 0))


def set_capability(capability: tuple[int, int]) -> None:
    from vllm.platforms import current_platform
    from vllm.platforms.interface import DeviceCapability

    found = DeviceCapability(*capability)
    type(current_platform).get_device_capability = classmethod(lambda cls, device_id=0: found)


def configure(arguments: dict[str, Any]) -> Any:
    """The configuration that `vllm serve` makes of engine arguments."""
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(skip_tokenizer_init=True, **arguments).create_engine_config()


def facts(config: Any) -> dict[str, Any]:
    """What this platform decides, as plain values."""
    model, speculative = config.model_config, config.speculative_config
    draft = speculative and speculative.draft_model_config
    return {
        "worker": config.parallel_config.worker_cls,
        "scheduler": config.scheduler_config.scheduler_cls,
        "async": config.scheduler_config.async_scheduling,
        "v2": config.use_v2_model_runner,
        "multimodal": model.is_multimodal_model,
        "scheduler_multimodal": config.scheduler_config.is_multimodal_model,
        "info_multimodal": model._model_info.supports_multimodal,
        "quantization": model.quantization,
        "quant_class": type(config.quant_config).__name__,
        "draft_quantization": draft and draft.quantization,
        "graphs": config.compilation_config.cudagraph_mode.name,
        "block": config.cache_config.block_size,
        "vllm_plans": speculative and speculative.enable_adaptive_verification,
        "grammar": config.structured_outputs_config.backend,
        "batch_invariant": os.environ.get("VLLM_BATCH_INVARIANT"),
    }


def scheduler_parts(config: Any) -> list[str]:
    """What this package's scheduler of this configuration would carry."""
    from vllm_deepinfer.scheduler.parts import make_parts

    parts = make_parts(config, bool(config.scheduler_config.async_scheduling))
    present = [name for name in ("ledger", "verification", "voting") if getattr(parts, name)]
    parts.close()
    return present


def said(messages: list[str]) -> list[str]:
    return [message for message in messages if message.startswith("vllm-deepinfer ")]


def run_case(case: dict[str, Any], messages: list[str], stock: bool) -> dict[str, Any]:
    from vllm.platforms import current_platform

    environ, capability = case.pop("environ", {}), case.pop("capability", (10, 0))
    set_capability(capability)
    os.environ.update(environ)
    messages.clear()
    try:
        config = configure(case)
        found = facts(config)
        type(current_platform).check_and_update_config(config)
        found["again"] = facts(pickle.loads(pickle.dumps(config)))
        found["text"] = str(config).split("instance_id")[0]
        found["said"] = said(messages)
        if not stock:
            found["parts"] = scheduler_parts(config)
        return found
    except Exception as error:  # what a user would see
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        for name in environ:
            os.environ.pop(name, None)


def listen() -> list[str]:
    """Everything this package logs from now on; messages said once are said anew."""
    from vllm_deepinfer import log
    from vllm_deepinfer.platforms import sm100

    messages: list[str] = []
    sm100.info_once = lambda logger, message: messages.append(message)
    assert log.info_once
    return messages


def main() -> None:
    order = json.loads(sys.argv[1])
    stock = order.get("stock", False)
    become_gpu_host(stock)
    messages = [] if stock else listen()
    found = {"cases": [run_case(case, messages, stock) for case in order["cases"]]}
    if "workers_of" in order:
        from sm100_workers import everything

        found["workers"] = everything(configure(order["workers_of"]))
    print("RESULT", json.dumps(found))


if __name__ == "__main__":
    main()

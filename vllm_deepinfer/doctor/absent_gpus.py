"""GPUs that are not here: lets vLLM's CUDA platform judge options on any machine.

vLLM's platform, this package's and their rules are the real ones. What a driver and a compiled
extension would answer is told: one machine with `NUM_GPUS` of the B200. Nothing is computed.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

NUM_GPUS = 8
NAME = "NVIDIA B200"
CAPABILITY = (10, 0)
MULTIPROCESSORS = 148
# What CUDA reports of the 192 GB of one.
MEMORY_BYTES = 178 << 30

_EXTENSIONS = ("vllm._C_stable_libtorch", "vllm.vllm_flash_attn")
# What vLLM's modules ask of the extension while they are imported: all of it holds on a B200.
_QUESTIONS = (
    "cutlass_scaled_mm_supports_fp8",
    "cutlass_scaled_mm_supports_block_fp8",
    "cutlass_scaled_mm_supports_fp4",
    "cutlass_group_gemm_supported",
)
_kept: list[Any] = []  # torch forgets what a library defined when the library goes


def told_platform(platform_class_name: str, memory_bytes: int | None) -> Any:
    """The platform class of that qualified name, with GPUs of `memory_bytes` told.

    Raises:
        Exception: whatever the import of the class ends in.
    """
    _stand_in_for_extensions()
    module, _, name = platform_class_name.rpartition(".")
    platform_class = getattr(importlib.import_module(module), name)

    from vllm.platforms.interface import DeviceCapability

    total, capability = memory_bytes or MEMORY_BYTES, DeviceCapability(*CAPABILITY)

    class AbsentGpus(platform_class):
        get_device_name = classmethod(lambda cls, device_id=0: NAME)
        get_device_total_memory = classmethod(lambda cls, device_id=0: total)
        get_device_capability = classmethod(lambda cls, device_id=0: capability)
        num_compute_units = classmethod(lambda cls, device_id=0: MULTIPROCESSORS)
        device_count = classmethod(lambda cls: NUM_GPUS)

    AbsentGpus.__module__, AbsentGpus.__qualname__ = module, name
    return AbsentGpus


def have_triton() -> None:
    """It is one of the CUDA build's requirements; here it may be absent or without a backend."""
    import vllm.config.vllm

    vllm.config.vllm.HAS_TRITON = True


def described(memory_bytes: int | None) -> str:
    memory = (memory_bytes or MEMORY_BYTES) / (1 << 30)
    return f"{NUM_GPUS} GPUs {NAME} of {memory:g} GiB, compute capability {CAPABILITY[0]}.0"


def _stand_in_for_extensions() -> None:
    """Empty modules for the extensions that cannot be loaded here."""
    try:
        importlib.import_module(_EXTENSIONS[0])
        return
    except ImportError:  # no CUDA build, or no driver to load it
        pass
    import torch

    library = torch.library.Library("_C", "FRAGMENT")
    for question in _QUESTIONS:
        library.define(f"{question}(int capability) -> bool")
        library.impl(question, lambda capability: True, "CompositeExplicitAutograd")
    _kept.append(library)
    for name in _EXTENSIONS:
        sys.modules[name] = module = ModuleType(name)
        module.__getattr__ = lambda attribute: None  # type: ignore[method-assign]

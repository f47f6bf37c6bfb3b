"""What a worker of the SM100 platform does before it has a device, in a process of ``sm100_host``.

See ``test_sm100_workers_know_their_model.py``.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any


def registry_entries(name: str) -> dict[str, str]:
    """The module of each architecture's entry."""
    from vllm.model_executor.models import ModelRegistry

    from vllm_deepinfer import registration

    names = registration.ARCHITECTURE, registration.DRAFT_ARCHITECTURE
    return {f"{name} {it}": ModelRegistry.models[it].module_name for it in names}


def models(config: Any) -> dict[str, Any]:
    """Whose classes a worker would build, for each choice.

    Args:
        config: of this package's class.
    """
    from vllm.model_executor.model_loader.utils import get_model_cls

    from vllm_deepinfer import registration

    found = registry_entries("outside")
    for model in ("deepinfer", "vllm"):
        with registration.using(model):
            found |= registry_entries(model)
    found |= registry_entries("after")
    # vLLM remembers the class of a folder; here it has looked at this one for other cases.
    for model in ("deepinfer", "vllm", "deepinfer"):
        with registration.using(model):
            built = get_model_cls(config.model_config)
        found[f"{model} built"] = f"{built.__module__}.{built.__qualname__}"
    return found


def stand_in_runner(module: str = "vllm_deepinfer.models") -> Any:
    """What the switches look at of a model runner."""
    backend = type("Backend", (), {"__module__": module})
    groups = [[SimpleNamespace(backend=backend)]]
    return SimpleNamespace(attn_groups=groups, sampler=SimpleNamespace(use_flashinfer=False))


def switches() -> dict[str, Any]:
    """What is found wrong before, and after all was set, and with each switch undone again."""
    import torch
    from vllm.model_executor.determinism import batch_invariant

    from vllm_deepinfer.config import DeepInferConfig
    from vllm_deepinfer.ops.triton import tiles
    from vllm_deepinfer.platforms import sm100_invariance
    from vllm_deepinfer.worker.sm100 import register_kernels

    every = sm100_invariance.worker_switches()
    runner = stand_in_runner()

    def broken(of: Any = runner) -> list[str]:
        return [it.partition(" is ")[0] for it in sm100_invariance.broken_switches(of, every)]

    found: dict[str, Any] = {"names": [switch.name for switch in every], "before": broken()}
    sm100_invariance.set_switches(DeepInferConfig(model="deepinfer", batch_invariant=True))
    # Questions to a driver, and to a torch of CUDA, that are not here.
    batch_invariant.get_max_shared_memory_bytes = lambda *_: 227 << 10
    torch.backends.cuda.preferred_blas_library = lambda backend=None: backend
    batch_invariant.init_batch_invariance()
    register_kernels(True)
    found["after"] = broken()
    products = torch.backends.cuda.matmul
    undone = found["undone"] = {}

    def undo(name: str, do: Any, redo: Any) -> None:
        do()
        undone[name] = broken()
        redo()

    for variable in ("VLLM_BATCH_INVARIANT", "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE"):
        value = os.environ[variable]
        undo(
            variable,
            lambda name=variable: os.environ.update({name: "0"}),
            lambda name=variable, value=value: os.environ.update({name: value}),
        )
    for switch, owner, attribute, wrong in (
        ("vLLM's replacement of torch's sums", batch_invariant, "_batch_invariant_MODE", False),
        (
            "sums of bfloat16 products in reduced precision",
            products,
            "allow_bf16_reduced_precision_reduction",
            True,
        ),
        ("float32 products", products, "fp32_precision", "tf32"),
        ("tiles by number of tokens", tiles, "_batch_invariant", False),
        ("FlashInfer's sampler", runner.sampler, "use_flashinfer", True),
    ):
        right = getattr(owner, attribute)
        undo(
            switch,
            lambda o=owner, a=attribute, w=wrong: setattr(o, a, w),
            lambda o=owner, a=attribute, r=right: setattr(o, a, r),
        )
    undone["attention of others"] = broken(stand_in_runner("vllm.v1.attention.backends"))
    try:
        sm100_invariance.check_switches(stand_in_runner("vllm.v1.attention.backends"))
    except ValueError as error:
        found["sentence"] = str(error)
    try:
        register_kernels(False)
    except RuntimeError as error:
        found["second engine"] = str(error)
    return found


def worker() -> dict[str, Any]:
    """How the worker's class is put together."""
    from vllm_deepinfer.worker.sm100 import DeepInferSm100Worker

    return {"order": [it.__qualname__ for it in DeepInferSm100Worker.__mro__]}


def everything(config: Any) -> dict[str, Any]:
    return {"worker": worker(), "models": models(config), "switches": switches()}

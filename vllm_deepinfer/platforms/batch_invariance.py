"""When the option ``batch_invariant`` can be kept on the CPU platform."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.ops.library import cpu_kernels
from vllm_deepinfer.platforms.refusals import UnsupportedOptionError

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def refuse_broken_promise(options: DeepInferConfig, vllm_config: VllmConfig) -> None:
    """Checks that every operation of the model gives a row the same bits in any batch.

    The C++ kernels do; torch's matrix products and sums do not.

    Raises:
        UnsupportedOptionError: `batch_invariant` was asked for and some operation runs in torch.
    """
    if not options.batch_invariant:
        return
    if cpu_kernels() is None:
        raise UnsupportedOptionError(
            "batch_invariant is true (allowed: false where the model's operations are computed by "
            "the torch reference, whose sums depend on the batch). Install this package where a "
            "C++ compiler works and leave DEEPINFER_REFERENCE_OPS unset, or leave batch_invariant "
            "out."
        )
    dtype = str(vllm_config.model_config.dtype).removeprefix("torch.")
    if options.quantization == "off" and dtype != "bfloat16":
        raise UnsupportedOptionError(
            f"batch_invariant is true with quantization off and --dtype {dtype} (allowed: --dtype "
            "bfloat16, or quantization stored): float32 caches are read by torch, whose sums "
            "depend on the batch."
        )

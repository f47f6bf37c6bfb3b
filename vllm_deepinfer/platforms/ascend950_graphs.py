"""Which decode steps are captured in graphs on an Ascend 950."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def capture_sizes(most_requests: int, tokens_per_request: int) -> list[int]:
    """Tokens of the decode steps to capture: of 1, 2, 4, ... requests, up to the most.

    A step between two sizes is padded to the larger, so at most half of it is wasted.

    Args:
        most_requests: that a step may hold.
        tokens_per_request: in a decode step, drafts under verification included.
    """
    counts = [1 << power for power in range(most_requests.bit_length())]
    if counts[-1] != most_requests:
        counts.append(most_requests)
    return [count * tokens_per_request for count in counts]


def choose_graphs(vllm_config: VllmConfig) -> None:
    """Fill in what the user left open: graphs of decode steps alone, no compilation.

    The model's operations are opaque to a compiler; captured whole, a decode step costs the host
    one launch. Prompts have no two steps alike.
    """
    from vllm.config import CompilationMode, CUDAGraphMode

    compilation = vllm_config.compilation_config
    if compilation.mode is None:
        compilation.mode = CompilationMode.NONE
    if vllm_config.model_config.enforce_eager:
        return
    if compilation.cudagraph_mode is None:
        compilation.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY
    if (
        compilation.cudagraph_capture_sizes is None
        and compilation.max_cudagraph_capture_size is None
        and compilation.cudagraph_mode is CUDAGraphMode.FULL_DECODE_ONLY
    ):
        scheduler = vllm_config.scheduler_config
        tokens_per_request = 1 + vllm_config.num_speculative_tokens
        most = min(scheduler.max_num_seqs, scheduler.max_num_batched_tokens // tokens_per_request)
        compilation.cudagraph_capture_sizes = capture_sizes(max(most, 1), tokens_per_request)

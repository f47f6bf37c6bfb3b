"""What every platform of this package does to a configuration of DeepSeek-V4.1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_deepinfer.registration import ARCHITECTURE

if TYPE_CHECKING:
    from vllm.config import VllmConfig

DEFAULT_BLOCK_SIZE_TOKENS = 128


def is_our_model(vllm_config: VllmConfig) -> bool:
    """Whether the configuration is for the architecture this package serves."""
    model_config = vllm_config.model_config
    return model_config is not None and ARCHITECTURE in (model_config.architectures or ())


def scheduler_class(async_scheduling: bool) -> str:
    """Qualified name of the scheduler for a user who chose none.

    vLLM takes a wrong pair of class and `async_scheduling` without complaint and then miscounts
    tokens, so both are decided in one place.
    """
    name = "DeepInferAsyncScheduler" if async_scheduling else "DeepInferScheduler"
    return f"vllm_deepinfer.scheduler.mixin.{name}"


def choose_scheduler(vllm_config: VllmConfig) -> None:
    """This package's scheduler, unless the user named one."""
    scheduler = vllm_config.scheduler_config
    if scheduler.scheduler_cls is None:
        scheduler.scheduler_cls = scheduler_class(bool(scheduler.async_scheduling))


def choose_block_size(vllm_config: VllmConfig) -> None:
    """The size that the class's cache groups are declared for, unless the user named one."""
    cache = vllm_config.cache_config
    if not cache.user_specified_block_size:
        cache.block_size = DEFAULT_BLOCK_SIZE_TOKENS


def run_eagerly(vllm_config: VllmConfig) -> None:
    """Neither compiled nor captured."""
    from vllm.config import CompilationMode, CUDAGraphMode

    # The model's ops are opaque to inductor: compiling would cost a minute and gain nothing.
    vllm_config.compilation_config.mode = CompilationMode.NONE
    vllm_config.compilation_config.cudagraph_mode = CUDAGraphMode.NONE


def choose_grammar_backend(vllm_config: VllmConfig) -> None:
    """xgrammar where the user left it open."""
    structured_outputs = vllm_config.structured_outputs_config
    # Under "auto" the first constrained request of a server's life fixes its backend. If that one
    # needs guidance, every forced tool call afterwards is an internal error (seen with 0.32.0:
    # KeyError 'triggers'). With xgrammar, a schema it cannot honour is refused in the request.
    if structured_outputs.backend == "auto":
        structured_outputs.backend = "xgrammar"


def keep_matched_blocks(vllm_config: VllmConfig) -> None:
    """Let a prefix hit keep its last block under drafting.

    vLLM drops it for drafters whose rows depend on the token after them; DSpark's depend on the
    target's layers alone. From 0.33 vLLM knows that, and no longer drops it here.
    """
    speculative = vllm_config.speculative_config
    if speculative is not None:
        speculative.disable_eagle_block_drop = True


def vllm_trims_drafts(vllm_config: VllmConfig) -> bool:
    """Whether vLLM's own planner trims drafts, in the worker.

    The scheduler then plans nothing, and cannot know how many drafts a step verified.
    """
    speculative = vllm_config.speculative_config
    return speculative is not None and speculative.enable_adaptive_verification

"""The Ascend 950 platform: DeepSeek-V4.1 on device "npu", and no other model.

Importing this module imports neither torch_npu nor anything else that starts the device's runtime:
a process must have its visible devices set before that.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from vllm.platforms import Platform, PlatformEnum

from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.log import get_logger, info_once, warn_once
from vllm_deepinfer.platforms import our_model

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.utils.argparse_utils import FlexibleArgumentParser

logger = get_logger(__name__)

COMMUNICATOR_CLASS = "vllm_deepinfer.distributed.npu_communicator.DeepInferNpuCommunicator"
WORKER_CLASS = "vllm_deepinfer.worker.ascend950.DeepInferAscend950Worker"
CACHE_BACKEND_CLASS = "vllm_deepinfer.models.deepseek_v41.kv_cache.CacheBackend"
_START_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
_TIMEOUT = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
# HCCL gives up on a collective after 1836 s and says which rank is missing. An engine that gives up
# earlier hides that.
EXECUTE_TIMEOUT_S = 3000


class DeepInferAscend950Platform(Platform):
    """vLLM's V2 model runner on an Ascend 950, for DeepSeek-V4.1."""

    _enum = PlatformEnum.OOT
    device_name = "npu"
    device_type = "npu"
    dispatch_key = "PrivateUse1"
    dist_backend = "hccl"
    device_control_env_var = "ASCEND_RT_VISIBLE_DEVICES"
    ray_device_key = "NPU"
    simple_compile_backend = "eager"
    # Read by the model's cache backend: its decode steps may be captured in graphs here.
    captures_decode_steps = True

    def __init__(self) -> None:
        # `vllm serve` makes a device of the name before it calls any hook of the platform.
        torch.utils.rename_privateuse1_backend(self.device_type)

    # -- configuration ----------------------------------------------------------------------------

    @classmethod
    def pre_register_and_update(cls, parser: FlexibleArgumentParser | None = None) -> None:
        """Makes torch know the device, which the first configuration object already names.

        Raises:
            vllm_deepinfer.worker.npu_device.DeviceModuleError: the device's module is not there.
        """
        from vllm_deepinfer.worker.npu_device import import_device_module

        import_device_module()

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config: VllmConfig) -> None:
        """Graphs of decode steps, where the user chose neither a mode nor sizes."""
        if our_model.is_our_model(vllm_config):
            from vllm_deepinfer.platforms.ascend950_graphs import choose_graphs

            choose_graphs(vllm_config)

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Sets vLLM up for the model. vLLM calls it for every configuration object: idempotent.

        Raises:
            vllm_deepinfer.config.OptionError: an option of this package is not allowed.
            vllm_deepinfer.platforms.refusals.UnsupportedOptionError: an option of vLLM or a
                variable of the device's software cannot be honoured.
        """
        from vllm_deepinfer.platforms import ascend950_checks, v2_config
        from vllm_deepinfer.platforms.request_limits import widen_bad_word_tables

        if vllm_config.model_config is None:
            return
        ascend950_checks.refuse_other_models(vllm_config)
        options = DeepInferConfig.from_vllm(vllm_config)
        ascend950_checks.refuse_what_cannot_hold(vllm_config, options)
        cls._choose_worker_and_blocks(vllm_config)
        our_model.choose_grammar_backend(vllm_config)
        our_model.keep_matched_blocks(vllm_config)
        v2_config.adopt(vllm_config)
        widen_bad_word_tables()
        our_model.choose_scheduler(vllm_config)
        _choose_process_settings()
        _announce(vllm_config, options)

    @classmethod
    def _choose_worker_and_blocks(cls, vllm_config: VllmConfig) -> None:
        if vllm_config.parallel_config.worker_cls == "auto":
            vllm_config.parallel_config.worker_cls = WORKER_CLASS
        our_model.choose_block_size(vllm_config)

    @classmethod
    def update_block_size_for_backend(cls, vllm_config: VllmConfig) -> None:
        """Leaves the block size alone: the model's cache groups are declared for it."""

    @classmethod
    def validate_request(cls, processed_inputs: Any, params: Any) -> None:
        """Refuses what the model runner has no room for; see `request_limits`."""
        from vllm.sampling_params import SamplingParams

        from vllm_deepinfer.platforms.request_limits import check_request

        if isinstance(params, SamplingParams):
            check_request(params)

    # -- what the model runner asks ---------------------------------------------------------------

    @classmethod
    def import_kernels(cls) -> None:
        """Nothing: vLLM's own kernels are for other devices, and the model calls none of them."""

    @classmethod
    def get_attn_backend_cls(cls, *args: Any, **kwargs: Any) -> str:
        return CACHE_BACKEND_CLASS

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return COMMUNICATOR_CLASS

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        """Yes: the model's window, compressed and state caches are groups of one pool."""
        return True

    @classmethod
    def support_static_graph_mode(cls) -> bool:
        return True

    @classmethod
    def opaque_attention_op(cls) -> bool:
        return True

    @classmethod
    def check_runner_kv_caches_multi_layer(cls) -> None:
        """A layer of this model has several caches; nothing here finds them by layer number."""

    @classmethod
    def supports_mx(cls) -> bool:
        return True

    @classmethod
    def supports_fp8(cls) -> bool:
        return True

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        """Nothing: `check_and_update_config` has refused what cannot hold, by option."""

    # -- the device -------------------------------------------------------------------------------

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> None:
        """None: capabilities are NVIDIA's numbers, and vLLM reads kernels' needs from them."""
        return None

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return torch.npu.get_device_name(device_id)

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Not told: asking would start the device's runtime in a process that only configures.

        vLLM takes the refusal as "unknown" where it picks defaults.
        """
        raise NotImplementedError("the size of an NPU's memory is known in its worker only")

    @classmethod
    def get_current_memory_usage(cls, device: Any = None) -> float:
        """Bytes in use on the device by this process."""
        return torch.accelerator.memory_allocated(device)

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        torch.accelerator.set_device_index(device)

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        torch.npu.manual_seed_all(seed)


def _choose_process_settings() -> None:
    # A forked process cannot use a device runtime that its parent has started.
    os.environ.setdefault(_START_METHOD, "spawn")
    os.environ.setdefault(_TIMEOUT, str(EXECUTE_TIMEOUT_S))


def _announce(vllm_config: VllmConfig, options: DeepInferConfig) -> None:
    import vllm

    from vllm_deepinfer import __version__

    cache, scheduler = vllm_config.cache_config, vllm_config.scheduler_config
    compilation, parallel = vllm_config.compilation_config, vllm_config.parallel_config
    sizes = compilation.cudagraph_capture_sizes or []
    graphs = f"graphs of decode steps of {', '.join(map(str, sizes))} tokens" if sizes else "eager"
    if sizes and vllm_config.speculative_config and options.verification != "all":
        warn_once(
            logger,
            f"verification is {options.verification}: decode steps that verify unequal numbers of "
            "drafts run without a graph. verification all keeps every full step in one.",
        )
    info_once(
        logger,
        f"vllm-deepinfer {__version__} on vLLM {vllm.__version__}: Ascend 950 platform, "
        f"V2 model runner without Triton, {vllm_config.model_config.dtype}, {graphs}, "
        f"{parallel.data_parallel_size} data-parallel rank(s), "
        f"expert parallelism {'on' if parallel.enable_expert_parallel else 'off'}, "
        f"block size {cache.block_size} tokens, "
        f"prefix caching {'on' if cache.enable_prefix_caching else 'off'}, "
        f"chunked prefill {'on' if scheduler.enable_chunked_prefill else 'off'}, "
        f"async scheduling {'on' if scheduler.async_scheduling else 'off'}.",
    )

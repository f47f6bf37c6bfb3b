"""The CPU reference platform: vLLM's CPU platform, set up for DeepSeek-V4.1.

Every other model keeps vLLM's stock behaviour.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.platforms.cpu import CpuPlatform

from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.log import get_logger, info_once
from vllm_deepinfer.platforms import (
    cpu_operations,
    fork_safety,
    message_rings,
    our_model,
    rank_cores,
)
from vllm_deepinfer.platforms.vllm_build import is_cpu_build

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = get_logger(__name__)

COMMUNICATOR_CLASS = "vllm_deepinfer.distributed.communicator.DeepInferCpuCommunicator"
WORKER_CLASS = "vllm_deepinfer.worker.cpu.DeepInferCpuWorker"
# Stock CPU takes nine tenths of the machine's memory for the cache and refuses to start if they are
# not free. This model's compressed cache is small: 0.5 GiB holds 80,000 tokens of the tiny preset,
# and all processes of a server then fit in 2 GiB (1.6 GiB measured, shared pages counted once).
DEFAULT_KV_CACHE_BYTES = 1 << 29
_START_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
# Read before vLLM's CPU platform overwrites it, so that a user's choice can be told from that.
_USER_START_METHOD = os.environ.get(_START_METHOD)


@dataclass(frozen=True)
class _UserSettings:
    """What stock CPU overwrites, as it was before."""

    async_scheduling: bool | None
    enable_chunked_prefill: bool
    enable_prefix_caching: bool
    max_num_batched_tokens: int
    block_size_tokens: int

    @classmethod
    def read(cls, config: VllmConfig) -> _UserSettings:
        cache, scheduler = config.cache_config, config.scheduler_config
        return cls(
            async_scheduling=scheduler.async_scheduling,
            enable_chunked_prefill=scheduler.enable_chunked_prefill,
            enable_prefix_caching=cache.enable_prefix_caching,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            block_size_tokens=(
                cache.block_size
                if cache.user_specified_block_size
                else our_model.DEFAULT_BLOCK_SIZE_TOKENS
            ),
        )

    def restore(self, config: VllmConfig) -> None:
        cache, scheduler = config.cache_config, config.scheduler_config
        scheduler.async_scheduling = self.async_scheduling
        scheduler.enable_chunked_prefill = self.enable_chunked_prefill
        cache.enable_prefix_caching = self.enable_prefix_caching
        scheduler.max_num_batched_tokens = self.max_num_batched_tokens
        cache.block_size = self.block_size_tokens


class DeepInferCpuPlatform(CpuPlatform):
    """vLLM on the CPU with chunked prefill, prefix caching and async scheduling for this model."""

    # Requests come without their model's configuration; other models have other runners' limits.
    _serves_our_model = False

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Sets vLLM up for the model. vLLM calls it for every configuration object: idempotent.

        Raises:
            vllm_deepinfer.config.OptionError: an option of this package is not allowed.
            vllm_deepinfer.platforms.refusals.UnsupportedOptionError: an option of vLLM cannot be
                honoured.
            vllm_deepinfer.platforms.message_rings.SharedMemoryError: /dev/shm is too small.
        """
        if not our_model.is_our_model(vllm_config):
            cpu_operations.refuse_other_models(vllm_config)
            super().check_and_update_config(vllm_config)
            return
        from vllm_deepinfer.platforms import v2_config
        from vllm_deepinfer.platforms.batch_invariance import refuse_broken_promise
        from vllm_deepinfer.platforms.refusals import refuse_unsupported
        from vllm_deepinfer.platforms.request_limits import widen_bad_word_tables

        options = DeepInferConfig.from_vllm(vllm_config)
        refuse_unsupported(vllm_config)
        refuse_broken_promise(options, vllm_config)
        _choose_worker_and_memory(vllm_config)
        our_model.choose_grammar_backend(vllm_config)
        our_model.keep_matched_blocks(vllm_config)
        settings = _UserSettings.read(vllm_config)
        super().check_and_update_config(vllm_config)
        settings.restore(vllm_config)
        v2_config.adopt(vllm_config)
        our_model.run_eagerly(vllm_config)
        widen_bad_word_tables()
        cls._serves_our_model = True
        our_model.choose_scheduler(vllm_config)
        _choose_start_method()
        rank_cores.bind_ranks(vllm_config)
        rank_cores.share_memory_nodes(vllm_config)
        message_rings.fit(vllm_config)
        _announce(vllm_config)

    @classmethod
    def import_kernels(cls) -> None:
        """vLLM's CPU kernels; where the installed build has none, the operations that we need."""
        if is_cpu_build():
            super().import_kernels()
        else:
            cpu_operations.define()

    @classmethod
    def validate_request(cls, processed_inputs: Any, params: Any) -> None:
        """Refuses what the model runner has no room for; see `request_limits`."""
        from vllm.sampling_params import SamplingParams

        from vllm_deepinfer.platforms.request_limits import check_request

        super().validate_request(processed_inputs, params)
        if cls._serves_our_model and isinstance(params, SamplingParams):
            check_request(params)

    @classmethod
    def update_block_size_for_backend(cls, vllm_config: VllmConfig) -> None:
        """Leaves this model's block size alone: its cache groups are declared for it."""
        if not our_model.is_our_model(vllm_config):
            super().update_block_size_for_backend(vllm_config)

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """For this model, the communicator that its expert parallelism needs."""
        from vllm.config import get_current_vllm_config_or_none

        config = get_current_vllm_config_or_none()
        if config is not None and our_model.is_our_model(config):
            return COMMUNICATOR_CLASS
        return super().get_device_communicator_cls()

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        """Yes: the model's window, compressed and state caches are groups of one pool."""
        return True


def _choose_worker_and_memory(vllm_config: VllmConfig) -> None:
    if vllm_config.parallel_config.worker_cls == "auto":
        vllm_config.parallel_config.worker_cls = WORKER_CLASS
    cache = vllm_config.cache_config
    user_sized_it = (
        cache.kv_cache_memory_bytes is not None
        or bool(os.environ.get("VLLM_CPU_KVCACHE_SPACE"))
        or cache.gpu_memory_utilization != type(cache).gpu_memory_utilization
    )
    if not user_sized_it:
        cache.kv_cache_memory_bytes = DEFAULT_KV_CACHE_BYTES


def _choose_start_method() -> None:
    """Forks workers on Linux unless the user said otherwise.

    Stock CPU spawns them: each a new interpreter that imports vLLM again, about 13 s.
    """
    method = _USER_START_METHOD or ("fork" if sys.platform == "linux" else "spawn")
    os.environ[_START_METHOD] = method
    if method == "fork":
        fork_safety.install()


def _announce(vllm_config: VllmConfig) -> None:
    import vllm

    from vllm_deepinfer import __version__

    cache, scheduler = vllm_config.cache_config, vllm_config.scheduler_config
    size_bytes = cache.kv_cache_memory_bytes
    kv_cache = f"{size_bytes / (1 << 30):.2f} GiB" if size_bytes is not None else "sized by vLLM"
    info_once(
        logger,
        f"vllm-deepinfer {__version__} on vLLM {vllm.__version__}: CPU reference platform, "
        f"V2 model runner without Triton, {vllm_config.model_config.dtype}, "
        f"block size {cache.block_size} tokens, "
        f"KV cache {kv_cache}, "
        f"prefix caching {'on' if cache.enable_prefix_caching else 'off'}, "
        f"chunked prefill {'on' if scheduler.enable_chunked_prefill else 'off'}, "
        f"async scheduling {'on' if scheduler.async_scheduling else 'off'}.",
    )

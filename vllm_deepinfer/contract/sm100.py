"""What the SM100 platform, its worker, steps on accelerators and the sync guard rely on."""

from __future__ import annotations

from vllm_deepinfer.contract.symbols import Symbol, calls, has_fields, overrides, uses

_PLATFORM = "vllm.platforms.cuda"
_SYNC_CHECK = "vllm.utils.gpu_sync_debug"
_WORKER = "vllm.v1.worker.gpu_worker"
_RUNNER = "vllm.v1.worker.gpu.model_runner"
_ASYNC = "vllm.v1.worker.gpu.async_utils"
_OUTPUTS = "vllm.v1.outputs"
_INVARIANCE = "vllm.model_executor.determinism.batch_invariant"

SYNC_GUARD: tuple[Symbol, ...] = (
    # Set by worker/sync_guard.py, so that the waits vLLM marks pass its guard.
    uses(_SYNC_CHECK, "_SYNC_CHECK_MODE"),
    calls(_SYNC_CHECK, "_allow_syncs"),
    calls(_SYNC_CHECK, "_install_compile_time_sync_suppressors"),
    uses(_SYNC_CHECK, "gpu_sync_allowed"),
)

SM100_PLATFORM: tuple[Symbol, ...] = (
    uses(_PLATFORM, "CudaPlatform"),
    uses("vllm.config", "ModelConfig"),
    overrides(_PLATFORM, "CudaPlatformBase.check_and_update_config", "cls", "vllm_config"),
    calls(_PLATFORM, "CudaPlatformBase.get_device_capability", "cls"),
    overrides(
        "vllm.platforms.interface", "Platform.update_block_size_for_backend", "cls", "vllm_config"
    ),
    # A configuration made for vLLM's class is changed into one for this package's.
    has_fields(
        "vllm.config.model",
        "ModelConfig",
        "_model_info",
        "multimodal_config",
        "quantization",
        "model_arch_config",
        "return_sampling_mask",
    ),
    uses("vllm.config.model", "ModelConfig.is_multimodal_model"),
    has_fields("vllm.config.scheduler", "SchedulerConfig", "is_multimodal_model"),
    has_fields(
        "vllm.config.speculative",
        "SpeculativeConfig",
        "method",
        "draft_model_config",
        "enable_adaptive_verification",
    ),
    uses("vllm.config.compilation", "CUDAGraphMode.has_full_cudagraphs"),
    has_fields("vllm.renderers.base", "BaseRenderer", "model_config"),
    # Emptied when the registry's entries change.
    uses("vllm.model_executor.model_loader.utils", "_MODEL_ARCH_BY_HASH"),
)

SM100_WORKER: tuple[Symbol, ...] = (
    overrides(_WORKER, "Worker.init_device", "self"),
    uses(_WORKER, "Worker.load_model"),
    overrides(_WORKER, "Worker.compile_or_warm_up_model", "self"),
    overrides(_WORKER, "Worker.sample_tokens", "self", "grammar_output"),
    overrides(_WORKER, "Worker.shutdown", "self"),
    has_fields(
        _RUNNER,
        "GPUModelRunner",
        "step_timing",
        "execute_model_state",
        "main_stream",
        "output_copy_stream",
        "adaptive_verification",
        "cudagraph_manager",
        "speculator",
        "sampler",
        "attn_groups",
    ),
    has_fields(_RUNNER, "ExecuteModelState", "input_batch", "num_spec_tokens_to_schedule"),
    has_fields(
        "vllm.v1.worker.gpu.input_batch",
        "InputBatch",
        "num_reqs",
        "num_tokens",
        "num_computed_tokens_np",
        "has_prefill",
    ),
    calls(
        "vllm.v1.worker.gpu.cudagraph_utils", "ModelCudaGraphManager.captured_token_counts", "self"
    ),
    has_fields("vllm.v1.worker.utils", "AttentionGroup", "backend"),
    # vLLM's clock, continued: it calls forward_start, and its profile reads what that began.
    calls(_ASYNC, "StepTimingCollector.__init__", "self"),
    overrides(_ASYNC, "StepTimingCollector.forward_start", "self"),
    calls(_ASYNC, "StepTimingCollector.collect", "self"),
    has_fields(_ASYNC, "StepTimingCollector", "_collecting", "_step"),
    has_fields(
        _ASYNC,
        "StepTimingEvents",
        "forward_start",
        "forward_end",
        "drafter_start",
        "drafter_end",
    ),
    has_fields(_ASYNC, "StepTimingSample", "forward_ms"),
    calls(_ASYNC, "stream", "to_stream", "from_stream"),
    has_fields(_ASYNC, "AsyncOutput", "model_runner_output"),
    overrides(_OUTPUTS, "AsyncModelRunnerOutput.get_output", "self"),
    overrides(_OUTPUTS, "AsyncModelRunnerOutput.get_kv_connector_output", "self", since=(0, 33)),
    calls("vllm.distributed.parallel_state", "get_tp_group"),
    has_fields("vllm.distributed.parallel_state", "GroupCoordinator", "rank_in_group"),
)

BATCH_INVARIANCE: tuple[Symbol, ...] = (
    uses("vllm.envs", "VLLM_BATCH_INVARIANT"),
    uses("vllm.envs", "VLLM_USE_FLASHINFER_SAMPLER"),
    uses(_INVARIANCE, "_batch_invariant_MODE"),
    calls(_INVARIANCE, "init_batch_invariance"),
    has_fields("vllm.v1.worker.gpu.sample.sampler", "Sampler", "use_flashinfer"),
)

SM100: tuple[Symbol, ...] = (*SYNC_GUARD, *SM100_PLATFORM, *SM100_WORKER, *BATCH_INVARIANCE)

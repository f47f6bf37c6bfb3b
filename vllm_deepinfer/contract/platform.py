"""What the CPU platform, the options it reads and its worker rely on."""

from __future__ import annotations

from vllm_deepinfer.contract.symbols import Symbol, calls, has_fields, overrides, uses

_PLATFORM = "vllm.platforms.cpu"
_INTERFACE = "vllm.platforms.interface"
_CONFIG = "vllm.config.vllm"

PLATFORM: tuple[Symbol, ...] = (
    uses("vllm", "__version__"),
    uses("vllm.platforms", "current_platform"),
    calls(_INTERFACE, "Platform.is_cpu", "self"),
    calls(_INTERFACE, "Platform.get_device_name", "cls"),
    uses("vllm.config", "VllmConfig"),
    uses("vllm.config", "CompilationMode"),
    uses("vllm.config", "CUDAGraphMode"),
    uses(_CONFIG, "envs"),
    overrides(_PLATFORM, "CpuPlatform.check_and_update_config", "cls", "vllm_config"),
    overrides(_PLATFORM, "CpuPlatform.update_block_size_for_backend", "cls", "vllm_config"),
    overrides(_PLATFORM, "CpuPlatform.support_hybrid_kv_cache", "cls"),
    overrides(_INTERFACE, "Platform.validate_request", "cls", "processed_inputs", "params"),
    has_fields(
        "vllm.sampling_params",
        "SamplingParams",
        "bad_words",
        "allowed_token_ids",
        "logit_bias",
        "min_tokens",
        "logprob_token_ids",
    ),
    uses("vllm.sampling_params", "SamplingParams.all_stop_token_ids"),
    uses("vllm.sampling_params", "MAX_LOGPROB_TOKEN_IDS"),
    uses("vllm.v1.worker.gpu.sample.logit_bias", "MAX_NUM_ALLOWED_TOKEN_IDS"),
    uses("vllm.v1.worker.gpu.sample.logit_bias", "MAX_NUM_LOGIT_BIAS_TOKENS"),
    uses("vllm.v1.worker.gpu.sample.logit_bias", "MAX_NUM_STOP_TOKEN_IDS"),
    uses("vllm.envs", "VLLM_MAX_NUM_BAD_WORDS"),
    uses("vllm.envs", "VLLM_MAX_BAD_WORDS_TOTAL_TOKENS"),
    overrides(_CONFIG, "VllmConfig.use_v2_model_runner", "self"),
    overrides(_CONFIG, "VllmConfig._validate_v2_model_runner", "self"),
    calls(_CONFIG, "VllmConfig._get_v2_model_runner_unsupported_features", "self"),
    has_fields(
        _CONFIG,
        "VllmConfig",
        "model_config",
        "cache_config",
        "parallel_config",
        "scheduler_config",
        "lora_config",
        "speculative_config",
        "kv_transfer_config",
        "watermark_config",
        "quant_config",
        "structured_outputs_config",
        "compilation_config",
        "additional_config",
    ),
    has_fields(
        "vllm.config.cache",
        "CacheConfig",
        "block_size",
        "user_specified_block_size",
        "enable_prefix_caching",
        "cache_dtype",
        "kv_cache_memory_bytes",
        "gpu_memory_utilization",
    ),
    has_fields(
        "vllm.config.scheduler",
        "SchedulerConfig",
        "scheduler_cls",
        "async_scheduling",
        "enable_chunked_prefill",
        "max_num_batched_tokens",
        "disable_hybrid_kv_cache_manager",
    ),
    has_fields(
        "vllm.config.parallel",
        "ParallelConfig",
        "worker_cls",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "prefill_context_parallel_size",
        "decode_context_parallel_size",
        "enable_eplb",
    ),
    has_fields(
        "vllm.config.model",
        "ModelConfig",
        "architectures",
        "dtype",
        "hf_config",
        "runner_type",
        "enable_prompt_embeds",
    ),
    has_fields("vllm.config.structured_outputs", "StructuredOutputsConfig", "backend"),
    has_fields("vllm.config.compilation", "CompilationConfig", "mode", "cudagraph_mode"),
    uses("vllm.config.compilation", "CompilationMode.NONE"),
    uses("vllm.config.compilation", "CUDAGraphMode.NONE"),
    uses("vllm.envs", "VLLM_USE_V2_MODEL_RUNNER"),
    uses("vllm.v1.core.sched.scheduler", "Scheduler"),
    uses("vllm.v1.core.sched.async_scheduler", "AsyncScheduler"),
)

WORKER: tuple[Symbol, ...] = (
    # Called by vLLM with keywords of its choice, which pass through unchanged.
    calls(
        "vllm.v1.worker.cpu_worker",
        "CPUWorker.__init__",
        "self",
        "vllm_config",
        "local_rank",
        "rank",
        "distributed_init_method",
    ),
)

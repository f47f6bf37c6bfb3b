"""Every upstream symbol this package relies on: data for compat.py, one line per symbol.

Add a line whenever code here starts to call, override, subclass or read something of vLLM's.
The five forms:

    uses(module, name)                 the name exists
    calls(module, name, *parameters)   it can be called with these, by position or keyword
    overrides(module, name, *params)   a subclass replaces it, so the parameters match exactly
    kernel(module, name, *parameters)  a Triton kernel replaced by name, parameters match exactly
    has_fields(module, cls, *names)    the class declares these fields or sets them on itself

`since` and `until` (exclusive) limit a line to some versions, as in `uses(..., since=(0, 33))`.
Names of methods are written `Class.method`; a method may come from a base class.
"""

from __future__ import annotations

from vllm_deepinfer.compat import Symbol, calls, has_fields, overrides, uses
from vllm_deepinfer.contract_ascend import ASCEND
from vllm_deepinfer.contract_builds import BUILDS
from vllm_deepinfer.contract_distributed import DISTRIBUTED
from vllm_deepinfer.contract_doctor import DOCTOR
from vllm_deepinfer.contract_model import DRAFTING, MODEL, VENDOR_KERNELS
from vllm_deepinfer.contract_scheduler import SCHEDULER, STEP_TIMES
from vllm_deepinfer.contract_sm100 import SM100

_PLATFORM = "vllm.platforms.cpu"
_INTERFACE = "vllm.platforms.interface"
_CONFIG = "vllm.config.vllm"
_MODEL_REGISTRY = "vllm.model_executor.models.registry"
_RENDERERS = "vllm.renderers.deepseek_v4"
_ENGINE = "vllm.v1.engine.core"
_QUANTIZATION = "vllm.model_executor.layers.quantization"
_QUANTIZATION_BASE = f"{_QUANTIZATION}.base_config"

PLATFORM: tuple[Symbol, ...] = (
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

REGISTRATION: tuple[Symbol, ...] = (
    has_fields(_MODEL_REGISTRY, "_ModelRegistry", "models"),
    has_fields(_MODEL_REGISTRY, "_LazyRegisteredModel", "module_name", "class_name"),
    overrides(_MODEL_REGISTRY, "_LazyRegisteredModel.inspect_model_cls", "self"),
    calls(_MODEL_REGISTRY, "_LazyRegisteredModel.load_model_cls", "self"),
    calls(_MODEL_REGISTRY, "_ModelInfo.from_model_cls", "model"),
    calls(_QUANTIZATION, "register_quantization_config", "quantization"),
    calls(_QUANTIZATION, "get_quantization_config", "quantization"),
    uses(_QUANTIZATION, "QUANTIZATION_METHODS"),
    overrides(_QUANTIZATION_BASE, "QuantizationConfig.from_config", "cls", "config"),
    overrides(
        _QUANTIZATION_BASE,
        "QuantizationConfig.override_quantization_method",
        "cls",
        "hf_quant_cfg",
        "user_quant",
        "hf_config",
    ),
    overrides(_QUANTIZATION_BASE, "QuantizationConfig.get_quant_method", "self", "layer", "prefix"),
    uses(_RENDERERS, "DeepseekV41Renderer", since=(0, 33)),
    overrides(_RENDERERS, "DeepseekV4Renderer.render_messages", "self", "messages", "params"),
    overrides(_RENDERERS, "DeepseekV4Renderer.render_messages_async", "self", "messages", "params"),
    has_fields("vllm.renderers.registry", "RendererRegistry", "renderers"),
    uses("vllm.renderers.registry", "RENDERER_REGISTRY"),
    calls("vllm.exceptions", "VLLMValidationError.__init__", "self", "message", "parameter"),
)

# Replaced on the class itself by patch/dp_vote.py, and what that reads of an engine.
VOTE: tuple[Symbol, ...] = (
    overrides(_ENGINE, "DPEngineCoreProc._has_global_unfinished_reqs", "self", "local_unfinished"),
    overrides(_ENGINE, "DPEngineCoreProc._should_throttle_prefills", "self"),
    has_fields(_ENGINE, "DPEngineCoreProc", "scheduler", "vllm_config", "dp_group", "step_counter"),
    has_fields("vllm.config.parallel", "ParallelConfig", "cpu_distributed_timeout_seconds"),
)

CONTRACT: tuple[Symbol, ...] = (
    *PLATFORM,
    *BUILDS,
    *WORKER,
    *REGISTRATION,
    *VOTE,
    *MODEL,
    *DRAFTING,
    *VENDOR_KERNELS,
    *DISTRIBUTED,
    *DOCTOR,
    *SCHEDULER,
    *STEP_TIMES,
    *SM100,
    *ASCEND,
)

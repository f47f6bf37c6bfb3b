"""What the command ``doctor`` relies on of vLLM."""

from __future__ import annotations

from vllm_deepinfer.contract.symbols import Symbol, calls, has_fields, overrides, uses

_ARGUMENTS = "vllm.engine.arg_utils"
_SERVE, _CORE = "vllm.entrypoints.cli.serve", "vllm.v1.engine.core"
_INTERFACE = "vllm.platforms.interface"
_PLAN = ("vllm_config", "kv_cache_specs", "available_memory")

DOCTOR: tuple[Symbol, ...] = (
    # Taken from where vLLM itself imports them: their own modules move between releases.
    calls(_SERVE, "make_arg_parser", "parser"),
    calls(_SERVE, "validate_parsed_serve_args", "args"),
    calls(_CORE, "get_kv_cache_configs", *_PLAN, until=(0, 33)),
    calls(_CORE, "get_kv_cache_configs", *_PLAN, "global_kv_cache_groups", since=(0, 33)),
    calls(_CORE, "get_global_kv_cache_groups", "vllm_config", "kv_cache_specs", since=(0, 33)),
    calls(_CORE, "resolve_kv_cache_layout", "vllm_config", "supported_layouts", "kv_cache_specs"),
    calls(_CORE, "register_all_kvcache_specs", "vllm_config"),
    uses("vllm.utils.argparse_utils", "FlexibleArgumentParser"),
    calls(_ARGUMENTS, "AsyncEngineArgs.from_cli_args", "cls", "args"),
    calls(_ARGUMENTS, "AsyncEngineArgs.create_engine_config", "self", "usage_context"),
    has_fields(_ARGUMENTS, "EngineArgs", "skip_tokenizer_init"),
    uses("vllm.usage.usage_lib", "UsageContext.OPENAI_API_SERVER"),
    uses("vllm.platforms", "_current_platform"),
    # What GPUs that are not here are told to answer.
    uses(_INTERFACE, "DeviceCapability"),
    uses("vllm.config.vllm", "HAS_TRITON"),
    *(
        overrides(_INTERFACE, f"Platform.{name}", "cls", "device_id")
        for name in ("get_device_name", "get_device_total_memory", "num_compute_units")
    ),
    overrides("vllm.platforms.cuda", "CudaPlatformBase.device_count", "cls"),
    has_fields("vllm.config.parallel", "ParallelConfig", "world_size_across_dp"),
    calls("vllm.config", "set_current_vllm_config", "vllm_config"),
    uses(_INTERFACE, "Platform.import_kernels"),
    calls("vllm.v1.core.kv_cache_utils", "get_kv_cache_capacity", "vllm_config", "kv_cache_config"),
    has_fields(
        "vllm.v1.kv_cache_interface",
        "KVCacheConfig",
        "num_blocks",
        "kv_cache_tensors",
        "kv_cache_groups",
    ),
    has_fields("vllm.v1.kv_cache_interface", "KVCacheTensor", "size"),
    has_fields(
        "vllm.config.compilation", "CompilationConfig", "cudagraph_mode", "cudagraph_capture_sizes"
    ),
    has_fields("vllm.config.speculative", "SpeculativeConfig", "draft_model_config"),
    has_fields(
        "vllm.config.engram",
        "EngramConfig",
        "cpu_offload",
        "embedding_across_dp",
        "dp_shared_memory",
    ),
    has_fields("vllm.config.vllm", "VllmConfig", "engram_config"),
    has_fields("vllm.config.load", "LoadConfig", "load_format"),
)

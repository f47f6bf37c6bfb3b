"""What the command ``doctor`` relies on of vLLM."""

from __future__ import annotations

from vllm_deepinfer.contract.symbols import Symbol, calls, has_fields, uses

_ARGUMENTS = "vllm.engine.arg_utils"
_UTILS, _PLANNING = "vllm.v1.core.kv_cache_utils", "vllm.v1.core.kv_cache_planning"
_PLAN = ("vllm_config", "kv_cache_specs", "available_memory")

DOCTOR: tuple[Symbol, ...] = (
    calls("vllm.entrypoints.launchers.cli_args", "make_arg_parser", "parser", until=(0, 33)),
    calls(
        "vllm.entrypoints.launchers.cli_args", "validate_parsed_serve_args", "args", until=(0, 33)
    ),
    calls("vllm.entrypoints.common.cli_args", "make_arg_parser", "parser", since=(0, 33)),
    calls("vllm.entrypoints.common.cli_args", "validate_parsed_serve_args", "args", since=(0, 33)),
    uses("vllm.utils.argparse_utils", "FlexibleArgumentParser"),
    calls(_ARGUMENTS, "AsyncEngineArgs.from_cli_args", "cls", "args"),
    calls(_ARGUMENTS, "AsyncEngineArgs.create_engine_config", "self", "usage_context"),
    has_fields(_ARGUMENTS, "EngineArgs", "skip_tokenizer_init"),
    uses("vllm.usage.usage_lib", "UsageContext.OPENAI_API_SERVER"),
    uses("vllm.platforms", "_current_platform"),
    uses("vllm.config.vllm", "set_current_vllm_config"),
    calls(_UTILS, "get_kv_cache_configs", *_PLAN, until=(0, 33)),
    calls(_PLANNING, "get_kv_cache_configs", *_PLAN, "global_kv_cache_groups", since=(0, 33)),
    calls(_PLANNING, "get_global_kv_cache_groups", "vllm_config", "kv_cache_specs", since=(0, 33)),
    calls(
        "vllm.v1.attention.backends.utils",
        "resolve_kv_cache_layout",
        "vllm_config",
        "supported_layouts",
        "kv_cache_specs",
    ),
    calls("vllm.v1.core.single_type_kv_cache_manager", "register_all_kvcache_specs", "vllm_config"),
    calls(_UTILS, "get_kv_cache_capacity", "vllm_config", "kv_cache_config"),
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

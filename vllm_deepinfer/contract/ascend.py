"""What the Ascend 950 platform, its worker, redirect and graphs rely on."""

from __future__ import annotations

from vllm_deepinfer.contract.symbols import Symbol, calls, has_fields, overrides, uses

_INTERFACE = "vllm.platforms.interface"
_WORKER = "vllm.v1.worker.gpu_worker"
_RUNNER = "vllm.v1.worker.gpu.model_runner"
_GRAPHS = "vllm.v1.worker.gpu.cudagraph_utils"
_BACKEND = "vllm.v1.attention.backend"
_STATE = "vllm.v1.worker.gpu.model_states.default"
_COMMUNICATORS = "vllm.distributed.device_communicators"
_CONFIG = "vllm.config.vllm"

ASCEND_PLATFORM: tuple[Symbol, ...] = (
    uses("vllm.platforms", "Platform"),
    uses("vllm.platforms", "PlatformEnum"),
    uses(_INTERFACE, "PlatformEnum.OOT"),
    overrides(_INTERFACE, "Platform.pre_register_and_update", "cls", "parser"),
    overrides(_INTERFACE, "Platform.apply_config_platform_defaults", "cls", "vllm_config"),
    overrides(_INTERFACE, "Platform.check_and_update_config", "cls", "vllm_config"),
    overrides(_INTERFACE, "Platform.update_block_size_for_backend", "cls", "vllm_config"),
    overrides(_INTERFACE, "Platform.validate_request", "cls", "processed_inputs", "params"),
    overrides(_INTERFACE, "Platform.import_kernels", "cls"),
    uses(_INTERFACE, "Platform.get_attn_backend_cls"),
    overrides(_INTERFACE, "Platform.get_device_communicator_cls", "cls"),
    overrides(_INTERFACE, "Platform.support_hybrid_kv_cache", "cls"),
    overrides(_INTERFACE, "Platform.support_static_graph_mode", "cls"),
    overrides(_INTERFACE, "Platform.opaque_attention_op", "cls"),
    overrides(_INTERFACE, "Platform.check_runner_kv_caches_multi_layer", "cls"),
    overrides(_INTERFACE, "Platform.supports_mx", "cls"),
    overrides(_INTERFACE, "Platform.supports_fp8", "cls"),
    overrides(_INTERFACE, "Platform.check_if_supports_dtype", "cls", "dtype"),
    overrides(_INTERFACE, "Platform.get_device_capability", "cls", "device_id"),
    overrides(_INTERFACE, "Platform.get_device_name", "cls", "device_id"),
    overrides(_INTERFACE, "Platform.get_device_total_memory", "cls", "device_id"),
    overrides(_INTERFACE, "Platform.get_current_memory_usage", "cls", "device"),
    overrides(_INTERFACE, "Platform.set_device", "cls", "device"),
    overrides(_INTERFACE, "Platform.manual_seed_all", "cls", "seed"),
    # Names that the platform does not define are looked up in torch.npu.
    uses(_INTERFACE, "Platform.__getattr__"),
    uses("vllm.envs", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"),
    uses("vllm.envs", "VLLM_WORKER_MULTIPROC_METHOD"),
    has_fields(
        "vllm.config.compilation",
        "CompilationConfig",
        "cudagraph_capture_sizes",
        "max_cudagraph_capture_size",
    ),
    uses("vllm.config.compilation", "CUDAGraphMode.FULL_DECODE_ONLY"),
    has_fields("vllm.config.kernel", "KernelConfig", "enable_jit_warmup"),
    has_fields(
        "vllm.config.model",
        "ModelConfig",
        "enforce_eager",
        "enable_sleep_mode",
        "enable_cumem_allocator",
        "hf_text_config",
    ),
    uses(_CONFIG, "VllmConfig.num_speculative_tokens"),
    has_fields(_CONFIG, "VllmConfig", "kernel_config"),
)

ASCEND_WORKER: tuple[Symbol, ...] = (
    uses(_WORKER, "Worker.__init__"),
    uses(_INTERFACE, "Platform.dist_backend"),
    overrides(_WORKER, "Worker._maybe_get_memory_pool_context", "self", "tag"),
    overrides(_WORKER, "Worker.execute_dummy_batch", "self"),
    calls(_WORKER, "Worker._init_workspace_and_model_runner", "self"),
    calls(
        _WORKER,
        "init_worker_distributed_environment",
        "vllm_config",
        "rank",
        "distributed_init_method",
        "local_rank",
        "backend",
    ),
    calls("vllm.v1.worker.utils", "request_memory", "init_snapshot", "cache_config"),
    uses("vllm.utils.mem_utils", "MemorySnapshot"),
    calls("vllm.utils.torch_utils", "set_random_seed", "seed"),
    calls("vllm.model_executor.model_loader", "get_model_loader", "load_config"),
    calls(_INTERFACE, "set_assigned_physical_gpu_ids", "ids"),
    calls(_INTERFACE, "Platform.logical_device_id_to_visible_device_id", "cls", "device_id"),
    has_fields(
        "vllm.config.parallel",
        "ParallelConfig",
        "assigned_physical_gpu_ids",
        "data_parallel_rank_local",
        "data_parallel_index",
    ),
)

# What the redirect replaces in the runner's modules. That no other module of the runner asks for
# torch.cuda, tests/platforms/test_ascend950_redirect.py reads in the sources.
REDIRECT: tuple[Symbol, ...] = (
    uses(_RUNNER, "torch"),
    uses("vllm.v1.worker.gpu.async_utils", "torch"),
    uses(_GRAPHS, "torch"),
    uses("vllm.v1.worker.gpu.structured_outputs", "torch"),
    uses("vllm.v1.worker.gpu.spec_decode.utils", "torch"),
    overrides(_GRAPHS, "graph_capture", "device"),
    overrides("vllm.v1.worker.gpu.buffer_utils", "is_uva_available"),
    uses(_WORKER, "kernel_warmup"),
    uses("vllm.v1.sample.ops.topk_topp_sampler", "HAS_TRITON"),
    uses("vllm.utils.torch_utils", "_current_stream_tls"),
)

GRAPHS: tuple[Symbol, ...] = (
    overrides(
        _BACKEND,
        "AttentionMetadataBuilder.get_cudagraph_support",
        "cls",
        "vllm_config",
        "kv_cache_spec",
    ),
    overrides(
        _BACKEND,
        "AttentionMetadataBuilder.build_for_cudagraph_capture",
        "self",
        "common_attn_metadata",
    ),
    uses(_BACKEND, "AttentionCGSupport.UNIFORM_BATCH"),
    uses(_BACKEND, "AttentionCGSupport.NEVER"),
    has_fields(_BACKEND, "CommonAttentionMetadata", "max_seq_len", "query_start_loc_cpu"),
    overrides(_STATE, "DefaultModelState.prepare_dummy_inputs", "self", "num_reqs", "num_tokens"),
    has_fields(
        "vllm.v1.worker.gpu.input_batch",
        "InputBatch",
        "num_tokens_after_padding",
        "query_start_loc",
        "num_reqs",
    ),
)

COMMUNICATOR: tuple[Symbol, ...] = (
    uses(f"{_COMMUNICATORS}.base_device_communicator", "DeviceCommunicatorBase.__init__"),
    has_fields(
        f"{_COMMUNICATORS}.base_device_communicator",
        "DeviceCommunicatorBase",
        "use_all2all",
        "cpu_group",
        "all2all_manager",
    ),
    overrides(
        f"{_COMMUNICATORS}.base_device_communicator",
        "DeviceCommunicatorBase.all_gather",
        "self",
        "input_",
        "dim",
    ),
    uses(f"{_COMMUNICATORS}.all2all", "AgRsAll2AllManager"),
)

MEMORY_PROFILE: tuple[Symbol, ...] = (
    overrides(_WORKER, "Worker.determine_available_memory", "self"),
    calls(_GRAPHS, "_init_minimal_kv_cache_for_profiling", "runner"),
    calls(_GRAPHS, "_teardown_profiling_state", "runner"),
    uses(_RUNNER, "GPUModelRunner.profile_run"),
    calls(_RUNNER, "GPUModelRunner._dummy_run", "self", "num_tokens", "is_profile"),
    has_fields(_RUNNER, "GPUModelRunner", "max_num_tokens"),
)

ASCEND: tuple[Symbol, ...] = (
    *ASCEND_PLATFORM,
    *ASCEND_WORKER,
    *REDIRECT,
    *GRAPHS,
    *COMMUNICATOR,
    *MEMORY_PROFILE,
)

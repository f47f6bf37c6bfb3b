"""What data and expert parallelism rely on in vLLM."""

from __future__ import annotations

from vllm_deepinfer.contract.symbols import Symbol, calls, has_fields, overrides, uses

_COMMUNICATORS = "vllm.distributed.device_communicators"
_GROUPS = "vllm.distributed.parallel_state"
_CPUS = "vllm.utils.cpu_resource_utils"
_EXECUTOR = "vllm.v1.executor.multiproc_executor"

DISTRIBUTED: tuple[Symbol, ...] = (
    overrides("vllm.platforms.cpu", "CpuPlatform.get_device_communicator_cls", "cls"),
    calls("vllm.config", "get_current_vllm_config_or_none"),
    calls(
        f"{_COMMUNICATORS}.cpu_communicator",
        "CpuCommunicator.__init__",
        "self",
        "cpu_group",
        "device",
        "device_group",
        "unique_name",
        "use_all2all",
    ),
    has_fields(
        f"{_COMMUNICATORS}.base_device_communicator",
        "DeviceCommunicatorBase",
        "device_group",
        "rank_in_group",
        "world_size",
    ),
    overrides(
        f"{_COMMUNICATORS}.base_device_communicator",
        "DeviceCommunicatorBase.all_gatherv",
        "self",
        "input_",
        "dim",
        "sizes",
    ),
    overrides(
        f"{_COMMUNICATORS}.base_device_communicator",
        "DeviceCommunicatorBase.reduce_scatterv",
        "self",
        "input_",
        "dim",
        "sizes",
    ),
    calls(_GROUPS, "get_dp_group"),
    calls(_GROUPS, "get_ep_group"),
    calls(_GROUPS, "GroupCoordinator.all_gather", "self", "input_", "dim"),
    calls(_GROUPS, "GroupCoordinator.all_gatherv", "self", "input_", "dim", "sizes"),
    calls(_GROUPS, "GroupCoordinator.reduce_scatterv", "self", "input_", "dim", "sizes"),
    has_fields(_GROUPS, "GroupCoordinator", "rank_in_group", "world_size"),
    # Wrapped, and told from `_dummy_run` by that: it is what a rank without requests runs.
    overrides("vllm.v1.worker.gpu_worker", "Worker.execute_dummy_batch", "self"),
    uses("vllm.v1.worker.gpu.model_runner", "GPUModelRunner._dummy_run"),
    calls(_CPUS, "get_allowed_cpu_list"),
    calls(_CPUS, "get_visible_memory_node"),
    has_fields(_CPUS, "LogicalCPUInfo", "id", "physical_core", "numa_node"),
    uses("vllm.envs", "VLLM_CPU_OMP_THREADS_BIND"),
    uses("vllm.envs", "VLLM_MQ_MAX_CHUNK_BYTES_MB"),
    calls(
        f"{_COMMUNICATORS}.shm_broadcast",
        "MessageQueue.__init__",
        "self",
        "n_reader",
        "n_local_reader",
        "max_chunk_bytes",
    ),
    # Makes the queue of results by the class's name in this module, which a worker replaces.
    uses(_EXECUTOR, "MessageQueue"),
    calls(_EXECUTOR, "WorkerProc._init_message_queues", "self", "input_shm_handle", "vllm_config"),
    has_fields(
        "vllm.config.parallel",
        "ParallelConfig",
        "data_parallel_size_local",
        "data_parallel_backend",
        "data_parallel_external_lb",
        "data_parallel_hybrid_lb",
        "distributed_executor_backend",
        "nnodes",
        "enable_expert_parallel",
        "enable_elastic_ep",
        "enable_fault_tolerance",
        "enable_ep_weight_filter",
        "enable_dbo",
        "ubatch_size",
        "all2all_backend",
        "expert_placement_strategy",
    ),
)

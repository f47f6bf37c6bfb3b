"""What the scheduler mixin edits, reads and overrides of vLLM's schedulers, and the vote."""

from __future__ import annotations

from vllm_deepinfer.contract.symbols import Symbol, calls, has_fields, overrides, uses

_SCHEDULER = "vllm.v1.core.sched.scheduler"
_INTERFACE = "vllm.v1.core.sched.interface"
_REQUEST = "vllm.v1.request"
_WORKER = "vllm.v1.worker.gpu_worker"
_ENGINE = "vllm.v1.engine.core"

SCHEDULER: tuple[Symbol, ...] = (
    overrides(_SCHEDULER, "Scheduler.schedule", "self", "throttle_prefills"),
    overrides(_SCHEDULER, "Scheduler.add_request", "self", "request"),
    # Edited around a step of one phase and put back; see scheduler/phases.py.
    has_fields(
        _SCHEDULER,
        "Scheduler",
        "running",
        "waiting",
        "requests",
        "max_num_active_reqs",
        "max_num_scheduled_tokens",
        "max_model_len",
        "num_waiting_for_streaming_input",
        "prefill_capacity_bound",
        "kv_cache_manager",
        "_pause_state",
    ),
    uses(_INTERFACE, "PauseState.UNPAUSED"),
    uses(_INTERFACE, "PauseState.PAUSED_ALL"),
    uses("vllm.v1.core.kv_cache_manager", "KVCacheManager.usage"),
    has_fields(
        _REQUEST,
        "Request",
        "request_id",
        "status",
        "max_tokens",
        "num_prompt_tokens",
        "num_computed_tokens",
        "num_in_flight_tokens",
        "is_prefill_chunk",
        "spec_token_ids",
        "structured_output_request",
    ),
    uses(_REQUEST, "Request.num_tokens"),
    # What that property counts; csrc/scheduling reads the list itself.
    has_fields(_REQUEST, "Request", "_all_token_ids"),
    # Blocks that `update_from_output` counts are told before it runs, by its own rules: those of
    # requests that are there, unfinished and not stale, where something was sampled.
    has_fields(_REQUEST, "Request", "num_stale_output_tokens", "drop_stale_output"),
    has_fields(_SCHEDULER, "Scheduler", "num_sampled_tokens_per_step"),
    uses(_REQUEST, "RequestStatus.WAITING"),
    uses(_REQUEST, "RequestStatus.PREEMPTED"),
    uses(_REQUEST, "RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR"),
    has_fields(
        "vllm.v1.core.sched.output",
        "SchedulerOutput",
        "scheduled_new_reqs",
        "num_scheduled_tokens",
        "total_num_scheduled_tokens",
        "scheduled_spec_decode_tokens",
        "num_invalid_spec_tokens",
    ),
    has_fields(
        "vllm.v1.outputs", "ModelRunnerOutput", "req_id_to_index", "sampled_token_ids", "req_ids"
    ),
)

STEP_TIMES: tuple[Symbol, ...] = (
    overrides(_WORKER, "Worker.execute_model", "self", "scheduler_output"),
    overrides("vllm.v1.worker.cpu_worker", "CPUWorker.compile_or_warm_up_model", "self"),
    overrides(_WORKER, "Worker.execute_dummy_batch", "self"),
    calls("vllm.v1.worker.gpu.model_runner", "GPUModelRunner._dummy_run", "self", "num_tokens"),
    has_fields(
        "vllm.v1.worker.gpu.model_runner",
        "GPUModelRunner",
        "max_num_reqs",
        "max_num_tokens",
        "decode_query_len",
        "model",
    ),
)

# Replaced on the class itself by patch/dp_vote.py, and what that reads of an engine.
VOTE: tuple[Symbol, ...] = (
    overrides(_ENGINE, "DPEngineCoreProc._has_global_unfinished_reqs", "self", "local_unfinished"),
    overrides(_ENGINE, "DPEngineCoreProc._should_throttle_prefills", "self"),
    has_fields(_ENGINE, "DPEngineCoreProc", "scheduler", "vllm_config", "dp_group", "step_counter"),
    has_fields("vllm.config.parallel", "ParallelConfig", "cpu_distributed_timeout_seconds"),
)

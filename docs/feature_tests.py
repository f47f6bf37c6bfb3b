"""Names for tests that several cells of the matrix of features are about."""

from __future__ import annotations

from evidence import of

CONTRACT = "tests/contract/test_upstream_contract_holds.py"
DETECTION = "tests/platforms/test_detection_follows_one_decision_table.py"
ELSEWHERE = "tests/doctor/test_platforms_elsewhere_are_judged_here.py"
ENGINE = "tests/engine/test_batch_invariant_tokens_do_not_depend_on_the_schedule.py"
OPENAI = "tests/serving/test_openai_endpoints.py"
ANTHROPIC = "tests/serving/test_anthropic_endpoint.py"
STRUCTURED = "tests/serving/test_structured_output.py"
RANKS = "tests/distributed/test_data_parallel_serves_as_one_rank.py"
ACCELERATOR = "tests/worker/test_accelerator_reports_what_the_cpu_does.py"
NPU_ENGINES = "tests/npu/test_engines_on_the_npu.py"
NPU_RANKS = "tests/npu/test_ranks_on_npus.py"
NPU_REFUSALS = "tests/platforms/test_ascend950_refuses_at_start.py"
NPU_SCHEMAS = "tests/npu_ops/test_calls_match_recorded_schemas.py"
SM100_CONFIGURES = "tests/platforms/test_sm100_configures_the_model.py"
SM100_WORKERS = "tests/platforms/test_sm100_workers_know_their_model.py"
DOCTOR = tuple(
    f"tests/doctor/test_{name}.py"
    for name in (
        "machine_checks_find_their_traps", "memory_plan_is_what_the_engine_takes",
        "options_are_judged_as_the_server_would", "shared_memory_is_judged_once",
        "state_is_read_from_the_machine", "the_command_reports_what_it_can",
    )
)  # fmt: skip
TRITON = tuple(
    f"tests/triton_kernels/test_{name}.py"
    for name in (
        "cache_rows", "engram", "fp4_experts", "indexer", "linear", "quantise_fp8", "router",
        "rows", "sink_attention", "whole_model",
    )
)  # fmt: skip
DRAFTING = tuple(
    f"tests/drafting/test_{name}.py"
    for name in (
        "accepted_prefix", "drafting_changes_no_token", "length_and_thinking_limits",
        "parameters_under_drafting", "rejected_drafts_leave_nothing",
        "stand_in_text_survives_the_engine", "structured_output_under_drafting",
        "thought_and_answer_in_one_step",
    )
)  # fmt: skip
VOTE = tuple(
    f"tests/{name}"
    for name in (
        "patch", "scheduling/test_phases_in_the_engine.py", "scheduler/test_ballots.py",
        "scheduler/test_vote_bounds.py", "scheduler/test_vote_compatible.py",
        "scheduler/test_vote_is_damped.py", "scheduler/test_vote_refusals.py",
    )
)  # fmt: skip
SPREAD = tuple(
    f"tests/distributed/test_{name}.py"
    for name in (
        "collectives_of_unequal_rows", "engram_tables_are_spread", "idle_ranks_only_join",
        "ranks_load_their_own_experts", "spread_experts_equal_local_ones",
    )
)  # fmt: skip


def answers(scenario: str) -> tuple[str, ...]:
    """That an engine on the npu answers as the CPU's does."""
    test = "test_answers_are_the_cpus"
    return of(NPU_ENGINES, *(f"{test}[{kind}-{scenario}]" for kind in ("greedy", "logprobs")))


STREAMS = (
    of(OPENAI, "test_a_streamed_chat_is_the_same_answer")
    + of(OPENAI, "test_a_stream_ends_with_usage_and_done")
    + of(OPENAI, "test_a_streamed_completion_is_the_same_answer")
    + of(ANTHROPIC, "test_streamed_and_whole_messages_agree")
    + of(STRUCTURED, "test_a_streamed_answer_by_schema_is_valid")
)
WHOLE = ("test_models_lists_the_one_model", "test_a_chat_is_answered",
         "test_a_later_turn_contains_the_earlier_ones",
         "test_completions_take_text_ids_and_lists_of_both",
         "test_echo_returns_the_prompt_with_the_answer")  # fmt: skip
PARAMETERS = "tests/serving/test_sampling_parameters.py"
CHAT = "tests/serving/test_parsers_read_the_chat_format.py"
CHUNKS = of(
    ENGINE, "test_chunk_size_changes_nothing", "test_strangers_in_mixed_steps_change_nothing"
)
PREFIXES = of(ENGINE, "test_prefix_cache_hit_changes_nothing")
PREEMPTIONS = of(
    ENGINE, "test_preemption_changes_nothing", "test_preemption_for_want_of_blocks_changes_nothing"
)
SPREAD_SERVERS = of(
    RANKS, "test_a_request_alone", "test_a_mixed_load", "test_both_ranks_served_and_counted",
    "test_a_killed_worker_ends_the_server_with_errors",
)  # fmt: skip

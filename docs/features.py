"""The features of the matrix, and which tests are the evidence for each on which platform.

To add a feature, add a line to ``FEATURES``; ``make feature-matrix`` refuses tests that did not
pass. A cell names the tests that show that very feature on that very platform: a whole file only
where all of it does.
"""

from __future__ import annotations

from evidence import NONE, VLLMS, cell, feature, of
from feature_tests import (
    ACCELERATOR,
    CONTRACT,
    DETECTION,
    DOCTOR,
    ELSEWHERE,
    NPU_ENGINES,
    NPU_RANKS,
    NPU_REFUSALS,
    NPU_SCHEMAS,
    RANKS,
    SM100_CONFIGURES,
    SPREAD,
    SPREAD_SERVERS,
    TRITON,
    VOTE,
    answers,
)
from features_served import SERVED

FEATURES = (
    feature(
        "platform detected, or the machine left to vLLM",
        cell("runs", DETECTION),
        cell("runs", "tests/platforms/test_other_builds_serve_our_model_alone.py"),
        cell("host", DETECTION, "tests/platforms/test_gpus_are_read_from_the_driver.py"),
        cell("host", DETECTION, "tests/platforms/test_npus_are_told_by_file_system_and_driver.py"),
    ),
    feature(
        "`vllm-deepinfer doctor`",
        cell("runs", DOCTOR),
        NONE,
        cell("host", ELSEWHERE, note="also on a machine without a GPU"),
        cell(
            "host",
            of(ELSEWHERE, "test_vllm_asks_the_asked_platform_alone"),
            of(
                "tests/doctor/test_the_command_reports_what_it_can.py",
                "test_options_for_a_platform_that_is_not_here",
            ),
            note="options and memory; devices and their software were put in by the test",
        ),
    ),
    feature(
        "other models on the same installation",
        cell("runs", "tests/platforms/test_other_models_keep_stock_behaviour.py"),
        cell(
            "refused",
            of(
                "tests/platforms/test_other_builds_serve_our_model_alone.py",
                "test_another_model_is_refused_by_name",
                "test_our_model_and_its_drafter_are_not_refused",
            ),
        ),
        cell(
            "host",
            of(SM100_CONFIGURES, "test_other_models_keep_stock_behaviour"),
            note="stock vLLM",
        ),
        cell(
            "refused",
            of(NPU_REFUSALS, "test_other_models_are_refused_in_one_sentence"),
            of(NPU_ENGINES, "test_other_models_are_refused_in_one_sentence"),
        ),
    ),
    feature(
        "what cannot hold is refused at start, by name",
        cell("runs", "tests/platforms/test_unsupported_options_are_refused_at_start.py"),
        NONE,
        cell("host", of(SM100_CONFIGURES, "test_what_cannot_hold_is_refused_by_name")),
        cell(
            "host",
            of(
                NPU_REFUSALS,
                "test_each_option_is_refused_by_name",
                "test_rules_of_the_cpu_hold_here_too_unless_replaced",
                "test_variables_that_contradict_the_engine_are_refused",
                "test_ranks_hold_equally_many_experts",
            ),
        ),
    ),
    feature(
        "symbols of vLLM relied on exist, with their parameters",
        cell("source", of(CONTRACT, "test_the_release_keeps_the_contract[installed]")),
        cell("source", of(CONTRACT, "test_the_release_keeps_the_contract[0.33.0]")),
        *2
        * [
            cell(
                "source",
                of(CONTRACT, "test_the_release_keeps_the_contract[installed]"),
                of(CONTRACT, "test_the_release_keeps_the_contract[0.33.0]"),
            )
        ],
    ),
    feature(
        "checkpoint in the published format, every tensor checked",
        cell("runs", "tests/checkpoint"),
        NONE,
        VLLMS,
        cell(
            "fake device",
            of(NPU_ENGINES, "test_every_weight_is_the_checkpoints_and_on_the_npu"),
            note="the weights are the checkpoint's bytes; refusals were tried on the CPU only",
        ),
    ),
    feature(
        "model equals the published reference's vectors",
        cell(
            "runs",
            "tests/model/test_decoder_matches_the_oracle.py",
            "tests/model/test_draft_matches_the_oracle.py",
            "tests/oracle",
            "tests/cli/test_selfcheck_tells_right_from_wrong.py",
        ),
        NONE,
        VLLMS,
        cell("fake device", answers("eager"), note="equals the CPU's tokens and log-probabilities"),
    ),
    *SERVED,
    feature(
        "prefill vote",
        cell("runs", VOTE, of(RANKS, "test_ranks_that_vote_take_every_step_alike")),
        cell(
            "runs",
            "tests/scheduling/test_phases_in_the_engine.py",
            of(RANKS, "test_ranks_that_vote_take_every_step_alike"),
        ),
        cell(
            "host",
            of(SM100_CONFIGURES, "test_scheduling_of_either_class_is_this_packages"),
            note="its scheduler is chosen",
        ),
        cell(
            "host",
            of(
                "tests/platforms/test_ascend950_configures_the_model.py",
                "test_model_gets_our_worker_scheduler_and_runner",
            ),
            note="its scheduler is chosen",
        ),
        cell(
            "emulated",
            "tests/aarch64/test_scheduling_decides_as_on_x86.py",
            note="votes, draft table and loops over requests; no engine",
        ),
    ),
    feature(
        "adaptive verification by measured costs",
        *2 * [cell("runs", "tests/scheduling/test_adaptive_verification_in_the_engine.py")],
        cell(
            "host",
            "tests/worker/test_planner_costs_keep_ranks_in_step.py",
            of(
                SM100_CONFIGURES,
                "test_one_planner_at_most_trims_drafts",
                "test_planner_is_the_one_that_can_run_and_is_named",
            ),
        ),
        cell(
            "host",
            of(
                ACCELERATOR,
                "test_planned_steps_change_no_token",
                "test_costs_begin_with_the_profile_and_follow_served_steps",
            ),
            of(
                NPU_REFUSALS,
                "test_adaptive_verification_in_the_worker_is_led_to_the_schedulers",
            ),
        ),
        cell(
            "emulated",
            "tests/aarch64/test_planner_gives_the_numbers_of_x86.py",
            note="prices and plans; no engine",
        ),
    ),
    feature(
        "data-parallel ranks, each with all experts",
        *2 * [cell("runs", of(RANKS, "test_ranks_that_hold_everything"))],
        VLLMS,
        NONE,
    ),
    feature(
        "data-parallel ranks, experts spread over them",
        cell("runs", SPREAD_SERVERS, SPREAD),
        cell("runs", SPREAD_SERVERS),
        VLLMS,
        cell("fake device", of(NPU_RANKS, "test_ranks_answer_as_one_cpu")),
    ),
    feature(
        "experts reached by dispatch and combine (MC2)",
        NONE,
        NONE,
        NONE,
        cell(
            "schema",
            "tests/npu_ops/test_mc2_sums_what_one_rank_would.py",
            of(
                NPU_SCHEMAS,
                "test_every_call_fits_its_schema",
            ),
        ),
    ),
    feature(
        "FP8 and FP4 operations",
        cell("runs", "tests/kernels", "tests/ops"),
        NONE,
        cell("interpreter", TRITON),
        cell(
            "schema",
            NPU_SCHEMAS,
            "tests/npu_ops/test_layouts_move_bytes.py",
            "tests/npu_ops/test_model_runs_on_the_calls.py",
            "tests/npu_ops/test_torch_forms_equal_their_references.py",
        ),
        cell(
            "emulated",
            "tests/aarch64/test_kernels_give_the_bits_of_x86.py",
            "tests/aarch64/test_a_changed_rounding_is_found.py",
            note="every C++ kernel",
        ),
    ),
    feature(
        "kernels compiled as the model launches them",
        NONE,
        NONE,
        cell(
            "compiled",
            "tests/triton_kernels/test_kernels_compile.py",
            "tests/triton_kernels/test_launches_are_the_models_calls.py",
            note="for sm_90a and sm_100a; a sample here, all of them by `make compile-kernels`",
        ),
        NONE,
    ),
    feature(
        "counters in /metrics",
        *2 * [cell("runs", "tests/metrics")],
        NONE,
        NONE,
    ),
)

SHARED: dict[tuple[str, str, str], str] = {}
"""Two features of a column that rest on the very same tests, ``(column, feature, feature)`` in the
order above, and why these show both."""

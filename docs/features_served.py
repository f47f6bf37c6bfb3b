"""The features of the matrix that requests meet; see ``features``."""

from __future__ import annotations

from evidence import NONE, VLLMS, cell, feature, of
from feature_tests import (
    ACCELERATOR,
    ANTHROPIC,
    CHAT,
    CHUNKS,
    DRAFTING,
    ENGINE,
    NPU_ENGINES,
    NPU_RANKS,
    NPU_REFUSALS,
    OPENAI,
    PARAMETERS,
    PREEMPTIONS,
    PREFIXES,
    SM100_CONFIGURES,
    SM100_WORKERS,
    STREAMS,
    STRUCTURED,
    WHOLE,
    answers,
)

SERVED = (
    feature(
        "OpenAI endpoints",
        *2 * [cell("runs", of(OPENAI, *WHOLE))],
        VLLMS,
        cell("fake device", of(NPU_RANKS, "test_a_chat_is_answered_whole_and_streamed")),
    ),
    feature(
        "Anthropic endpoint",
        *2 * [cell("runs", ANTHROPIC)],
        VLLMS,
        cell("fake device", of(NPU_RANKS, "test_a_message_is_answered_whole_and_streamed")),
    ),
    feature(
        "streaming",
        *2 * [cell("runs", STREAMS)],
        VLLMS,
        cell(
            "fake device",
            of(
                NPU_RANKS,
                "test_a_chat_is_answered_whole_and_streamed",
                "test_a_message_is_answered_whole_and_streamed",
            ),
        ),
    ),
    feature(
        "thoughts and tool calls told apart",
        *2 * [cell("runs", CHAT, of(STRUCTURED, "test_a_forced_tool_call_is_made"))],
        VLLMS,
        NONE,
    ),
    feature(
        "sampling parameters and stopping",
        *2 * [cell("runs", PARAMETERS)],
        VLLMS,
        cell(
            "fake device",
            of(
                NPU_ENGINES,
                "test_sampling_parameters_choose_what_they_choose_on_the_cpu",
                "test_answers_stop_where_they_stop_on_the_cpu",
                "test_answers_are_the_cpus[drawn-eager]",
            ),
        ),
    ),
    feature(
        "structured output",
        *2 * [cell("runs", STRUCTURED)],
        VLLMS,
        cell("fake device", of(NPU_ENGINES, "test_structured_output_holds_its_constraint")),
    ),
    feature(
        "paging and chunked prefill",
        cell("runs", "tests/model/test_decoder_pages_its_caches.py", CHUNKS),
        cell("runs", CHUNKS),
        VLLMS,
        cell("fake device", of(NPU_ENGINES, "test_prompts_in_chunks_are_those_of_the_cpu")),
    ),
    feature(
        "prefix cache",
        *2 * [cell("runs", PREFIXES, "tests/drafting/test_drafting_keeps_prefix_hits.py")],
        VLLMS,
        cell("fake device", of(NPU_ENGINES, "test_a_prefix_hit_changes_nothing")),
    ),
    feature(
        "preemption",
        *2 * [cell("runs", PREEMPTIONS)],
        VLLMS,
        cell("fake device", of(NPU_ENGINES, "test_a_preempted_request_resumes_where_it_was")),
    ),
    feature(
        "decode steps replayed from graphs",
        NONE,
        NONE,
        cell("upstream", note="with vLLM's class; this package's runs eagerly"),
        cell(
            "fake device",
            answers("replayed"),
            of(NPU_ENGINES, "test_every_decode_step_is_a_replay"),
            of(NPU_ENGINES, "test_only_eager_steps_replay_nothing"),
            "tests/npu_ops/test_graphs_replay_every_operation.py",
        ),
    ),
    feature(
        "guard against hidden waits (`sync_guard`)",
        NONE,
        NONE,
        cell(
            "host",
            "tests/worker/test_sync_guard_reports_no_allowed_wait.py",
            of(ACCELERATOR, "test_guard_is_on_where_steps_are_launched_and_nowhere_else"),
        ),
        cell(
            "fake device",
            of(NPU_ENGINES, "test_a_hidden_wait_in_a_step_is_an_error"),
            of(NPU_ENGINES, "test_a_hidden_wait_in_a_captured_step_ends_the_start"),
        ),
    ),
    feature(
        "tokens do not depend on the batch (`batch_invariant`)",
        cell("runs", ENGINE, "tests/kernels/test_rows_do_not_depend_on_their_batch.py"),
        cell("runs", ENGINE),
        cell(
            "host",
            of(
                SM100_WORKERS,
                "test_every_switch_is_right_once_set",
                "test_each_switch_undone_is_named_alone",
            ),
            of(SM100_CONFIGURES, "test_switch_of_an_engine_does_not_outlive_it"),
            note="every switch set and checked; refused with vLLM's class",
        ),
        cell("refused", of(NPU_REFUSALS, "test_batch_invariance_is_not_promised")),
    ),
    feature(
        "DSpark drafts that change no token",
        *2 * [cell("runs", DRAFTING)],
        cell("upstream", note="with vLLM's class, the default: equal in distribution"),
        cell(
            "fake device",
            answers("drafting"),
            of(NPU_ENGINES, "test_answers_are_the_cpus[drawn-drafting]"),
            of(NPU_ENGINES, "test_drafts_are_accepted_and_verified_in_replays"),
        ),
    ),
)

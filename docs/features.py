"""The features of the matrix, and which tests are the evidence for each on which platform.

To add a feature, add a line to ``FEATURES``; ``make feature-matrix`` refuses tests that did not
pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vllm_deepinfer.contract.releases import CPU_RELEASE, RELEASES

EVIDENCE = {
    "runs": "the tests ran it on this very hardware",
    "emulated": "the C++ core, built for ARM64, gave the bits of x86-64 in QEMU, which executes "
    "another processor's instructions one by one; no ARM processor has run it",
    "fake device": "the engine ran it on a test device named `npu`, which computes on the host",
    "interpreter": "Triton's interpreter ran the kernels and compared them with the reference",
    "compiled": "compiled for the real target on a machine without it, and not run",
    "schema": "calls were bound against the real `torch_npu`'s schemas, and ran on a stand-in",
    "host": "its Python ran on a CPU, with the hardware's answers put in by the test",
    "source": "what it relies on was checked in the source of that vLLM",
    "refused": "refused at start or in the request, by name",
    "upstream": "vLLM's own, left as it is; not tested here",
    "-": "does not apply, or there is no evidence",
}


@dataclass(frozen=True)
class Column:
    """A platform. report: the name of the test run whose results count."""

    title: str
    report: str


# The report of the tests on vLLM's build for CPUs.
BUILT = f"vllm-{CPU_RELEASE.tag}"
COLUMNS = {
    "cpu": Column(f"CPU, vLLM {CPU_RELEASE.minor}", BUILT),
    "cpu_033": Column(f"CPU, vLLM {RELEASES[-1].minor}", f"vllm-{RELEASES[-1].tag}"),
    "arm64": Column("CPU on ARM64, emulated", "aarch64"),
    "sm100": Column("NVIDIA SM100", BUILT),
    "ascend950": Column("Ascend 950", BUILT),
}


@dataclass(frozen=True)
class Cell:
    """What is known of a feature on a platform, and the tests (files or folders) that show it."""

    evidence: str
    tests: tuple[str, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        if self.evidence not in EVIDENCE:
            raise ValueError(f"evidence {self.evidence!r}: none of {', '.join(EVIDENCE)}")


@dataclass(frozen=True)
class Feature:
    name: str
    cells: Mapping[str, Cell]


NONE = Cell("-")


def cell(evidence: str, *tests: str, note: str = "") -> Cell:
    return Cell(evidence, tests, note)


def feature(
    name: str, cpu: Cell, cpu_033: Cell, sm100: Cell, ascend950: Cell, arm64: Cell = NONE
) -> Feature:
    return Feature(
        name,
        {"cpu": cpu, "cpu_033": cpu_033, "arm64": arm64, "sm100": sm100, "ascend950": ascend950},
    )


DETECTION = "tests/platforms/test_detection_follows_one_decision_table.py"
NPU_ENGINES = "tests/npu/test_engines_on_the_npu.py"
NPU_RANKS = "tests/npu/test_ranks_on_npus.py"
NPU_REFUSALS = "tests/platforms/test_ascend950_refuses_at_start.py"
SM100_CONFIGURES = "tests/platforms/test_sm100_configures_the_model.py"
SM100_WORKERS = "tests/platforms/test_sm100_workers_know_their_model.py"
ON_NPU = cell("fake device", NPU_ENGINES)
VLLMS = cell("upstream", note="with vLLM's class, the default")

FEATURES = (
    feature(
        "platform detected, or the machine left to vLLM",
        cell("runs", DETECTION),
        cell("runs", "tests/platforms/test_other_builds_serve_our_model_alone.py"),
        cell("host", DETECTION),
        cell("host", DETECTION, "tests/platforms/test_npus_are_told_by_file_system_and_driver.py"),
    ),
    feature(
        "`vllm-deepinfer doctor`",
        cell("runs", "tests/doctor"),
        NONE,
        cell("host", "tests/doctor/test_machine_checks_find_their_traps.py"),
        cell("host", "tests/doctor/test_machine_checks_find_their_traps.py"),
    ),
    feature(
        "other models on the same installation",
        cell("runs", "tests/platforms/test_other_models_keep_stock_behaviour.py"),
        cell("refused", "tests/platforms/test_other_builds_serve_our_model_alone.py"),
        cell("host", SM100_CONFIGURES, note="stock vLLM"),
        cell("refused", NPU_REFUSALS, NPU_ENGINES),
    ),
    feature(
        "what cannot hold is refused at start, by name",
        cell("runs", "tests/platforms/test_unsupported_options_are_refused_at_start.py"),
        NONE,
        cell("host", SM100_CONFIGURES),
        cell("host", NPU_REFUSALS),
    ),
    feature(
        "symbols of vLLM relied on exist, with their parameters",
        cell("source", "tests/contract/test_upstream_contract_holds.py"),
        cell("source", "tests/contract/test_upstream_contract_holds.py"),
        cell("source", "tests/contract/test_upstream_contract_holds.py"),
        cell("source", "tests/contract/test_upstream_contract_holds.py"),
    ),
    feature(
        "checkpoint in the published format, every tensor checked",
        cell("runs", "tests/checkpoint"),
        NONE,
        VLLMS,
        ON_NPU,
    ),
    feature(
        "model equals the published reference's vectors",
        cell("runs", "tests/model", "tests/oracle", "tests/cli"),
        NONE,
        VLLMS,
        cell("fake device", NPU_ENGINES, note="tokens and log-probabilities equal the CPU's"),
    ),
    feature(
        "OpenAI and Anthropic endpoints, streaming, chat format",
        *2
        * [
            cell(
                "runs",
                "tests/serving/test_openai_endpoints.py",
                "tests/serving/test_anthropic_endpoint.py",
                "tests/serving/test_parsers_read_the_chat_format.py",
            )
        ],
        VLLMS,
        cell("fake device", NPU_RANKS),
    ),
    feature(
        "sampling parameters, stopping, structured output",
        *2
        * [
            cell(
                "runs",
                "tests/serving/test_sampling_parameters.py",
                "tests/serving/test_stopping.py",
                "tests/serving/test_structured_output.py",
            )
        ],
        VLLMS,
        cell("fake device", NPU_ENGINES, note="greedy and seeded"),
    ),
    feature(
        "paging, prefix cache, chunked prefill, preemption",
        cell("runs", "tests/model/test_decoder_pages_its_caches.py", "tests/engine"),
        cell("runs", "tests/engine"),
        VLLMS,
        ON_NPU,
    ),
    feature(
        "decode steps replayed from graphs",
        NONE,
        NONE,
        cell("upstream", note="with vLLM's class; this package's runs eagerly"),
        cell("fake device", NPU_ENGINES, "tests/npu_ops/test_graphs_replay_every_operation.py"),
    ),
    feature(
        "guard against hidden waits (`sync_guard`)",
        NONE,
        NONE,
        cell(
            "host",
            "tests/worker/test_sync_guard_reports_no_allowed_wait.py",
            "tests/worker/test_accelerator_reports_what_the_cpu_does.py",
        ),
        ON_NPU,
    ),
    feature(
        "tokens do not depend on the batch (`batch_invariant`)",
        *2 * [cell("runs", "tests/engine")],
        cell("host", SM100_WORKERS, note="every switch set and checked; refused otherwise"),
        cell("refused", NPU_REFUSALS),
    ),
    feature(
        "DSpark drafts that change no token",
        *2 * [cell("runs", "tests/drafting")],
        VLLMS,
        ON_NPU,
    ),
    feature(
        "prefill vote",
        cell("runs", "tests/scheduling", "tests/scheduler", "tests/patch"),
        cell("runs", "tests/scheduling"),
        cell("host", SM100_CONFIGURES),
        cell(
            "host",
            "tests/platforms/test_ascend950_configures_the_model.py",
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
        cell("host", "tests/worker/test_planner_costs_keep_ranks_in_step.py", SM100_CONFIGURES),
        cell("host", "tests/worker/test_accelerator_reports_what_the_cpu_does.py"),
        cell(
            "emulated",
            "tests/aarch64/test_planner_gives_the_numbers_of_x86.py",
            note="prices and plans; no engine",
        ),
    ),
    feature(
        "data-parallel ranks, experts spread over them",
        cell("runs", "tests/distributed"),
        cell("runs", "tests/distributed/test_data_parallel_serves_as_one_rank.py"),
        VLLMS,
        cell("fake device", NPU_RANKS),
    ),
    feature(
        "experts reached by dispatch and combine (MC2)",
        NONE,
        NONE,
        NONE,
        cell(
            "schema",
            "tests/npu_ops/test_mc2_sums_what_one_rank_would.py",
            "tests/npu_ops/test_calls_match_recorded_schemas.py",
        ),
    ),
    feature(
        "FP8 and FP4 operations",
        cell("runs", "tests/kernels", "tests/ops"),
        NONE,
        cell("interpreter", "tests/triton_kernels", note="compiled for sm_90a and sm_100a"),
        cell("schema", "tests/npu_ops"),
        cell(
            "emulated",
            "tests/aarch64/test_kernels_give_the_bits_of_x86.py",
            "tests/aarch64/test_a_changed_rounding_is_found.py",
            note="every C++ kernel",
        ),
    ),
    feature(
        "counters in /metrics",
        *2 * [cell("runs", "tests/metrics")],
        NONE,
        NONE,
    ),
)

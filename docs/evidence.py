"""What the matrix of features is made of: kinds of evidence, platforms, cells."""

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
    """What is known of a feature on a platform, and the tests that show it.

    tests: folders, files, and single tests as pytest names them, all cases of one
        ("tests/x/test_y.py::test_z") or one case ("tests/x/test_y.py::test_z[case]").
    """

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
VLLMS = Cell("upstream", note="with vLLM's class, the default")


def cell(evidence: str, *tests: str | tuple[str, ...], note: str = "") -> Cell:
    """Tests one by one, or as ``of`` gives them."""
    named = [(test,) if isinstance(test, str) else test for test in tests]
    return Cell(evidence, tuple(name for names in named for name in names), note)


def feature(
    name: str, cpu: Cell, cpu_033: Cell, sm100: Cell, ascend950: Cell, arm64: Cell = NONE
) -> Feature:
    return Feature(
        name,
        {"cpu": cpu, "cpu_033": cpu_033, "arm64": arm64, "sm100": sm100, "ascend950": ascend950},
    )


def of(file: str, *tests: str) -> tuple[str, ...]:
    """Single tests of a file."""
    return tuple(f"{file}::{test}" for test in tests)

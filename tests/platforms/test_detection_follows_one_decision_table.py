"""One detector decides for every machine, and its whole decision table is here.

Claim: the environment override wins; then Ascend, then a CPU build of vLLM, then SM100, then
nothing. Hardware whose platform this release lacks is left to vLLM with one warning; asking for it
by name is an error. Detection imports neither vLLM nor torch and changes nothing. If this breaks,
the plugin takes over a machine it must not touch, or silently fails to start on its own.
"""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

from vllm_deepinfer import envs
from vllm_deepinfer.platforms import detect as module
from vllm_deepinfer.platforms.detect import (
    PLATFORM_CLASSES,
    PlatformUnavailableError,
    Probes,
    detect,
)

CPU = "vllm_deepinfer.platforms.cpu.DeepInferCpuPlatform"
SM100 = [(10, 0)]
HOPPER = [(9, 0)]


def probes(root, *, davinci=False, torch_npu=False, cpu_build=False, capabilities=()):
    device = root / "dev" / "davinci0"
    device.parent.mkdir(exist_ok=True)
    if davinci:
        device.touch()
    return Probes(
        root=root,
        has_module=lambda name: name == "torch_npu" and torch_npu,
        capabilities=lambda: list(capabilities),
        is_cpu_build=lambda: cpu_build,
    )


def expected_name(davinci, torch_npu, cpu_build, capabilities):
    """The decision table in words, as written in the docstring of `detect`."""
    if davinci and torch_npu:
        return "ascend950"
    if cpu_build:
        return "cpu"
    if capabilities and all(major == 10 for major, _ in capabilities):
        return "sm100"
    return None


MACHINES = list(
    itertools.product(
        (False, True), (False, True), (False, True), ((), HOPPER, SM100, SM100 * 8, SM100 + HOPPER)
    )
)


@pytest.mark.parametrize(("davinci", "torch_npu", "cpu_build", "capabilities"), MACHINES)
def test_without_override(tmp_path, davinci, torch_npu, cpu_build, capabilities):
    name = expected_name(davinci, torch_npu, cpu_build, capabilities)
    found = detect(
        {},
        probes(
            tmp_path,
            davinci=davinci,
            torch_npu=torch_npu,
            cpu_build=cpu_build,
            capabilities=capabilities,
        ),
    )
    assert found.qualname == PLATFORM_CLASSES.get(name)
    assert found.name == (name if name in PLATFORM_CLASSES else None)
    assert found.reason


@pytest.mark.parametrize(("davinci", "torch_npu", "cpu_build", "capabilities"), MACHINES)
@pytest.mark.parametrize("asked", envs.PLATFORM_CHOICES)
def test_override_beats_every_machine(tmp_path, asked, davinci, torch_npu, cpu_build, capabilities):
    machine = probes(
        tmp_path,
        davinci=davinci,
        torch_npu=torch_npu,
        cpu_build=cpu_build,
        capabilities=capabilities,
    )
    environ = {"DEEPINFER_PLATFORM": asked}
    if asked == "off":
        assert detect(environ, machine).qualname is None
    elif asked == "cpu" and cpu_build:
        assert detect(environ, machine).qualname == CPU
    else:
        with pytest.raises(PlatformUnavailableError, match=f"DEEPINFER_PLATFORM={asked}"):
            detect(environ, machine)


@pytest.mark.parametrize("value", ["CPU", "npu", " cpu", "cuda"])
def test_bad_override_names_the_choices(tmp_path, value):
    with pytest.raises(ValueError) as error:
        detect({"DEEPINFER_PLATFORM": value}, probes(tmp_path, cpu_build=True))
    assert repr(value) in str(error.value)
    for choice in envs.PLATFORM_CHOICES:
        assert choice in str(error.value)


def test_empty_override_means_detect(tmp_path):
    assert detect({"DEEPINFER_PLATFORM": ""}, probes(tmp_path, cpu_build=True)).name == "cpu"


def test_hardware_without_a_platform_is_warned_about_by_name(tmp_path, monkeypatch):
    warnings = []
    monkeypatch.setattr(module, "warn_once", lambda logger, message: warnings.append(message))
    detect({}, probes(tmp_path, capabilities=SM100))
    detect({}, probes(tmp_path, cpu_build=True))
    assert len(warnings) == 1
    assert "sm100" in warnings[0] and "DEEPINFER_PLATFORM" in warnings[0]


def test_a_new_platform_slots_in(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PLATFORM_CLASSES", {**PLATFORM_CLASSES, "sm100": "m.C"})
    assert detect({}, probes(tmp_path, capabilities=SM100)).qualname == "m.C"
    asked = {"DEEPINFER_PLATFORM": "sm100"}
    assert detect(asked, probes(tmp_path, capabilities=SM100)).qualname == "m.C"


def test_gpus_are_not_probed_for_a_cpu_build(tmp_path):
    def fail():
        raise AssertionError("the GPU driver was asked")

    machine = Probes(tmp_path, lambda name: False, fail, lambda: True)
    assert detect({}, machine).name == "cpu"


def test_entry_point_imports_nothing_heavy():
    code = (
        "import sys, vllm_deepinfer\n"
        "first = vllm_deepinfer.platform()\n"
        "assert first == vllm_deepinfer.platform()\n"
        "heavy = {'vllm', 'torch', 'numpy', 'triton', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "print(first)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == CPU

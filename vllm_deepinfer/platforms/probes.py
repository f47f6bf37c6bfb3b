"""What the detector can see of the machine, through seams that tests replace.

Standard library only: it runs while `import vllm` is under way.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path

from vllm_deepinfer import envs
from vllm_deepinfer.platforms.ascend_devices import AscendDevices, ascend_devices, driver_chips
from vllm_deepinfer.platforms.nvml import cuda_capabilities
from vllm_deepinfer.platforms.vllm_build import installed_builds, is_for_cpus

ENTRY_POINT = "deepinfer"
PLUGIN_GROUP = "vllm.platform_plugins"
# Local version labels (the part after "+") of vLLM builds for neither CPUs nor NVIDIA GPUs.
_OTHER_BUILDS = ("rocm", "xpu", "tpu", "empty", "hpu", "neuron", "gaudi")


class VllmBuild(Enum):
    """What the installed vLLM was built for."""

    ABSENT = "absent"
    CPU = "cpu"
    CUDA = "cuda"
    OTHER = "other"


@dataclass(frozen=True)
class Probes:
    """Everything the detector asks of the machine.

    root: where the file system starts.
    has_module: whether a Python module could be imported; it is not imported.
    builds: (name, version) of the distributions that installed vLLM, see `vllm_build`.
    platform_plugins: names of all installed entry points for platforms of vLLM.
    capabilities: compute capability (major, minor) of every NVIDIA GPU.
    ascend_chips: chip names that the Ascend driver of a file system gives.
    """

    root: Path
    has_module: Callable[[str], bool]
    builds: Callable[[], list[tuple[str, str]]]
    platform_plugins: Callable[[], tuple[str, ...]]
    capabilities: Callable[[], list[tuple[int, int]]]
    ascend_chips: Callable[[Path], list[str]]


def has_module(name: str) -> bool:
    """Whether module `name` is installed; does not import it."""
    return importlib.util.find_spec(name) is not None


def platform_plugins() -> tuple[str, ...]:
    """Names of the installed platform plugins of vLLM, this package's included."""
    return tuple(
        sorted({entry.name for entry in importlib.metadata.entry_points(group=PLUGIN_GROUP)})
    )


REAL_PROBES = Probes(
    Path("/"), has_module, installed_builds, platform_plugins, cuda_capabilities, driver_chips
)


class Machine:
    """The facts that the decision table is over; each is asked for once, when a row needs it."""

    def __init__(self, environ: Mapping[str, str] | None, probes: Probes) -> None:
        self._environ = os.environ if environ is None else environ
        self._probes = probes

    @property
    def is_listed(self) -> bool:
        """Whether vLLM loads this package's plugins at all."""
        return ENTRY_POINT in self._listed([ENTRY_POINT])

    @property
    def skips_plugins(self) -> bool:
        """Whether vLLM decides for the CPU before it looks at plugins."""
        return self._environ.get("VLLM_TARGET_DEVICE", "").lower() == "cpu"

    @cached_property
    def plugins(self) -> tuple[str, ...]:
        """Names of the platform plugins that vLLM would load, this package's included."""
        return tuple(self._listed(self._probes.platform_plugins()))

    def _listed(self, names: list[str] | tuple[str, ...]) -> list[str]:
        # VLLM_PLUGINS is an allow-list for every group of plugins; set and empty allows none.
        allowed = self._environ.get("VLLM_PLUGINS")
        return [name for name in names if allowed is None or name in allowed.split(",")]

    @cached_property
    def vllm_version(self) -> str:
        """Version of vLLM, "without metadata" where only its source is on the path."""
        return self._builds[-1][1] if self._builds else "without metadata"

    @cached_property
    def _builds(self) -> list[tuple[str, str]]:
        return self._probes.builds()

    @cached_property
    def build(self) -> VllmBuild:
        if not self._probes.has_module("vllm"):
            return VllmBuild.ABSENT
        if is_for_cpus(self._builds):
            return VllmBuild.CPU
        label = self.vllm_version.partition("+")[2]
        return VllmBuild.OTHER if label.startswith(_OTHER_BUILDS) else VllmBuild.CUDA

    @cached_property
    def has_torch_npu(self) -> bool:
        return self._probes.has_module("torch_npu")

    @cached_property
    def other_npu_module(self) -> str | None:
        """The module that brings the device npu instead of torch_npu, or None."""
        name = envs.npu_module(self._environ)
        return None if name == "torch_npu" else name

    def has_other_npu_module(self) -> bool:
        return self._probes.has_module(self.other_npu_module)

    @cached_property
    def ascend(self) -> AscendDevices:
        return ascend_devices(self._probes.root, self._probes.ascend_chips)

    @property
    def is_ascend(self) -> bool:
        """Whether NPUs are here and torch can use them."""
        return bool(self.ascend.nodes) and self.has_torch_npu

    @cached_property
    def gpus(self) -> list[tuple[int, int]]:
        return self._probes.capabilities()

    @property
    def majors(self) -> set[int]:
        return {major for major, _ in self.gpus}

    @property
    def shown_gpus(self) -> str:
        """Such as "compute capability 9.0, 10.0"."""
        versions = sorted(set(self.gpus))
        return "compute capability " + ", ".join(f"{major}.{minor}" for major, minor in versions)

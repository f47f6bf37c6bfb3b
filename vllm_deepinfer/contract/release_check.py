"""Everything that can be read off a release of vLLM before anybody installs it."""

from __future__ import annotations

from pathlib import Path

from vllm_deepinfer.contract import CONTRACT
from vllm_deepinfer.contract.kernels import kernel_lines, unknown_kernels
from vllm_deepinfer.contract.releases import RELEASES, Difference, Version, later_releases
from vllm_deepinfer.contract.source_reader import check_source, module_path


def check_release(root: Path, version: Version) -> list[str]:
    """One sentence for each thing this package expects of vLLM `version` and does not find.

    Imports the installed vLLM, which may be another release.

    Args:
        root: the folder that holds the package `vllm`, as source.
        version: (major, minor) of that source. One that is newer than the table of releases is
            expected to be as the newest of them.
    """
    problems = check_source((*CONTRACT, *kernel_lines(version)), root, version)
    problems += [
        f"{name} is a kernel that is launched, and runner_kernels has no form or refusal of it"
        for name in unknown_kernels(root, version)
    ]
    for release in later_releases(version):
        problems += [
            f"{difference.sign[0]} no longer has {difference.sign[1]!r}, the sign of what code "
            f"here provides for since {release.minor}: {difference.what} See "
            f"{', '.join(difference.handled_in)}"
            for difference in release.differences
            if not shows(difference, root)
        ]
    return problems


def shows(difference: Difference, root: Path) -> bool:
    """Whether the source below `root` has the sign of `difference`."""
    module, text = difference.sign
    path = module_path(root, module)
    return path is not None and text in path.read_text(encoding="utf-8")


def is_in_table(version: Version) -> bool:
    """Whether the table of releases has a row for `version`."""
    return any(release.version == version for release in RELEASES)

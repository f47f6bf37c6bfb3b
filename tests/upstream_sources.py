"""Where the source of each supported release of vLLM lies, for tests that read it or run it."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

from vllm_deepinfer.contract.releases import RELEASES, Release, Version, parse_version

REPOSITORY = Path(__file__).parents[1]
# Releases without a build for CPUs; `make upstream-source` fetches their source.
FETCHED: tuple[Release, ...] = tuple(r for r in RELEASES if r.cpu_distribution is None)
FETCHED_TAGS = tuple(release.tag for release in FETCHED)


def fetched_folder(tag: str) -> Path:
    """The folder that holds the package `vllm` of release `tag`, once it was fetched."""
    return REPOSITORY / ".cache" / f"vllm-{tag}-src"


def installed_source() -> Path:
    """The folder that holds the package `vllm` that is imported."""
    return Path(importlib.util.find_spec("vllm").origin).parents[1]


# By name, as the ids of tests have it.
SOURCES = {"installed": installed_source(), **{tag: fetched_folder(tag) for tag in FETCHED_TAGS}}


def source(name: str) -> Path:
    """One of `SOURCES`; fails if it is not there."""
    folder = SOURCES[name]
    assert folder.is_dir(), f"the source of vLLM {name} is missing: run `make upstream-source`"
    return folder


@cache
def version_of(name: str) -> Version:
    """(major, minor) of one of `SOURCES`."""
    if name != "installed":
        return parse_version(name)
    import vllm

    return parse_version(vllm.__version__)

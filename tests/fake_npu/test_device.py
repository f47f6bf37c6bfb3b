"""The device that engine tests run on is right: operations, memory, waits, graphs, collectives.

The checks are in checks/, and run in processes that have the device. If one fails, every test in
tests/npu is in doubt.
"""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from fake_npu import processes

CHECKS = Path(__file__).parent / "checks"
KINDS = ("operations", "device", "waits", "graphs")


@pytest.fixture(scope="module")
def outcomes(fake_npu_library, tmp_path_factory):
    """All checks, run by a pytest of their own: name -> what went wrong, or None; by kind."""
    report = tmp_path_factory.mktemp("checks") / "report.xml"
    files = [str(CHECKS / f"{kind}.py") for kind in KINDS]
    options = ["-q", "-p", "no:cacheprovider", "--tb=short", f"--junit-xml={report}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        env=processes.environment(FAKE_NPU_DEVICES="2"),
        capture_output=True,
        text=True,
        timeout=processes.TIMEOUT_S,
        check=False,
    )
    assert report.exists(), done.stdout + done.stderr
    found: dict[str, dict[str, str | None]] = {kind: {} for kind in KINDS}
    for case in ET.parse(report).getroot().iter("testcase"):
        kind = case.get("classname").rpartition(".")[2]
        faults = [part.text for part in case if part.tag in ("failure", "error", "skipped")]
        found[kind][case.get("name")] = "\n".join(map(str, faults)) or None
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_checks_on_the_device(kind, outcomes):
    faults = {name: fault for name, fault in outcomes[kind].items() if fault is not None}
    assert not faults, "\n\n".join(f"{name}:\n{fault}" for name, fault in faults.items())
    assert len(outcomes[kind]) > 5


def test_collectives_of_two_ranks(fake_npu_library, tmp_path):
    command = [sys.executable, str(CHECKS / "ranks.py"), str(tmp_path / "store")]
    ranks = [
        subprocess.Popen(
            [*command, str(rank)],
            env=processes.environment(FAKE_NPU_DEVICES="2"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        printed = [rank.communicate(timeout=processes.TIMEOUT_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(printed)


def test_a_missing_compiler_is_said(monkeypatch):
    from fake_npu import build

    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.CompilerMissingError, match="'no-such-compiler' is not found"):
        build.compiler()

"""`make check-fresh` tries machines that have nothing of this one.

Claim: what runs there finds an empty home, no configuration of pip and no variable of this machine
but those by which programs trust the network; a path with a space; and, where it is allowed,
another user than root, one core and a small /dev/shm. What pip says it downloaded is added up. If
this breaks, the table of machines in docs/install.md shows this machine, three times.
"""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "packaging" / "fresh"
LOOK = """
import json, os, pathlib, shutil
print(json.dumps({
    "user": os.getuid(), "cores": len(os.sched_getaffinity(0)), "folder": os.getcwd(),
    "shm": shutil.disk_usage("/dev/shm").total, "variables": dict(os.environ),
    "home": os.listdir(os.environ["HOME"]),
}))
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    module = runpy.run_path(str(FOLDER / "machine.py"))
    folder = tmp_path_factory.mktemp("fresh machine ")
    for path in (folder, *folder.parents):
        if path.stat().st_uid == 0 and path.is_relative_to("/tmp") and path != Path("/tmp"):
            path.chmod(path.stat().st_mode | 0o755)
    interpreter = Path(sys._base_executable)
    made = module["Machine"](folder / "a machine", interpreter, Path("/a/folder"))
    made.prepare(REPOSITORY)
    return made, module["allowed"](), module["TRUST"]


def test_it_sees_nothing_of_this_machine(machine, monkeypatch):
    monkeypatch.setenv("A_VARIABLE_OF_MINE", "1")
    made, allowed, trust = machine
    command = made.command([str(made.interpreter), "-c", LOOK], core=0)
    result = subprocess.run(
        command, cwd=made.checkout, env=made.environment(), capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout)
    ours = {"PATH", "HOME", "TMPDIR", "PIP_CONFIG_FILE", "PIP_NO_CACHE_DIR", "PIP_FIND_LINKS"}
    shells = {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}
    assert set(seen["variables"]) <= ours | shells | set(trust)
    assert seen["home"] == [] and " " in seen["folder"]
    if "user" in allowed:
        assert seen["user"] != 0
    if "one core" in allowed:
        assert seen["cores"] == 1
    if "mounts" in allowed:
        assert seen["shm"] == 64 << 20


def test_downloads_are_added_up(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    check = runpy.run_path(str(FOLDER / "check.py"))
    said = (
        "  Downloading a-1.whl (526.6 MB)\nDownloading b-1.whl (20 kB)\nUsing cached c.whl (9 MB)\n"
    )
    assert check["downloaded_mb"](said) == pytest.approx(526.62)

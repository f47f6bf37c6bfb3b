"""A machine where nobody has prepared anything, made of this one: how a command is run on it.

An empty environment and home, no pip configuration and no cache, a path with a space, another user
than root, one core and 64 MiB of /dev/shm. What this machine does not allow is left out and said.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SHM_MIB = 64
NOBODY = 65534
# How programs here trust the network; without them a machine behind a proxy of its own reaches
# no registry.
TRUST = ("SSL_CERT_FILE", "SSL_CERT_DIR", "PIP_CERT", "REQUESTS_CA_BUNDLE", "HTTPS_PROXY")
# uv would ask an index that is no configured registry. The test of that way serves one on loopback.
ABSENT_UV = "#!/bin/sh\necho 'error: no other registry is asked in this check' >&2\nexit 2\n"


@dataclass(frozen=True)
class Machine:
    """One fresh machine.

    folder: its home, its temporary files and the checkout lie below.
    interpreter: absolute path of a Python.
    wheels: folder that pip is told of; None for no pip configuration at all.
    """

    folder: Path
    interpreter: Path
    wheels: Path | None = None

    @property
    def checkout(self) -> Path:
        return self.folder / "a checkout"

    @property
    def _closed(self) -> Path | None:
        """The first folder on the way to the interpreter that other users cannot enter."""
        way = reversed(self.interpreter.parents)
        return next((p for p in way if not p.stat().st_mode & 0o001), None)

    def prepare(self, repository: Path) -> None:
        """Makes its folders and a clone of the repository's last commit."""
        for name in ("home", "tmp", "python", "bin"):
            (self.folder / name).mkdir(parents=True)
        uv = self.folder / "bin" / "uv"
        uv.write_text(ABSENT_UV)
        uv.chmod(0o755)
        subprocess.run(
            ["git", "clone", "-q", "--no-hardlinks", str(repository), str(self.checkout)],
            check=True,
        )
        if "user" in allowed():
            for path in (self.folder, *self.folder.rglob("*")):
                shutil.chown(path, NOBODY, NOBODY)

    def environment(self) -> dict[str, str]:
        variables = {
            "PATH": f"{self.folder / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "tmp"),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_CACHE_DIR": "1",
            **{name: os.environ[name] for name in TRUST if name in os.environ},
        }
        if self.wheels is not None:
            variables["PIP_FIND_LINKS"] = str(self.wheels)
        return variables

    def command(self, words: list[str], core: int) -> list[str]:
        """The command line that runs `words` in the checkout of this machine, on one core."""
        inner = shlex.join(words)
        if "user" in allowed():
            inner = shlex.join(
                ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] + words
            )
        inner = f"exec {inner}"
        if "mounts" in allowed():
            mounts = [f"mount -t tmpfs -o size={SHM_MIB}m,mode=1777 tmpfs /dev/shm"]
            if self._closed is not None:
                mounts += self._uncover(self._closed)
            inner = " && ".join([*mounts, inner])
        outer = ["unshare", "--mount"] if "mounts" in allowed() else []
        pinned = ["taskset", "-c", str(core)] if "one core" in allowed() else []
        return [*pinned, *outer, "sh", "-c", inner]

    def _uncover(self, closed: Path) -> list[str]:
        """Commands that leave nothing of a closed folder but the interpreter's installation."""
        place = shlex.quote(str(self.folder / "python"))
        home = shlex.quote(str(self.interpreter.parents[1]))
        return [
            f"mount --bind {home} {place}",
            f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(closed))}",
            f"mkdir -p {home}",
            f"mount --bind {place} {home}",
        ]


@cache
def allowed() -> frozenset[str]:
    """Which of "mounts", "user" and "one core" this machine allows."""
    probes = {
        "mounts": ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"],
        "user": ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "true"],
        "one core": ["taskset", "-c", "0", "true"],
    }
    return frozenset(name for name, words in probes.items() if _works(words))


def _works(words: list[str]) -> bool:
    if shutil.which(words[0]) is None:
        return False
    return subprocess.run(words, capture_output=True).returncode == 0

"""A Python environment, seen through its pip."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from vllm_deepinfer.installation import InstallationError

_LIST = """
import importlib.metadata, json
found = {}
for d in importlib.metadata.distributions():
    found[d.metadata["Name"].lower()] = [d.version, d.requires or []]
print(json.dumps(found))
"""


def run(command: Sequence[str | Path], **options: object) -> None:
    """Runs a command whose output is the user's to read.

    Raises:
        InstallationError: it failed; its output says why.
    """
    result = subprocess.run(command, **options)
    if result.returncode != 0:
        words = " ".join(str(word) for word in command)
        raise InstallationError(f"This failed with exit code {result.returncode}: {words}")


class Environment:
    """The environment of the interpreter `python`.

    variables: environment variables for what pip starts, such as the compiler.
    """

    def __init__(self, python: Path, variables: dict[str, str] | None = None) -> None:
        self.python = python
        self.variables = {**os.environ, **(variables or {})}

    @classmethod
    def make(cls, interpreter: Path, folder: Path, **options: dict[str, str]) -> Environment:
        """Makes a virtual environment with pip in `folder`, which it replaces."""
        run([interpreter, "-m", "venv", "--clear", folder])
        return cls(folder / "bin" / "python", **options)

    def version(self) -> tuple[int, int]:
        """The interpreter's version, (3, 12)."""
        major, minor = self._output("-c", "import sys; print(*sys.version_info[:2])").split()
        return int(major), int(minor)

    def distributions(self) -> dict[str, tuple[str, list[str]]]:
        """Installed distributions by lower-case name: version and requirement lines."""
        found = json.loads(self._output("-c", _LIST))
        return {name: (version, requires) for name, (version, requires) in found.items()}

    def bootstrap_pip(self) -> None:
        """Gives the environment a pip if it was made without, as other tools make them."""
        if subprocess.run([self.python, "-c", "import pip"], capture_output=True).returncode:
            run([self.python, "-m", "ensurepip"])

    def offers(self, name: str, version: str, python: tuple[int, int] | None = None) -> bool:
        """Whether pip, as it is configured, finds this version of a package for this machine.

        Args:
            python: for another interpreter than this environment's.
        """
        target = ["--python-version", "{}.{}".format(*python)] if python else []
        result = self._pip("index", "versions", name, *target)
        found = re.search(r"^Available versions: (.*)$", result.stdout, re.MULTILINE)
        return found is not None and version in found[1].split(", ")

    def install(self, *arguments: str | Path) -> None:
        """`pip install` with these arguments."""
        run([self.python, "-m", "pip", "install", *arguments], env=self.variables)

    def broken_requirements(self) -> Iterator[str]:
        """The lines of `pip check` that name a broken requirement."""
        result = self._pip("check")
        if result.returncode:
            yield from result.stdout.splitlines()

    def _pip(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [self.python, "-m", "pip", *arguments]
        return subprocess.run(command, env=self.variables, capture_output=True, text=True)

    def _output(self, *arguments: str) -> str:
        result = subprocess.run([self.python, *arguments], capture_output=True, text=True)
        if result.returncode:
            raise InstallationError(f"{self.python} does not work: {result.stderr.strip()}")
        return result.stdout

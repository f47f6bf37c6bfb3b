"""Builds the C++ extensions for ARM64, with the sources and flags of setup.py.

    PYTHONPATH=tests python -m aarch64.cross_build .cache/aarch64

They come into the folder ``extensions`` there. ``mutants.py`` builds them again, each with a fault.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import setuptools  # gives distutils, from Python 3.12 on

# isort: split
from distutils.core import run_setup

from aarch64.sysroot import COMPILER, REPOSITORY, Sysroot

EXTRA_FLAGS = ("-fPIC", "-Wno-psabi")


def extensions(sources: Path = REPOSITORY) -> list[setuptools.Extension]:
    """What setup.py builds; source files are relative to the repository."""
    return run_setup(str(sources / "setup.py"), stop_after="init").ext_modules


def built_name(extension: setuptools.Extension, place: Sysroot) -> str:
    """Of the file that its Python looks for."""
    name = extension.name.rpartition(".")[2]
    return f"{name}.cpython-{place.version().replace('.', '')}-aarch64-linux-gnu.so"


def is_fresh(made: Path, command: list[str]) -> bool:
    """Whether the same command made it from files that have not changed since."""
    recipe, depends = made.with_suffix(".command"), made.with_suffix(".d")
    if not (made.exists() and recipe.exists() and depends.exists()):
        return False
    if recipe.read_text() != "\n".join(command):
        return False
    files = depends.read_text().partition(":")[2].replace("\\\n", " ").split()
    return all(
        Path(file).exists() and Path(file).stat().st_mtime <= made.stat().st_mtime for file in files
    )


def compile_source(source: Path, flags: list[str], made: Path) -> None:
    command = [COMPILER, *flags, "-MMD", "-c", str(source), "-o", str(made)]
    if is_fresh(made, command):
        return
    made.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(command, check=True)
    made.with_suffix(".command").write_text("\n".join(command))


def build(
    extension: setuptools.Extension,
    place: Sysroot,
    target: Path,
    replaced: dict[str, Path] | None = None,
    extra_flags: tuple[str, ...] = (),
) -> None:
    """One extension into the folder ``target``.

    Args:
        replaced: a file to compile in place of a source.
        extra_flags: after those of setup.py. With them or a replaced source, objects that differ
            are kept in ``target``.

    Raises:
        subprocess.CalledProcessError: a source does not compile, or the extension does not link.
    """
    flags = [
        *extension.extra_compile_args,
        *(f"-I{folder}" for folder in place.include_folders()),
        *EXTRA_FLAGS,
        *extra_flags,
    ]
    objects = []
    for name in extension.sources:
        own = replaced is not None and name in replaced
        source = replaced[name] if own else REPOSITORY / name
        folder = target if own or extra_flags else place.folder
        objects.append(folder / "objects" / Path(name).with_suffix(".o"))
        compile_source(source, flags, objects[-1])
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [COMPILER, "-shared", *objects, "-o", target / built_name(extension, place)], check=True
    )


def main() -> None:
    place = Sysroot(Path(sys.argv[1]))
    for extension in extensions():
        build(extension, place, place.folder / "extensions")


if __name__ == "__main__":
    main()

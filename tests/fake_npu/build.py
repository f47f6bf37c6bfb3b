"""Compiles the device's C++ sources, once per content of this folder and per torch."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.utils import cpp_extension

SOURCES = Path(__file__).parent / "csrc"
CACHE = Path(__file__).parents[2] / ".cache" / "fake_npu"
HEADERS = "torch_headers.h"
# Computes nothing of weight itself: optimising more only makes it compile longer.
FLAGS = ("-std=c++20", "-O1", "-fPIC", "-fvisibility=hidden", "-w")


class CompilerMissingError(RuntimeError):
    """There is no C++ compiler, so there is no device."""


def compiler() -> str:
    """Path of the C++ compiler: ``CXX`` or g++.

    Raises:
        CompilerMissingError: neither is found.
    """
    name = os.environ.get("CXX", "g++")
    found = shutil.which(name)
    if found is None:
        raise CompilerMissingError(
            f"the fake npu device needs a C++ compiler, and {name!r} is not found; install g++ or "
            "set CXX"
        )
    return found


def library() -> Path:
    """The shared library for these sources and this torch, compiled if it is not in the cache."""
    target = CACHE / _key() / "fake_npu.so"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _compile(compiler(), target)
    return target


def _key() -> str:
    content = hashlib.sha256(f"{torch.__version__} {FLAGS}".encode())
    for path in sorted(SOURCES.iterdir()):
        content.update(path.name.encode() + b"\0" + path.read_bytes())
    return content.hexdigest()[:16]


def _compile(cxx: str, target: Path) -> None:
    folder = target.parent
    includes = [f"-I{path}" for path in cpp_extension.include_paths()]
    defines = [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    base = [cxx, *FLAGS, *defines, *includes]
    # torch's headers take fifteen seconds, each of our files two: they are read once.
    header = folder / HEADERS
    shutil.copy(SOURCES / HEADERS, header)
    _run([*base, "-x", "c++-header", str(header), "-o", f"{header}.gch"])
    objects = []
    for source in sorted(SOURCES.glob("*.cpp")):
        objects.append(str(folder / f"{source.stem}.o"))
        _run([*base, "-include", str(header), "-c", str(source), "-o", objects[-1]])
    libraries = [f"-L{path}" for path in cpp_extension.library_paths()]
    unfinished = folder / "unfinished.so"
    _run([cxx, "-shared", *objects, *libraries, "-ltorch_cpu", "-lc10", "-o", str(unfinished)])
    for path in (*objects, header, f"{header}.gch"):
        os.remove(path)
    unfinished.rename(target)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"compiling the fake npu device failed: {command}\n{done.stderr}")

"""Builds the C++ extensions from csrc/ when there are any; everything else is in pyproject.toml."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
# No fused multiply-add: the extensions compute to the bit what their Python references do. Nothing
# reads errno after a root, and a loop that sets it is not vectorised.
CPP_FLAGS = ["-std=c++17", "-O3", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno"]


def extensions() -> list[Extension]:
    """One extension `vllm_deepinfer._<name>` for each folder csrc/<name> that holds C++ sources.

    They are optional: where no compiler works the package still installs.
    """
    found = []
    for folder in sorted(p for p in (ROOT / "csrc").glob("*") if p.is_dir()):
        sources = sorted(str(p.relative_to(ROOT)) for p in folder.glob("*.cpp"))
        if sources:
            found.append(
                Extension(
                    f"vllm_deepinfer._{folder.name}",
                    sources,
                    depends=sorted(str(p.relative_to(ROOT)) for p in headers(folder)),
                    extra_compile_args=CPP_FLAGS,
                    language="c++",
                    optional=True,
                )
            )
    return found


def headers(folder: Path) -> list[Path]:
    """A folder's own, and those that extensions share."""
    return [*folder.glob("*.h*"), *(ROOT / "csrc" / "python").glob("*.h*")]


class BuildInParallel(build_ext):
    """Compiles the sources of an extension beside each other, one to a core."""

    def build_extensions(self) -> None:
        compile_these = self.compiler.compile

        def compile_beside(sources, **options):
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                objects = pool.map(lambda source: compile_these([source], **options), sources)
                return [name for names in objects for name in names]

        self.compiler.compile = compile_beside
        super().build_extensions()


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildInParallel})

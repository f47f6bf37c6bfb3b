"""Faults put into copies of the sources, each of which the comparison must find.

One rounding changes in each; what may differ then is written beside it.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from aarch64.cross_build import build, extensions
from aarch64.sysroot import REPOSITORY, Sysroot


@dataclass(frozen=True)
class Mutant:
    """A change of one file, or of the flags.

    Attributes:
        extension: "kernels".
        source: of the extension's sources, the one to compile again.
        file, old, new: what to replace where; once.
        flags: after those of setup.py.
        operations: that differ then, others perhaps, too.
        lives: how many of the recorded ones are replayed; None for all.
    """

    extension: str
    operations: frozenset[str]
    source: str = ""
    file: str = ""
    old: str = ""
    new: str = ""
    flags: tuple[str, ...] = ()
    lives: int | None = None


MUTANTS = {
    "products added after they are rounded": Mutant(
        "kernels",
        frozenset({"linear", "experts"}),
        "kernels/linear_portable.cpp",
        "kernels/linear_portable.cpp",
        "lanes[lane] = __builtin_fmaf(weight[i + lane], row[i + lane], lanes[lane]);",
        "lanes[lane] = weight[i + lane] * row[i + lane] + lanes[lane];",
    ),
    "ties rounded up": Mutant(
        "kernels",
        frozenset({"rotate", "index_scores"}),
        "kernels/rowwise_portable.cpp",
        "kernels/lanes16.h",
        "0x7FFFu + ((bits >> 16) & 1u)",
        "0x8000u",
    ),
    "angles not rounded to float32": Mutant(
        "kernels",
        frozenset({"angles"}),
        "kernels/bind_rows.cpp",
        "kernels/bind_rows.cpp",
        "const double angle = first *",
        "const double angle = double(first) *",
    ),
    "prices in float32": Mutant(
        "planner",
        frozenset({"PlannerCore.plan"}),
        "planner/cost_core.cpp",
        "planner/cost_core.cpp",
        "own_ms_[b] = rate * size;",
        "own_ms_[b] = static_cast<float>(rate * size);",
        lives=150,
    ),
    "multiply-adds fused": Mutant(
        "planner", frozenset({"PlannerCore.plan"}), flags=("-ffp-contract=fast",), lives=150
    ),
    "chances multiplied in float32": Mutant(
        "scheduling",
        frozenset({"collect"}),
        "scheduling/running.cpp",
        "scheduling/running.cpp",
        "double chance = 1.0;",
        "float chance = 1.0f;",
    ),
}


def build_mutant(mutant: Mutant, place: Sysroot, target: Path) -> None:
    """All extensions into ``target``, with the fault in one.

    Raises:
        ValueError: what is to be replaced is not there once; sources have changed.
    """
    (extension,) = (e for e in extensions() if e.name.endswith(f"_{mutant.extension}"))
    shutil.copytree(place.folder / "extensions", target)
    replaced = {}
    if mutant.file:
        sources = target / "csrc"
        shutil.copytree(REPOSITORY / "csrc", sources)
        file = sources / mutant.file
        text = file.read_text()
        if text.count(mutant.old) != 1:
            raise ValueError(f"{mutant.file} holds {mutant.old!r} {text.count(mutant.old)} times")
        file.write_text(text.replace(mutant.old, mutant.new))
        replaced = {f"csrc/{mutant.source}": sources / mutant.source}
    build(extension, place, target, replaced, mutant.flags)

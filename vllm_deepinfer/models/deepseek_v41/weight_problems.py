"""Collects what is wrong with a checkpoint and says all of it in one error."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

MAX_LINES_PER_KIND = 20

_WHAT_TO_CHECK = {
    "missing": "Is a shard absent or cut short? Compare the folder with "
    "model.safetensors.index.json and download again.",
    "unexpected": "Does config.json belong to these shards, and are the names the published ones "
    "(not another library's)?",
    "wrong shape": "Does config.json belong to these shards? Tensors must be whole, not split for "
    "tensor parallelism.",
    "wrong dtype": "Were the weights converted? Use the published FP8/FP4 files as they are.",
    "repeated": "Are shards of an older copy left in the folder? Delete those that "
    "model.safetensors.index.json does not name.",
}

_EXPERT_INDEX = re.compile(r"(?<=\.experts\.)\d+(?=\.)")
_LAYER_INDEX = re.compile(r"(?<=layers\.)\d+(?=\.)")


class WeightsError(ValueError):
    """The checkpoint's tensors are not those its configuration implies."""


class Problems:
    """Problems by kind, in the order found."""

    def __init__(self) -> None:
        self._found: dict[str, list[tuple[str, str]]] = {kind: [] for kind in _WHAT_TO_CHECK}

    def add(self, kind: str, name: str, detail: str = "") -> None:
        self._found[kind].append((name, detail))

    def raise_if_any(self) -> None:
        """Raise :class:`WeightsError` naming everything added."""
        kinds = {kind: entries for kind, entries in self._found.items() if entries}
        if not kinds:
            return
        counts = ", ".join(f"{len(entries)} {kind}" for kind, entries in kinds.items())
        lines = [f"The checkpoint does not fit its config.json: {counts}."]
        for kind, entries in kinds.items():
            lines.append(f"{kind} ({len(entries)}): {_WHAT_TO_CHECK[kind]}")
            described = summarise(entries)
            lines += [f"  - {line}" for line in described[:MAX_LINES_PER_KIND]]
            if len(described) > MAX_LINES_PER_KIND:
                lines.append(f"  - and {len(described) - MAX_LINES_PER_KIND} more like these")
        raise WeightsError("\n".join(lines))


def summarise(entries: Iterable[tuple[str, str]]) -> list[str]:
    """Write entries one a line, those that differ only in expert or layer number as one."""
    for pattern in (_EXPERT_INDEX, _LAYER_INDEX):
        entries = _merge(entries, pattern)
    return [f"{name} {detail}".rstrip() for name, detail in entries]


def _merge(entries: Iterable[tuple[str, str]], index: re.Pattern[str]) -> list[tuple[str, str]]:
    numbers_of: dict[tuple[str, str], list[int]] = {}
    for name, detail in entries:
        found = index.search(name)
        key = (index.sub("@", name, count=1), detail)
        numbers_of.setdefault(key, []).extend([int(found[0])] if found else [])
    merged = []
    for (name, detail), numbers in numbers_of.items():
        text = ranges(sorted(numbers))
        merged.append((name.replace("@", text if len(numbers) == 1 else f"{{{text}}}"), detail))
    return merged


def ranges(numbers: Sequence[int]) -> str:
    """Write ascending numbers briefly: ``[0, 1, 2, 5]`` -> ``"0-2,5"``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number <= runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)

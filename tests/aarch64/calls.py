"""A call as it is recorded, what it gave, and how a replay of it differs.

A case file is a pickled ``Recording``. Both sides use this module; it needs no torch.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aarch64.values import write

MOST_TOLD = 3  # differences of an operation that are described


@dataclass(frozen=True)
class Address:
    """An argument that points into the call's memory: which piece, and how many bytes into it."""

    piece: int
    offset: int


@dataclass(frozen=True)
class Call:
    """One call.

    Attributes:
        operation: "linear", "CostCore.observe".
        target: number of the object called, of those that the life has made; None for functions.
        arguments: as ``values.write`` gives them; of kernels, scalars and ``Address``.
        wanted: ``outcome_of``.
        memory: of kernels: each piece's type ("float32"), and digests of its bytes before and
            after, into ``Recording.pieces``.
    """

    operation: str
    target: int | None
    arguments: Any
    wanted: Any
    memory: tuple[tuple[str, bytes, bytes], ...] = ()


@dataclass
class Recording:
    """Lives of objects, each a list of calls; functions live for one call."""

    lives: list[list[Call]] = field(default_factory=list)
    pieces: dict[bytes, bytes] = field(default_factory=dict)

    def counts(self) -> Counter[str]:
        return Counter(call.operation for life in self.lives for call in life)

    def save(self, path: Path) -> None:
        path.write_bytes(pickle.dumps(self, protocol=5))

    @staticmethod
    def load(path: Path) -> Recording:
        return pickle.loads(path.read_bytes())


class Failed:
    """An exception in place of a result."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.said = (type(error).__name__, str(error))


def attempt(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a call gives; a refusal is a result like others and is compared word for word."""
    try:
        return function(*arguments)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        return Failed(error)


def outcome_of(arguments: Any, result: Any) -> Any:
    """Result and arguments after a call: functions write into what they are given."""
    if isinstance(result, Failed):
        return ("failed", *result.said, write(arguments))
    return write((arguments, result))


class Tally:
    """Calls and differences by operation."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.different: Counter[str] = Counter()
        self.told: dict[str, list[str]] = {}

    def count(self, operation: str, difference: str | None) -> None:
        self.calls[operation] += 1
        if difference is not None:
            self.different[operation] += 1
            told = self.told.setdefault(operation, [])
            if len(told) < MOST_TOLD:
                told.append(f"call {self.calls[operation]}: {difference}")

    def as_dict(self) -> dict[str, Any]:
        return {"calls": self.calls, "different": self.different, "told": self.told}

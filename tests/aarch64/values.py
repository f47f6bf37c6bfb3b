"""Arguments and results as plain values: written on one machine, made and compared on another.

Used on both sides; needs no torch. Floating-point numbers are kept as their bits. Lists, dicts,
arrays and objects are numbered as they are met, so that an argument returned, or held twice, is
known for the same.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

# Those of a request that csrc/scheduling reads: one that it reads besides fails every replay.
REQUEST_ATTRIBUTES = (
    "_all_token_ids",
    "drop_stale_output",
    "is_prefill_chunk",
    "max_tokens",
    "num_computed_tokens",
    "num_in_flight_tokens",
    "num_prompt_tokens",
    "num_stale_output_tokens",
    "request_id",
    "spec_token_ids",
    "status",
)


class Made:
    """Stands for an object that an earlier call of the same life made."""

    def __init__(self, number: int) -> None:
        self.number = number


class Request:
    """What stands in for one of vLLM's requests where they are replayed."""


def write(value: Any) -> Any:
    """A value as tuples, numbers, strings and bytes."""
    return _Writer().write(value)


class _Writer:
    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []  # an id is taken again once its object is gone

    def write(self, value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, (bool, str, bytes)):
            return value
        if isinstance(value, int):
            return int(value)  # of an IntEnum, too
        if isinstance(value, float):
            return ("float", struct.pack("<d", value) if value == value else b"nan")
        if isinstance(value, tuple):
            return ("tuple", tuple(map(self.write, value)))
        if isinstance(value, Made):
            return ("made", value.number)
        if id(value) in self._numbers:
            return ("again", self._numbers[id(value)])
        self._numbers[id(value)] = len(self._alive)
        self._alive.append(value)
        return self._write_once(value)

    def _write_once(self, value: Any) -> tuple:
        if isinstance(value, list):
            return ("list", tuple(map(self.write, value)))
        if isinstance(value, dict):
            return ("dict", tuple((self.write(k), self.write(v)) for k, v in value.items()))
        if isinstance(value, np.ndarray):
            return ("array", value.dtype.str, value.shape, value.tobytes())
        return (
            "request",
            tuple(self.write(getattr(value, name)) for name in REQUEST_ATTRIBUTES),
        )


def read(written: Any, made: dict[int, Any] | None = None) -> Any:
    """The value again; ``made`` are the objects of the life so far, by number."""
    return _Reader(made or {}).read(written)


class _Reader:
    def __init__(self, made: dict[int, Any]) -> None:
        self._made = made
        self._values: list[Any] = []

    def read(self, written: Any) -> Any:
        if not isinstance(written, tuple):
            return written
        kind, *rest = written
        if kind == "tuple":
            return tuple(map(self.read, rest[0]))
        if kind == "float":
            return float("nan") if rest[0] == b"nan" else struct.unpack("<d", rest[0])[0]
        if kind == "made":
            return self._made[rest[0]]
        if kind == "again":
            return self._values[rest[0]]
        value = {"list": list, "dict": dict, "request": Request, "array": lambda: None}[kind]()
        place = len(self._values)
        self._values.append(value)
        return self._fill(kind, value, place, rest)

    def _fill(self, kind: str, value: Any, place: int, rest: list[Any]) -> Any:
        if kind == "list":
            value.extend(map(self.read, rest[0]))
        elif kind == "dict":
            value.update((self.read(k), self.read(v)) for k, v in rest[0])
        elif kind == "request":
            for name, written in zip(REQUEST_ATTRIBUTES, rest[0], strict=True):
                setattr(value, name, self.read(written))
        else:
            dtype, shape, data = rest
            value = np.frombuffer(bytearray(data), dtype=dtype).reshape(shape)
            self._values[place] = value
        return value

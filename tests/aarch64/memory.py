"""The memory that a kernel's call reads and writes: given to it, and compared afterwards.

Used where calls are replayed; needs no torch.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from typing import Any

from aarch64.calls import Address, Call, Failed, attempt

ALIGNMENT = 64  # of torch's tensors
# Of types that have NaNs: an element's code, its bits without the sign, and those of infinity. No
# machine promises which NaN an operation gives, so that all NaNs of these types count as equal.
FLOATS = {"float32": ("<I", 0x7FFFFFFF, 0x7F800000), "bfloat16": ("<H", 0x7FFF, 0x7F80)}


class Piece:
    """Bytes at an aligned address."""

    def __init__(self, data: bytes) -> None:
        self._room = ctypes.create_string_buffer(len(data) + ALIGNMENT)
        self.address = -(-ctypes.addressof(self._room) // ALIGNMENT) * ALIGNMENT
        self._size = len(data)
        ctypes.memmove(self.address, data, len(data))

    def read(self) -> bytes:
        return ctypes.string_at(self.address, self._size)


def replay(kernels: Any, call: Call, pieces: dict[bytes, bytes]) -> str | None:
    """Make a kernel's call; how its result or memory differs from what was recorded, if at all."""
    memory = [Piece(pieces[before]) for _, before, _ in call.memory]
    arguments = [
        memory[a.piece].address + a.offset if isinstance(a, Address) else a for a in call.arguments
    ]
    result = attempt(getattr(kernels, call.operation), *arguments)
    found = result.said if isinstance(result, Failed) else result
    if found != call.wanted:
        return f"gave {found!r} where {call.wanted!r} was recorded"
    for number, (piece, (kind, _, after)) in enumerate(zip(memory, call.memory, strict=True)):
        data = piece.read()
        if data != pieces[after]:
            difference = next(differences(data, pieces[after], kind), None)
            if difference is not None:
                return f"{kind} memory {number} of {len(memory)}: {difference}"
    return None


def differences(found: bytes, wanted: bytes, kind: str) -> Iterator[str]:
    """Each element that differs, as its place and bits."""
    code, unsigned, infinity = FLOATS.get(kind, ("<B", 0, 0))
    digits = 2 * struct.calcsize(code)
    pairs = zip(struct.iter_unpack(code, found), struct.iter_unpack(code, wanted), strict=True)
    for place, ((ours,), (theirs,)) in enumerate(pairs):
        are_nan = ours & unsigned > infinity and theirs & unsigned > infinity
        if ours != theirs and not are_nan:
            yield f"element {place} is 0x{ours:0{digits}x}, recorded 0x{theirs:0{digits}x}"

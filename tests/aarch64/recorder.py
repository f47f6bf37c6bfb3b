"""Records the calls that tests make of the C++ extensions: arguments, memory and what came of them.

Kernels take addresses. Which memory they mean is known from the tensors that were asked for theirs
since the last call.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from aarch64.calls import Address, Call, Failed, Recording, attempt, outcome_of
from aarch64.values import Made, write

# Of the machine they run on; what they say there is tested by itself.
OF_THE_MACHINE = {"isa", "choose_isa", "available_isas"}


def functions_of(module: ModuleType) -> list[str]:
    """Names of what an extension exports."""
    return [name for name in dir(module) if not name.startswith("_")]


def give(result: Any) -> Any:
    """The result, or the exception in its place, as the caller would have had it."""
    if isinstance(result, Failed):
        raise result.error
    return result


# -- kernels --------------------------------------------------------------------------------------


@contextmanager
def recording_kernels(kernels: ModuleType, recording: Recording) -> Iterator[None]:
    """Every call of the kernels is of the portable version, and recorded."""
    recorder = _KernelRecorder(recording, kernels.isa)
    own = {name: getattr(kernels, name) for name in functions_of(kernels)}
    data_ptr = torch.Tensor.data_ptr
    kernels.choose_isa("portable")
    try:
        torch.Tensor.data_ptr = lambda tensor: recorder.note(tensor, data_ptr(tensor))
        kernels.available_isas = lambda: "portable"
        for name in own.keys() - OF_THE_MACHINE:
            setattr(kernels, name, recorder.recorded(name, own[name]))
        yield
    finally:
        torch.Tensor.data_ptr = data_ptr
        for name, function in own.items():
            setattr(kernels, name, function)


class _KernelRecorder:
    def __init__(self, recording: Recording, isa: Callable[[], str]) -> None:
        self._recording, self._isa = recording, isa
        self._tensors: dict[int, torch.Tensor] = {}

    def note(self, tensor: torch.Tensor, address: int) -> int:
        self._tensors[address] = tensor
        return address

    def recorded(self, name: str, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            assert self._isa() == "portable", "a test chose a version that ARM64 has not"
            storages, written = self._memory_of(arguments)
            before = [self._kept(storage) for storage, _ in storages]
            result = attempt(function, *arguments)
            after = [self._kept(storage) for storage, _ in storages]
            kinds = [kind for _, kind in storages]
            memory = tuple(zip(kinds, before, after, strict=True))
            wanted = result.said if isinstance(result, Failed) else result
            self._recording.lives.append([Call(name, None, written, wanted, memory)])
            return give(result)

        return call

    def _memory_of(self, arguments: tuple) -> tuple[list[tuple[Any, str]], tuple]:
        """Storages with their types, and arguments with ``Address`` in place of addresses."""
        storages: dict[int, tuple[Any, str]] = {}
        written: list[Any] = []
        for argument in arguments:
            tensor = None if isinstance(argument, bool) else self._tensors.get(argument)
            if tensor is None or not argument:
                written.append(argument)
                continue
            storage = tensor.untyped_storage()
            start = storage.data_ptr()
            kind = str(tensor.dtype).removeprefix("torch.")
            storages.setdefault(start, (storage, kind))
            written.append(Address(list(storages).index(start), argument - start))
        self._tensors.clear()
        return list(storages.values()), tuple(written)

    def _kept(self, storage: Any) -> bytes:
        """Digest of a storage's bytes, which are kept."""
        data = ctypes.string_at(storage.data_ptr(), storage.nbytes())
        digest = hashlib.sha256(data).digest()[:16]
        self._recording.pieces.setdefault(digest, data)
        return digest


# -- planner and loops over requests --------------------------------------------------------------


def recorded_functions(module: ModuleType, recording: Recording) -> SimpleNamespace:
    """The module's functions, whose calls are recorded."""

    def recorded(name: str) -> Any:
        function = getattr(module, name)

        def call(*arguments: Any) -> Any:
            given = write(arguments)
            result = attempt(function, *arguments)
            wanted = outcome_of(arguments, result)
            recording.lives.append([Call(name, None, given, wanted)])
            return give(result)

        return call

    names = functions_of(module)
    return SimpleNamespace(__name__=module.__name__, **{name: recorded(name) for name in names})


def recorded_classes(module: ModuleType, life: list[Call]) -> list[Any]:
    """The module's classes; what is done with objects of them is recorded in ``life``."""
    made: list[Any] = []

    def recorded(name: str) -> Any:
        def make(*arguments: Any) -> Any:
            objects = [a.own if isinstance(a, _RecordedObject) else a for a in arguments]
            result = attempt(getattr(module, name), *objects)
            written = tuple(
                Made(a.number) if isinstance(a, _RecordedObject) else a for a in arguments
            )
            wanted = result.said if isinstance(result, Failed) else None
            life.append(Call(name, None, write(written), wanted))
            made.append(give(result))
            return _RecordedObject(name, made[-1], len(made) - 1, life)

        return make

    return [recorded(name) for name in functions_of(module)]


class _RecordedObject:
    def __init__(self, name: str, own: Any, number: int, life: list[Call]) -> None:
        self.own, self.number = own, number
        self._name, self._life = name, life

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self.own, attribute)
        name = f"{self._name}.{attribute}"
        if not callable(found):
            self._life.append(Call(name, self.number, write(()), outcome_of((), found)))
            return found

        def call(*arguments: Any) -> Any:
            given = write(arguments)
            result = attempt(found, *arguments)
            wanted = outcome_of(arguments, result)
            self._life.append(Call(name, self.number, given, wanted))
            return give(result)

        return call

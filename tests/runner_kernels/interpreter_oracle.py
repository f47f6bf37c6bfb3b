"""Runs the upstream Triton kernels in Triton's interpreter, as the oracle for their torch forms.

The interpreter has to be chosen before Triton is imported and vLLM has to believe that Triton works
on a CPU, neither of which must leak into the process under test. So one child process imports vLLM
that way, once, and answers cases over a pipe:

    with InterpreterOracle() as oracle:
        after = oracle.run("vllm.v1...._some_kernel", (num_programs,), {"argument": tensor, ...})

`after` holds every tensor argument as the kernel left it. With `root` the kernel is not the
installed one but that of the source below `root`.
"""

from __future__ import annotations

import importlib
import os
import pickle
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

LENGTH = struct.Struct("<Q")


@dataclass
class PointerTable:
    """A kernel argument that is a table (uint64) of the tensors' addresses."""

    tensors: list[torch.Tensor]

    def addresses(self) -> torch.Tensor:
        return torch.tensor([tensor.data_ptr() for tensor in self.tensors], dtype=torch.uint64)


def copy_strided(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with its own memory, the same strides and the same bytes between the rows."""
    if tensor.numel() == 0:
        return tensor.clone()
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((size - 1) * step for size, step in steps)
    memory = tensor.as_strided((span,), (1,)).clone()
    return memory.as_strided(tensor.shape, tensor.stride())


def copy_argument(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return copy_strided(value)
    if isinstance(value, PointerTable):
        return PointerTable([copy_strided(tensor) for tensor in value.tensors])
    return value


def launch_form(value: Any) -> Any:
    return value.addresses() if isinstance(value, PointerTable) else value


def _send(pipe: BinaryIO, message: Any) -> None:
    data = pickle.dumps(message)
    pipe.write(LENGTH.pack(len(data)) + data)
    pipe.flush()


def _receive(pipe: BinaryIO) -> Any:
    header = pipe.read(LENGTH.size)
    if len(header) < LENGTH.size:
        raise EOFError("the other side of the oracle's pipe is gone")
    return pickle.loads(pipe.read(*LENGTH.unpack(header)))


class InterpreterOracle:
    def __enter__(self) -> InterpreterOracle:
        # VLLM_PLUGINS empty: the child must not load the package under test.
        environment = {
            **os.environ,
            "TRITON_INTERPRET": "1",
            "VLLM_PLUGINS": "",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        self._child = subprocess.Popen(
            [sys.executable, "-m", "runner_kernels.interpreter_oracle"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        return self

    def __exit__(self, *exception: object) -> None:
        self._child.stdin.close()
        self._child.wait(timeout=60)
        self._child.stdout.close()

    def run(
        self,
        kernel: str,
        grid: tuple[int, ...],
        arguments: dict[str, Any],
        root: Path | None = None,
    ) -> dict[str, Any]:
        _send(self._child.stdin, (kernel, grid, arguments, root))
        failure, after = _receive(self._child.stdout)
        if failure:
            raise AssertionError(f"the interpreter failed on {kernel}:\n{failure}")
        return after


def _pretend_triton_runs_on_cpu() -> None:
    import triton.backends
    import triton.language as tl

    class Driver:
        @staticmethod
        def is_active() -> bool:
            return True

    class Backend:
        compiler = None
        driver = Driver

    triton.backends.backends.setdefault("cpu", Backend)
    # Programs run one after the other: a barrier has nothing to wait for.
    tl.debug_barrier = lambda: None


def _accept_integer_masks() -> None:
    """Let masks computed as `bool & int1` load and store. The interpreter keeps such a mask as an
    integer, 0 or 1, and then rejects it; compiled Triton accepts it."""
    from triton.runtime.interpreter import InterpreterBuilder

    def with_boolean_mask(access, mask_position):
        def access_memory(*operands):
            mask = operands[mask_position]
            mask.data = mask.data.astype(bool)
            return access(*operands)

        return access_memory

    for name, mask_position in (("create_masked_load", 2), ("create_masked_store", 3)):
        access = getattr(InterpreterBuilder, name)
        setattr(InterpreterBuilder, name, with_boolean_mask(access, mask_position))


def _find_kernel(kernel: str, root: Path | None) -> Any:
    module, name = kernel.rsplit(".", 1)
    if root is None:
        return getattr(importlib.import_module(module), name)
    from runner_kernels.source_kernels import kernel_names

    return kernel_names(root, module)[name]


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    import traceback

    while True:
        try:
            kernel, grid, arguments, root = _receive(requests)
        except EOFError:
            return
        try:
            function = _find_kernel(kernel, root)
            function[grid](**{key: launch_form(value) for key, value in arguments.items()})
            answer = (None, arguments)
        except Exception:
            answer = (traceback.format_exc(), None)
        _send(answers, answer)


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what vLLM prints must not mix with the answers
    _pretend_triton_runs_on_cpu()
    _accept_integer_masks()
    from vllm.triton_utils import HAS_TRITON

    if not HAS_TRITON:
        raise SystemExit("vLLM did not accept Triton's interpreter; is triton installed?")
    _serve(sys.stdin.buffer, answers)
    os._exit(0)  # unloading vLLM and torch in order would take seconds


if __name__ == "__main__":
    # Under its own name, so that pickled classes are the same on both sides.
    importlib.import_module("runner_kernels.interpreter_oracle").main()

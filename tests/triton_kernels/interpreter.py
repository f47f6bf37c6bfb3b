"""Runs launchers of the package's kernels in Triton's interpreter, in a process of its own.

Triton fixes at import whether it interprets, and the process under test must not. The interpreter
differs from compiled Triton in how it converts numbers: it truncates float32 to bfloat16, drops
carries when rounding to e4m3 and multiplies the bits of bfloat16. The child does that by torch's
conversions, which round to nearest even as the instructions of the hardware do (cvt.rn.bf16 and
cvt.rn.satfinite.e4m3x2 in the PTX manual). It adds products in float64: in float32 numpy's
sums depend on where a matrix lies in memory.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def _start() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["DEEPINFER_REFERENCE_OPS"] = "1"  # no C++ kernels in the place of these
    import torch

    torch.set_num_threads(1)
    _convert_as_hardware_does()
    _emulate_libdevice()


def _convert_as_hardware_does() -> None:
    import numpy as np
    import torch
    import triton.language as tl
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    dtypes = {
        tl.float8e4nv: torch.float8_e4m3fn,
        tl.bfloat16: torch.bfloat16,
        tl.float16: torch.float16,
        tl.float32: torch.float32,
    }
    bits = {1: np.uint8, 2: np.uint16, 4: np.uint32}
    plain_cast = InterpreterBuilder.cast_impl

    def as_torch(handle: TensorHandle) -> torch.Tensor:
        data = np.ascontiguousarray(handle.data)
        wanted = dtypes[handle.dtype.scalar]
        signed = {1: np.uint8, 2: np.int16, 4: np.int32}[wanted.itemsize]
        return torch.from_numpy(data.view(signed).copy()).view(wanted).view(data.shape)

    def convert(handle: TensorHandle, target: Any) -> TensorHandle:
        target = target.scalar
        values = as_torch(handle)
        if target == tl.float8e4nv:
            values = values.to(torch.float32).clamp(-448.0, 448.0)
        found = values.to(dtypes[target]).contiguous()
        raw = found.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[found.element_size()])
        data = raw.numpy().view(bits[found.element_size()])
        if target in (tl.float16, tl.float32):
            data = data.view({tl.float16: np.float16, tl.float32: np.float32}[target])
        return TensorHandle(data, target)

    def is_narrow(dtype: Any) -> bool:
        return dtype.scalar in (tl.float8e4nv, tl.bfloat16)

    def cast(builder, handle, target):
        known = handle.dtype.scalar in dtypes and target.scalar in dtypes
        if known and (is_narrow(handle.dtype) or is_narrow(target)):
            return convert(handle, target)
        return plain_cast(builder, handle, target)

    def add_products(left: np.ndarray, right: np.ndarray, total: TensorHandle) -> TensorHandle:
        product = np.matmul(left.astype(np.float64), right.astype(np.float64))
        data = (product + total.data).astype(np.float32)
        return TensorHandle(data, tl.float32)

    def dot(builder, a, b, total, *precision):
        left, right = (cast(builder, x, tl.float32).data for x in (a, b))
        return add_products(left, right, total)

    def scaled_values(codes, scale, is_e2m1: bool, is_right: bool) -> np.ndarray:
        """Left operands are [rows, columns] and right ones [columns, rows]; scales [rows, n]."""
        if is_e2m1:
            values = interpreter._unpack_e2m1(codes.data, -2 if is_right else -1)
        else:
            values = convert(TensorHandle(codes.data, tl.float8e4nv), tl.float32).data
        powers = torch.from_numpy(scale.data.copy()).view(torch.float8_e8m0fnu)
        powers = np.repeat(powers.to(torch.float32).numpy(), 32, axis=-1)
        return values * (powers.T if is_right else powers)

    def dot_scaled(builder, a, a_scale, a_format, b, b_scale, b_format, _, a_pack, b_pack, total):
        e2m1 = interpreter._ir.ScaleDotElemTypeTY.E2M1
        left = scaled_values(a, a_scale, a_format == e2m1, is_right=False)
        right = scaled_values(b, b_scale, b_format == e2m1, is_right=True)
        return add_products(left, right, total)

    InterpreterBuilder.cast_impl = cast
    InterpreterBuilder.create_fp_ext = InterpreterBuilder.create_fp_trunc = cast
    InterpreterBuilder.create_fp_to_fp = lambda builder, x, target, rounding: cast(
        builder, x, target
    )
    InterpreterBuilder.create_dot = dot
    InterpreterBuilder.create_dot_scaled = dot_scaled


def _emulate_libdevice() -> None:
    """Compute the functions of CUDA's libdevice that the router uses with torch."""
    import torch
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime.interpreter import TensorHandle

    def emulated(function):
        def compute(value):
            data = function(torch.from_numpy(value.handle.data.copy())).numpy()
            return tl.core.tensor(TensorHandle(data, value.handle.dtype), value.type)

        return compute

    libdevice.exp, libdevice.log1p = emulated(torch.exp), emulated(torch.log1p)


def _call(
    operation: str, target: str, batch_invariant: bool, arguments: tuple, keywords: dict
) -> Any:
    from runner_kernels.interpreter_oracle import copy_argument

    from vllm_deepinfer.ops.triton import launcher
    from vllm_deepinfer.ops.triton.targets import pretend_target
    from vllm_deepinfer.ops.triton.tiles import batch_invariant as invariant_tiles

    # Tensors travel in shared memory: what a kernel writes must not change the caller's.
    arguments = tuple(map(copy_argument, arguments))
    with pretend_target(target), invariant_tiles(batch_invariant):
        result = launcher(operation)(*arguments, **keywords)
    return result, arguments


class Interpreter:
    """``run("fp8_linear", *arguments)`` is what the launcher of that name returns."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_start)

    def run(self, operation: str, *arguments: Any, **keywords: Any) -> Any:
        return self.run_in_place(operation, *arguments, **keywords)[0]

    def run_in_place(
        self,
        operation: str,
        *arguments: Any,
        target: str = "sm_90a",
        batch_invariant: bool = False,
        **keywords: Any,
    ) -> tuple[Any, tuple]:
        """The result, and the arguments as the kernel left them."""
        return self.submit(_call, operation, target, batch_invariant, arguments, keywords)

    def submit(self, function: Callable, *arguments: Any) -> Any:
        """What ``function`` returns when it runs in the interpreter's process."""
        return self._pool.submit(function, *arguments).result(timeout=300)

    def close(self) -> None:
        self._pool.shutdown()

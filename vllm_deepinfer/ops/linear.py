"""Linear layers over stored weights, as operations (section 2.4 of the V4.1 specification).

The CPU kernels add products in an order of their own (csrc/kernels/linear.h), which depends on
neither the number of rows nor the number of threads: a row's result is the same bits in any batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_deepinfer.ops import reference_linear
from vllm_deepinfer.ops.formats import FP8_BLOCK, FP8_GROUP
from vllm_deepinfer.ops.library import OperationError, cpu_kernels, define, refuse, require
from vllm_deepinfer.ops.quantise import ROW_DTYPES

E4M3 = torch.float8_e4m3fn
CODE_DTYPES = (E4M3,)
BYTE_DTYPES = (torch.uint8,)
SCALE_DTYPES = (torch.float8_e8m0fnu, torch.uint8)
_SOURCES = {E4M3: 0, torch.bfloat16: 1, torch.float32: 2}


def check_rows(name: str, x: Tensor, scales: Tensor | None, columns: int) -> None:
    """Refuse rows that are neither plain nor codes with scale bytes, ``[T, columns]``."""
    if scales is None:
        require(name, "x", x, ROW_DTYPES, ("T", columns))
        return
    require(name, "x", x, CODE_DTYPES, ("T", columns))
    require(name, "scales", scales, BYTE_DTYPES, (x.shape[0], columns // FP8_GROUP))


def check_output_dtype(name: str, dtype: torch.dtype) -> None:
    if dtype not in ROW_DTYPES:
        raise OperationError(f"{name}: dtype is {dtype}; allowed: torch.bfloat16, torch.float32.")


def row_source(x: Tensor) -> int:
    """How the kernels are told what rows hold."""
    return _SOURCES[x.dtype]


def address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


# -- FP8 blocks -----------------------------------------------------------------------------------


def _check_fp8(
    x: Tensor,
    scales: Tensor | None,
    weight: Tensor,
    weight_scale: Tensor,
    dtype: torch.dtype,
    groups: int,
) -> None:
    name = "fp8_linear"
    require(name, "weight", weight, CODE_DTYPES, ("out", "in"), contiguous=True)
    out, columns = weight.shape
    if columns % FP8_GROUP or not columns:
        raise refuse(name, "weight", weight, "[out, in], in a positive multiple of 32")
    if groups < 1 or out % groups or (groups > 1 and out // groups % FP8_BLOCK):
        raise OperationError(
            f"{name}: groups is {groups}; allowed: numbers that divide the {out} rows of weight "
            "into multiples of 32."
        )
    blocks = (-(-out // FP8_BLOCK), columns // FP8_BLOCK)
    require(name, "weight_scale", weight_scale, SCALE_DTYPES, blocks, contiguous=True)
    check_rows(name, x, scales, groups * columns)
    check_output_dtype(name, dtype)


def _fp8_reference(x, scales, weight, weight_scale, dtype, groups=1):
    _check_fp8(x, scales, weight, weight_scale, dtype, groups)
    return reference_linear.fp8_linear(x, scales, weight, weight_scale, dtype, groups)


def _fp8_fake(x, scales, weight, weight_scale, dtype, groups=1):
    _check_fp8(x, scales, weight, weight_scale, dtype, groups)
    return x.new_empty(x.shape[0], weight.shape[0], dtype=dtype)


def _fp8_cpu(x, scales, weight, weight_scale, dtype, groups=1):
    out = _fp8_fake(x, scales, weight, weight_scale, dtype, groups)
    x = x.contiguous()
    scales = None if scales is None else scales.contiguous()
    cpu_kernels().linear(
        x.data_ptr(),
        row_source(x),
        address(scales),
        x.shape[0],
        groups,
        weight.shape[1],
        weight.data_ptr(),
        True,
        weight_scale.data_ptr(),
        weight.shape[0],
        out.data_ptr(),
        dtype == torch.bfloat16,
        torch.get_num_threads(),
    )
    return out


fp8_linear = define(
    "fp8_linear(Tensor x, Tensor? scales, Tensor weight, Tensor weight_scale, ScalarType dtype, "
    "int groups=1) -> Tensor",
    _fp8_reference,
    _fp8_fake,
    _fp8_cpu,
)
"""``x`` ``[T, groups * in]`` times e4m3 ``weight`` ``[out, in]`` with a scale per 32x32 block.

``x`` is e4m3 codes with ``scales`` ``[T, groups * in / 32]`` (see ``quantise_fp8``), or plain
bfloat16 or float32 rows with ``scales`` None. Group g of the columns meets group g of the weight's
rows. Sums are float32; the result ``[T, out]`` is rounded to ``dtype``, bfloat16 or float32.
"""


# -- plain weights --------------------------------------------------------------------------------


def _check_plain(x: Tensor, weight: Tensor) -> None:
    name = "plain_linear"
    require(name, "weight", weight, (torch.bfloat16,), ("out", "in"), contiguous=True)
    check_rows(name, x, None, weight.shape[1])


def _plain_reference(x, weight):
    _check_plain(x, weight)
    return reference_linear.plain_linear(x, weight)


def _plain_fake(x, weight):
    _check_plain(x, weight)
    return x.new_empty(x.shape[0], weight.shape[0], dtype=torch.float32)


def _plain_cpu(x, weight):
    out = _plain_fake(x, weight)
    x = x.contiguous()
    cpu_kernels().linear(
        x.data_ptr(),
        row_source(x),
        0,
        x.shape[0],
        1,
        weight.shape[1],
        weight.data_ptr(),
        False,
        0,
        weight.shape[0],
        out.data_ptr(),
        False,
        torch.get_num_threads(),
    )
    return out


plain_linear = define(
    "plain_linear(Tensor x, Tensor weight) -> Tensor", _plain_reference, _plain_fake, _plain_cpu
)
"""bfloat16 or float32 ``x`` ``[T, in]`` times bfloat16 ``weight`` ``[out, in]``: float32."""

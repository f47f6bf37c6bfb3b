"""e4m3 weights and rows of others, whose scales are float32 numbers: the one way to read them.

The model, its operations and its caches take UE8M0 scales alone and refuse others by name.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_deepinfer.ops import formats


def with_power_of_two_scales(
    code: Tensor, scale: Tensor, block: tuple[int, int] = (formats.FP8_BLOCK, formats.FP8_BLOCK)
) -> tuple[Tensor, Tensor]:
    """Give e4m3 weights or rows with float32 scales of any value UE8M0 ones instead.

    Scales are rounded up and codes rounded anew, so that the value ``v = code * scale`` moves by
    at most ``max(|v| / 16, scale / 512)``, and not at all where the scale is a power of two: half
    a step of e4m3, and where rounding up makes codes subnormal, half of its smallest step.

    Args:
        code: float8_e4m3fn ``[out, in]``.
        scale: float32 ``[ceil(out / block[0]), ceil(in / block[1])]``.
        block: rows and columns that share a scale; ``(1, n)`` for rows with group scales.

    Returns:
        Codes ``[out, in]``, float8_e4m3fn, and scales of the shape given, float8_e8m0fnu.

    Raises:
        ValueError: the shapes do not fit, or a scale is not a normal positive number up to 2**127.
    """
    wanted = tuple(-(-size // part) for size, part in zip(code.shape, block, strict=True))
    if scale.dtype != torch.float32 or tuple(scale.shape) != wanted:
        raise ValueError(
            f"scale is {scale.dtype} {list(scale.shape)}; codes {list(code.shape)} in blocks of "
            f"{list(block)} need torch.float32 {list(wanted)}."
        )
    allowed = (scale >= 2.0**-126) & (scale <= 2.0**127)
    if not bool(allowed.all()):
        value = scale[~allowed].flatten()[0].item()
        raise ValueError(f"scale {value} is not a normal positive number up to 2**127.")
    power = formats.power_of_two_at_least(scale)
    rounded = formats.to_e4m3(
        code.to(torch.float32) * formats.expand_blocks(scale / power, code, block)
    )
    return rounded, formats.encode_ue8m0(power).view(torch.float8_e8m0fnu)

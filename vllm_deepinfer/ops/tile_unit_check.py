"""Whether a processor's tile unit (AMX) computes what AVX-512 does, asked once where it is used.

The kernels for it are proved against an emulated unit, and have not run on such a processor yet.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

BOUND = 1e-6  # relative L2: both add in float32, in different orders
ROWS = (1, 7, 16, 33)  # one tile and several, full and not
OUTPUTS, COLUMNS = 56, 544  # likewise; more columns than are decoded at once
_BFLOAT16 = 1  # what the rows are, see ops/linear.py
# Named, for this may run while vLLM loads the model: torch's default dtype is the model's then, and
# its default device the accelerator. The kernels write float32, whatever room there is.
_VALUES = {"dtype": torch.float32, "device": "cpu"}
_BYTES = {"dtype": torch.uint8, "device": "cpu"}


class TileUnitError(RuntimeError):
    """A tile unit computes something else than AVX-512."""


def check_tile_unit(kernels: ModuleType, tiled: str = "amx") -> None:
    """Compare products of the version ``tiled`` with those of ``avx512``, on the same operands.

    Args:
        kernels: the extension. The version it runs is the same afterwards.

    Raises:
        TileUnitError: they differ by more than `BOUND`, or a row by itself has other bits.
    """
    own = kernels.isa()
    try:
        for weight, scale in _weights():
            kernels.choose_isa("avx512")
            wanted = _product(kernels, _rows(), weight, scale)
            kernels.choose_isa(tiled)
            for count in ROWS:
                found = _product(kernels, _rows()[:count], weight, scale)
                _refuse_difference(found, wanted[:count], f"{weight.dtype} weights, {count} rows")
            if not torch.equal(found[:1], _product(kernels, _rows()[:1], weight, scale)):
                raise TileUnitError(_sentence("a row by itself has other bits than in a batch"))
    finally:
        kernels.choose_isa(own)


def _rows() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(max(ROWS), COLUMNS, generator=generator, **_VALUES).to(torch.bfloat16)


def _weights() -> list[tuple[Tensor, Tensor | None]]:
    generator = torch.Generator().manual_seed(2)
    codes = torch.randint(0, 0x7F, (OUTPUTS, COLUMNS), generator=generator, **_BYTES)
    codes |= torch.randint(0, 2, codes.shape, generator=generator, **_BYTES) << 7
    blocks = (-(-OUTPUTS // 32), COLUMNS // 32)
    scale = torch.randint(115, 126, blocks, generator=generator, **_BYTES)
    plain = torch.randn(OUTPUTS, COLUMNS, generator=generator, **_VALUES).to(torch.bfloat16)
    return [(codes.view(torch.float8_e4m3fn), scale), (plain, None)]


def _product(kernels: ModuleType, rows: Tensor, weight: Tensor, scale: Tensor | None) -> Tensor:
    """Float32 ``[T, OUTPUTS]``."""
    out = torch.empty(len(rows), OUTPUTS, **_VALUES)
    scales = 0 if scale is None else scale.data_ptr()
    kernels.linear(
        rows.data_ptr(), _BFLOAT16, 0, len(rows), 1, COLUMNS, weight.data_ptr(),
        scale is not None, scales, OUTPUTS, out.data_ptr(), False, torch.get_num_threads(),
    )  # fmt: skip
    return out


def _refuse_difference(found: Tensor, wanted: Tensor, what: str) -> None:
    difference = float((found - wanted).norm() / wanted.norm())
    if not difference <= BOUND:  # NaN, too
        raise TileUnitError(
            _sentence(f"{what}: products differ by {difference:.1e} (allowed: {BOUND:.0e})")
        )


def _sentence(problem: str) -> str:
    return (
        f"The tile unit (AMX) of this processor does not compute what AVX-512 does: {problem}. "
        "Set DEEPINFER_CPU_KERNELS=avx512 to go without it."
    )

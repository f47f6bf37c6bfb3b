"""How far a result is off, and operands on which a wrong scale shows."""

from __future__ import annotations

import torch


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """L2, in float64; infinite where one is NaN and the other is not."""
    found, wanted = found.double(), wanted.double()
    if not torch.equal(found.isnan(), wanted.isnan()):
        return float("inf")
    found, wanted = found.nan_to_num(), wanted.nan_to_num()
    return float((found - wanted).norm() / wanted.norm().clamp_min(1e-300))


def uneven(*shape: int) -> torch.Tensor:
    """Values over many powers of two, so that every group and block has a scale of its own."""
    return torch.randn(*shape) * 2.0 ** torch.randint(-6, 6, shape)

"""The C++ kernels in every version this machine can run."""

from __future__ import annotations

import pytest
import torch

kernels = pytest.importorskip("vllm_deepinfer._kernels", reason="the C++ kernels are not built")
ISAS = kernels.available_isas().split()
# Versions that compute the same bits; those with a tile unit add some products in another order.
TILED = tuple(isa for isa in ISAS if isa.endswith("amx"))
SAME_BITS = [tuple(isa for isa in ISAS if isa not in TILED), TILED]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(20)


@pytest.fixture(params=ISAS)
def isa(request):
    """Each version in turn; the machine's own afterwards."""
    own = kernels.isa()
    kernels.choose_isa(request.param)
    yield request.param
    kernels.choose_isa(own)


@pytest.fixture
def two_threads():
    own = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(own)

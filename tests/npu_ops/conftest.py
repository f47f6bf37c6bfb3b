"""A stand-in for torch_npu, and the calls of this package bound to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from fake_npu.fixtures import fake_npu_library  # noqa: F401
from npu_ops import documented_torch_npu

CALLS = "vllm_deepinfer.ops.npu.calls."


def forget_calls() -> None:
    """The modules that imported torch_npu, so that the next one to ask imports it anew."""
    for name in [name for name in sys.modules if name.startswith(CALLS)]:
        del sys.modules[name]


@pytest.fixture
def torch_npu(monkeypatch) -> Iterator[ModuleType]:
    """torch_npu as documented; ``calls`` counts the uses of each operator."""
    found, calls = documented_torch_npu.module()
    found.calls = calls
    monkeypatch.setitem(sys.modules, "torch_npu", found)
    forget_calls()
    yield found
    forget_calls()


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(20)

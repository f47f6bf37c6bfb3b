"""One interpreter process for all tests here, and the same random numbers in every run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from triton_kernels.interpreter import Interpreter


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    pytest.importorskip("triton", reason="the kernels under test are Triton's")
    running = Interpreter()
    yield running
    running.close()


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(20)

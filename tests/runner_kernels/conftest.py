from __future__ import annotations

from collections.abc import Iterator

import pytest
from runner_kernels.interpreter_oracle import InterpreterOracle


@pytest.fixture(scope="session")
def oracle() -> Iterator[InterpreterOracle]:
    # One for all modules of the session: most of its time goes into importing vLLM.
    pytest.importorskip("triton", reason="the oracle is Triton's interpreter")
    with InterpreterOracle() as running:
        yield running

"""The fixture that tests on the device ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_npu import build


@pytest.fixture(scope="session")
def fake_npu_library() -> Path:
    """The device's library, compiled at first use (half a minute); skipped without a compiler."""
    try:
        build.compiler()
    except build.CompilerMissingError as missing:
        pytest.skip(f"NOT TESTED on the npu device: {missing}")
    return build.library()

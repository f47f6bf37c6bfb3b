"""Ranks that all tests here share."""

from __future__ import annotations

import pytest
from distributed.gloo_ranks import Ranks


@pytest.fixture(scope="session")
def ranks():
    shared = Ranks()
    yield shared
    shared.stop()

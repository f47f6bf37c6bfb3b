"""Configurations as doctor makes them, in this process."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def unchanged_environ():
    """vLLM's CPU platform writes environment variables; put them back."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)

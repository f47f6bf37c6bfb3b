"""Settings of in-process engines, and one tiny checkpoint for all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# The same cases in every run, and none of them fails for being slow on a busy machine.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")

# Before vLLM is imported: the engine runs in the test's own process, so that tests can reach it.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory) -> Path:
    from vllm_deepinfer.checkpoint_maker.maker import make_tiny_checkpoint

    folder = tmp_path_factory.mktemp("tiny") / "model"
    make_tiny_checkpoint(folder)
    return folder

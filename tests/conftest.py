"""One tiny checkpoint for all tests here."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_deepinfer.checkpoint_maker.maker import make_tiny_checkpoint


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    make_tiny_checkpoint(folder)
    return folder

"""Draft stages of another checkpoint, and blocks longer than the trained one, are refused at load.

A foreign drafter changes no token, which is why nobody notices: nearly every draft is rejected and
serving is slower than without drafting.
"""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest

from vllm_deepinfer.checkpoint_maker.maker import make_tiny_checkpoint
from vllm_deepinfer.models.deepseek_v41.config import ConfigError, V41Config
from vllm_deepinfer.models.deepseek_v41.draft_model import (
    check_draft_length,
    check_same_checkpoint,
)


def model_config(folder):
    return SimpleNamespace(model=str(folder), revision=None)


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("other") / "model"
    make_tiny_checkpoint(folder, seed=1)
    return folder


def test_the_checkpoints_own_stages_are_accepted(tiny_folder):
    check_same_checkpoint(model_config(tiny_folder), model_config(tiny_folder))


def test_a_copy_of_the_checkpoint_is_accepted(tiny_folder, tmp_path):
    shutil.copytree(tiny_folder, tmp_path / "copy")
    check_same_checkpoint(model_config(tiny_folder), model_config(tmp_path / "copy"))


def test_stages_of_another_checkpoint_are_refused_with_both_folders(tiny_folder, other_folder):
    with pytest.raises(ConfigError, match="belongs to another checkpoint") as caught:
        check_same_checkpoint(model_config(tiny_folder), model_config(other_folder))
    assert str(tiny_folder) in str(caught.value) and str(other_folder) in str(caught.value)


@pytest.mark.parametrize("num_drafts", [0, 6])
def test_lengths_the_block_does_not_hold_are_refused(tiny_folder, num_drafts):
    config = V41Config.from_dict(json.loads((tiny_folder / "config.json").read_text()))
    with pytest.raises(ConfigError, match=f"num_speculative_tokens is {num_drafts};.*1 to 5"):
        check_draft_length(num_drafts, config)


@pytest.mark.parametrize("num_drafts", range(1, 6))
def test_every_length_of_the_block_is_served(tiny_folder, num_drafts):
    config = V41Config.from_dict(json.loads((tiny_folder / "config.json").read_text()))
    check_draft_length(num_drafts, config)

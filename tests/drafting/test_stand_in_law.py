"""The stand-in's law is what its docstrings say, so tests that rely on it test something.

If this breaks, acceptance rates in tests and benchmarks are not those asked for, or a corrupted
prefix could say the right text.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from vllm_deepinfer.registration import ARCHITECTURE
from vllm_deepinfer.testing.stand_in import (
    POISON,
    Settings,
    drafts,
    logits_table,
    make_stand_in,
    registered,
    successors,
)
from vllm_deepinfer.testing.stand_in.journal import Journal, extended, from_hidden, to_hidden
from vllm_deepinfer.testing.stand_in.law import FIRST_TOKEN, LAST_TOKEN, greedy_text

POSITIONS, ANCHORS = (np.indices((100, 200)) + FIRST_TOKEN).reshape(2, -1)


def test_text_tokens_form_one_cycle_and_poison_none():
    text = greedy_text(0, FIRST_TOKEN, LAST_TOKEN - FIRST_TOKEN + 1)
    assert sorted(text) == list(range(FIRST_TOKEN, LAST_TOKEN + 1))
    assert greedy_text(0, POISON, 3) == [POISON] * 3
    assert (logits_table(0).argmax(1) == successors(0)).all()
    assert greedy_text(1, FIRST_TOKEN, 20) != greedy_text(0, FIRST_TOKEN, 20)


@pytest.mark.parametrize("spread", [0.0, 0.9])
def test_drafts_are_right_as_often_as_asked_and_as_the_confidence_says(spread):
    acceptance = (1.0, 0.8, 0.5, 0.2, 0.0)
    settings = Settings(acceptance=acceptance, confidence_spread=spread)
    block = drafts(settings, POSITIONS, ANCHORS, 5)
    assert block.right.mean(0) == pytest.approx(acceptance, abs=0.015)
    said = 1 / (1 + np.exp(-block.logits.astype(float)))
    assert said == pytest.approx(block.chances, abs=1e-4)
    before = np.column_stack([ANCHORS, block.tokens[:, :-1]])
    assert ((successors(0)[before] == block.tokens) == block.right).all()
    surer = block.chances[:, 2] > 0.5
    if spread:
        assert block.right[surer, 2].mean() - block.right[~surer, 2].mean() > 0.3


def test_a_shorter_block_is_the_beginning_of_a_longer_one():
    settings = Settings(acceptance=(0.5,) * 5)
    whole, short = (drafts(settings, POSITIONS, ANCHORS, count) for count in (5, 2))
    assert (whole.tokens[:, :2] == short.tokens).all()


def test_a_schedule_holds_from_its_positions():
    settings = Settings(acceptance=[(0, (1.0,) * 5), (50, (0.0,) * 5)])
    block = drafts(settings, POSITIONS, ANCHORS, 5)
    assert (block.right == (POSITIONS < 50)[:, None]).all()


@pytest.mark.parametrize(
    "settings",
    [
        {"acceptance": (0.5,) * 4},
        {"acceptance": (1.5,) * 5},
        {"acceptance": [(3, (0.5,) * 5)]},
        {"confidence": 2},
        {"confidence_spread": -1},
        {"confidence_scale": 0},
    ],
)
def test_settings_that_mean_nothing_are_refused_by_name(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        Settings(**settings)


def test_settings_survive_the_folder(tmp_path):
    made = make_stand_in(tmp_path, acceptance=[(0, (0.5,) * 5), (9, (0.25,) * 5)], confidence=0.5)
    assert Settings.read(tmp_path) == made
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [ARCHITECTURE]


def test_the_packages_own_classes_come_back():
    from vllm.model_executor.models import ModelRegistry

    with registered():
        inside = ModelRegistry.models[ARCHITECTURE].class_name
    assert (inside, ModelRegistry.models[ARCHITECTURE].class_name) == (
        "StandInTarget",
        "DeepseekV41ForCausalLM",
    )


def test_numbers_survive_hidden_states_in_bfloat16():
    numbers = np.random.default_rng(0).integers(0, 2**24, (100, 5))
    hidden = to_hidden(numbers, 256, torch.bfloat16)
    assert (from_hidden(hidden, 5) == numbers).all()


def windows(length, width):
    """The journal's rows at the end of a prefix, and its newest position."""
    rows, checksum = np.zeros((width + length, 3), int), np.array(1)
    for position in range(length):
        token = np.array(3 + position * 7 % 400)
        checksum = extended(checksum, token, np.array(position))
        rows[width + position] = token, position, checksum
    return rows[None, length:], np.array([length - 1])


@pytest.mark.parametrize("length", [1, 5, 8, 30])
def test_any_single_change_in_a_window_is_noticed(length):
    """Except in what lies before the start; the oldest row's number is bound by its successor."""
    journal = Journal("layers.0.attn.window", 8)
    whole, newest = windows(length, 8)
    assert journal.are_whole(whole, newest).all()
    for row in range(max(8 - length, 0), 8):
        for column in range(3):
            changed = whole.copy()
            changed[0, row, column] += 1
            unseen = length > 8 and (row, column) == (0, 0)
            assert journal.are_whole(changed, newest).all() == unseen

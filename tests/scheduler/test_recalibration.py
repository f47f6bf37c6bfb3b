"""Confidences end as honest as the drafts they speak of, and stay chances.

If this fails, an overconfident or ignorant drafter makes plans worse than a fixed length.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_deepinfer.scheduler.recalibration import REFIT_STEPS, Recalibration

NUM_DRAFTS = 3


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def serve(model: Recalibration, num_blocks: int, truth, seed: int, offered: int = 3) -> None:
    """Blocks whose true conditional logit is ``truth(told)``."""
    rng = np.random.default_rng(seed)
    for _ in range(num_blocks // 32):
        told = 1.5 * rng.standard_normal((32, NUM_DRAFTS))
        survives = rng.random(told.shape) < sigmoid(truth(told))
        accepted = np.cumprod(survives, axis=1)[:, :offered].sum(axis=1)
        model.settle(sigmoid(told), np.full(32, offered), accepted)
    assert num_blocks % (32 * REFIT_STEPS) == 0, "the last blocks were not fitted"


def test_nothing_changes_before_anything_is_known():
    told = np.random.default_rng(0).uniform(0.05, 0.95, (50, 3))
    assert (Recalibration(3).survival(told) == np.cumprod(told, axis=1)).all()


@pytest.mark.parametrize(("offset", "trust"), [(0.8, 1.0), (-1.0, 0.5), (0.5, 0.0), (0.0, 1.5)])
def test_the_relation_is_found(offset, trust):
    model = Recalibration(NUM_DRAFTS)
    serve(model, 6144, lambda told: offset + trust * told, seed=1)
    np.testing.assert_allclose(model.offset, offset, atol=0.2)
    np.testing.assert_allclose(model.trust, trust, atol=0.2)
    told = np.array([[0.5, -1.0, 2.0]])
    corrected = model.survival(sigmoid(told))
    expected = np.cumprod(sigmoid(offset + trust * told), axis=1)
    np.testing.assert_allclose(corrected, expected, atol=0.03)


def test_a_contrary_drafter_is_ignored_not_inverted():
    model = Recalibration(NUM_DRAFTS)
    serve(model, 6144, lambda told: -told, seed=2)
    assert (model.trust == 0).all()


def test_positions_that_were_never_verified_keep_the_first_guess():
    model = Recalibration(NUM_DRAFTS)
    serve(model, 3072, lambda told: told - 2.0, seed=3, offered=1)
    assert model.offset[0] < -1.5
    assert model.offset[1:].tolist() == [0, 0] and model.trust[1:].tolist() == [1, 1]


def test_other_texts_are_followed():
    """Counts are halved, so that the newest outweigh what came long before."""
    model = Recalibration(NUM_DRAFTS)
    serve(model, 64_512, lambda told: told + 1.0, seed=4)
    serve(model, 32_256, lambda told: told - 1.0, seed=5)
    assert (model.offset < -0.3).all()


@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from([np.float32, np.float64]),
    num_blocks=st.sampled_from([0, 512, 1024]),
)
def test_corrected_rates_are_chances_that_fall_along_a_row(seed, dtype, num_blocks):
    rng = np.random.default_rng(seed)
    model = Recalibration(NUM_DRAFTS)
    shift, scale = rng.normal(0, 5), rng.normal(0, 3)
    serve(model, num_blocks, lambda told: shift + scale * told, seed=seed)
    told = rng.choice([0.0, 1e-9, 0.5, 1.0], (20, NUM_DRAFTS)).astype(dtype)
    corrected = model.survival(told)
    assert corrected.dtype == dtype and corrected.shape == told.shape
    assert np.isfinite(corrected).all()
    assert ((corrected >= 0) & (corrected <= 1)).all()
    assert (np.diff(corrected, axis=1) <= 0).all()


def test_impossible_outcomes_are_refused():
    model, told = Recalibration(2), np.full((2, 2), 0.5)
    for offered, accepted in (([1, 1], [0, 2]), ([1, 3], [0, 0]), ([1, 1], [0, -1])):
        with pytest.raises(ValueError, match="no more survive than were offered"):
            model.settle(told, np.array(offered), np.array(accepted))

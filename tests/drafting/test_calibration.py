"""A calibrated confidence is the conditional probability that its draft survives.

Claim: temperatures are recovered from synthetic blocks, also when drafts were not offered; the
calibration error falls from several percent to at most one; what cannot be fitted is said to be
not fitted and left alone; a calibration is only ever applied to what it was fitted for. If this
breaks, plans that trust confidences verify the wrong drafts.
Run: python -m pytest tests/drafting (about 10 s).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_deepinfer.drafting import fit
from vllm_deepinfer.drafting.calibration import (
    MIN_TEMPERATURE,
    Calibration,
    CalibrationError,
    load_calibration,
    save_calibration,
)
from vllm_deepinfer.drafting.fit import (
    calibration_of,
    expected_calibration_error,
    expected_noise,
    fit_positions,
    fit_temperature,
)
from vllm_deepinfer.drafting.records import DraftRecords

CHECKPOINT = "c0ffee"
FEW = settings(max_examples=30, deadline=None)


def logistic(x):
    """Written otherwise than in the package."""
    return 0.5 * (1 + np.tanh(np.asarray(x, dtype=np.float64) / 2))


def draw(temperatures, blocks, seed, offer=None, mean=1.5):
    """Blocks whose draft k survives with probability sigmoid(z_k / t_k) if those before it did."""
    rng = np.random.default_rng(seed)
    size = len(temperatures)
    logits = rng.normal(mean, 1.5, (blocks, size))
    survives = rng.random((blocks, size)) < logistic(logits / np.array(temperatures))
    offered = np.full(blocks, size) if offer is None else offer(rng, logits)
    accepted = np.minimum(np.cumprod(survives, axis=1).sum(axis=1), offered)
    return DraftRecords(logits, offered, accepted)


def any_number(rng, logits):
    return rng.integers(0, logits.shape[1] + 1, len(logits))


def while_confident(rng, logits):
    """Truncation as a planner does it: by the confidences, not by the outcome."""
    survival = np.cumprod(logistic(logits), axis=1)
    return (survival > rng.random((len(logits), 1))).sum(axis=1)


# ---- the fit ----


@pytest.mark.parametrize("offer", [None, any_number, while_confident])
@pytest.mark.parametrize("true", [(0.5, 0.8, 1.3, 1.8, 2.5), (2.5, 2.0, 1.5, 1.0, 0.5)])
def test_temperatures_are_recovered_whatever_was_offered(true, offer):
    fits = fit_positions(draw(true, 200_000, seed=1, offer=offer), min_samples=500)
    for temperature, found in zip(true, fits, strict=True):
        assert found.fitted and found.samples > 1000
        # Four standard errors of 1 / t, about 1.6 / sqrt(n) of it.
        assert abs(temperature / found.temperature - 1) < 6.4 / np.sqrt(found.samples)


# Temperatures at which the raw error lies between 3 and 8 % here.
@pytest.mark.parametrize("true", [(1.3, 1.4, 1.5), (0.6, 0.7, 0.75), (1.5, 0.7, 1.3)])
def test_an_error_of_several_percent_falls_to_one(true):
    fits = fit_positions(draw(true, 120_000, seed=2), min_samples=500)
    for found in fits:
        assert 0.03 < found.conditional.before < 0.08
        assert found.conditional.after <= 0.01
    for found in fits[1:]:
        assert found.survival.after <= 0.01
        assert found.survival.after < found.survival.before or found.survival.before < 0.01


def test_the_reported_errors_hold_on_blocks_that_were_not_fitted():
    true = (1.4, 0.7, 1.5)
    calibration = calibration_of(fit_positions(draw(true, 60_000, seed=3), 500))
    fresh = draw(true, 120_000, seed=4)
    confidences = calibration.apply(fresh.logits)
    for position in range(3):
        rows = fresh.accepted >= position
        outcomes = fresh.accepted[rows] > position
        assert expected_calibration_error(confidences[rows, position], outcomes) <= 0.01
    together = confidences.prod(axis=1)
    assert expected_calibration_error(together, fresh.accepted == 3) <= 0.01


def test_blocks_that_do_not_know_the_outcome_change_nothing():
    records = draw((0.7, 1.6), 5_000, seed=5)
    first = fit_positions(records, 500)
    # Not offered at 1, or rejected at 0: no word about position 1; nothing offered: about none.
    padding = DraftRecords(
        np.concatenate([records.logits, np.full((3_000, 2), 40.0)]),
        np.concatenate([records.offered, np.zeros(3_000, dtype=np.int64)]),
        np.concatenate([records.accepted, np.zeros(3_000, dtype=np.int64)]),
    )
    assert fit_positions(padding, 500) == first
    more_rejections = DraftRecords(
        np.concatenate([records.logits, [[0.0, 40.0]]]),
        np.append(records.offered, 2),
        np.append(records.accepted, 0),
    )
    second = fit_positions(more_rejections, 500)
    assert second[1].conditional == first[1].conditional
    assert (second[0].samples, second[1].samples) == (first[0].samples + 1, first[1].samples)


def test_samples_are_counted_per_position():
    logits = np.zeros((4, 3))
    records = DraftRecords(logits, np.array([3, 3, 1, 0]), np.array([3, 1, 1, 0]))
    fits = fit_positions(records, 10)
    assert [found.samples for found in fits] == [3, 2, 1]
    assert [found.accepted for found in fits] == [3, 1, 1]
    assert [found.survival.samples for found in fits] == [3, 2, 2]


def test_positions_are_fitted_each_by_itself():
    records = draw((0.7, 1.6, 1.0), 20_000, seed=6)
    shorter = DraftRecords(
        records.logits[:, :2], np.minimum(records.offered, 2), np.minimum(records.accepted, 2)
    )
    assert fit_positions(shorter, 500) == fit_positions(records, 500)[:2]


@FEW
@given(st.integers(0, 2**32 - 1), st.floats(0.3, 4.0))
def test_no_other_temperature_is_likelier(seed, true):
    records = draw((true,), 2_000, seed)
    logits, survived = records.logits[:, 0], records.accepted == 1
    temperature, problem = fit_temperature(logits, survived, 1)
    assert problem == ""

    def loss(t):
        return np.logaddexp(0, np.where(survived, -logits, logits) / t).sum()

    least = loss(temperature)
    for factor in (0.5, 0.9, 0.999, 1.001, 1.1, 2.0):
        assert loss(temperature * factor) > least


@FEW
@given(st.integers(0, 2**32 - 1), st.floats(0.25, 4.0))
def test_scaled_logits_scale_the_temperature(seed, scale):
    records = draw((1.0,), 3_000, seed)
    logits, survived = records.logits[:, 0], records.accepted == 1
    temperature, _ = fit_temperature(logits, survived, 1)
    scaled, _ = fit_temperature(logits * scale, survived, 1)
    assert scaled == pytest.approx(temperature * scale, rel=2e-5)


def constant(size, value):
    return np.full(size, value)


@pytest.mark.parametrize(
    ("logits", "survived", "problem"),
    [
        (constant(99, 1.0), np.arange(99) < 70, "99 samples, 100 needed"),
        (np.zeros(0), np.zeros(0, dtype=bool), "0 samples, 100 needed"),
        (np.linspace(-3, 3, 200), np.ones(200, dtype=bool), "all 200 drafts survived"),
        (np.linspace(-3, 3, 200), np.zeros(200, dtype=bool), "all 200 drafts were rejected"),
        (np.linspace(-3, 3, 200), np.linspace(-3, 3, 200) > 0, "the sign of the logit decides"),
        (np.linspace(-3, 3, 200), np.linspace(-3, 3, 200) < 1, "do not survive more often"),
        (constant(200, 2.0), np.arange(200) < 60, "do not survive more often"),
        (constant(200, 0.0), np.arange(200) < 60, "do not survive more often"),
    ],
)
def test_what_has_no_optimum_is_not_fitted(logits, survived, problem):
    temperature, found = fit_temperature(logits, survived, 100)
    assert temperature == 1.0
    assert problem in found


def test_an_unfitted_position_is_left_alone_and_said_so():
    records = draw((1.5, 1.5), 3_000, seed=7, offer=lambda rng, z: np.r_[2, [1] * 2_999])
    fits = fit_positions(records, 500)
    assert [found.fitted for found in fits] == [True, False]
    assert fits[1].temperature == 1.0 and "samples, 500 needed" in fits[1].problem
    calibration = calibration_of(fits)
    assert calibration.fitted == (True, False)
    assert calibration.temperatures[1] == 1.0


def test_a_position_without_samples_has_no_errors():
    records = DraftRecords(np.zeros((2, 2)), np.array([1, 1]), np.array([0, 1]))
    found = fit_positions(records, 1)[1]
    assert (found.samples, found.conditional.before, found.survival.after) == (0, None, None)


# ---- the error ----


def test_the_error_of_known_samples():
    probabilities = np.repeat([0.2, 0.7], 50)
    outcomes = np.r_[np.arange(50) < 20, np.arange(50) < 30]  # shares 0.4 and 0.6
    assert expected_calibration_error(probabilities, outcomes) == pytest.approx(0.15)
    assert expected_calibration_error(np.array([0.25]), np.array([True])) == 0.75


def test_bins_have_equal_mass():
    counts = np.bincount(fit._bins(np.random.default_rng(8).random(12_345)))
    assert len(counts) == fit.ECE_BINS
    assert counts.max() - counts.min() <= 1


probabilities_and_outcomes = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.5, 0.51, 0.9, 1.0]) | st.floats(0, 1), st.booleans()),
    min_size=1,
    max_size=80,
)


@FEW
@given(probabilities_and_outcomes, st.randoms())
def test_the_error_does_not_depend_on_the_order(samples, random):
    def error(pairs):
        probabilities, outcomes = zip(*pairs, strict=True)
        return expected_calibration_error(np.array(probabilities), np.array(outcomes))

    shuffled = list(samples)
    random.shuffle(shuffled)
    assert error(shuffled) == pytest.approx(error(samples), abs=1e-12)
    mean_excess = np.mean([p - y for p, y in samples])
    assert (
        abs(mean_excess) - 1e-12
        <= error(samples)
        <= np.mean([abs(p - y) for p, y in samples]) + 1e-12
    )


def test_noise_is_what_exact_probabilities_show():
    rng = np.random.default_rng(9)
    probabilities = logistic(rng.normal(1, 1.5, 3_000))
    shown = [
        expected_calibration_error(probabilities, rng.random(3_000) < probabilities)
        for _ in range(200)
    ]
    assert expected_noise(probabilities) == pytest.approx(np.mean(shown), rel=0.05)


# ---- use ----

temperature_values = st.floats(MIN_TEMPERATURE, 1e5)


@FEW
@given(
    st.lists(temperature_values, min_size=1, max_size=7),
    st.data(),
)
def test_arrays_and_tensors_agree_at_any_logit(temperatures, data):
    calibration = Calibration(tuple(temperatures))
    row = st.lists(
        st.floats(width=32, allow_nan=False), min_size=len(temperatures), max_size=len(temperatures)
    )
    logits = np.array(data.draw(st.lists(row, min_size=1, max_size=3)), dtype=np.float32)
    of_array = calibration.apply(logits)
    of_tensor = calibration.apply(torch.from_numpy(logits))
    assert of_array.dtype == np.float64 and of_tensor.dtype == torch.float32
    assert of_array.shape == of_tensor.shape == logits.shape
    assert ((of_array > 0) & (of_array <= 1)).all()
    assert ((of_tensor > 0) & (of_tensor <= 1)).all()
    with np.errstate(over="ignore"):
        expected = logistic(np.clip(logits.astype(np.float64) / temperatures, -60, 60))
    np.testing.assert_allclose(of_array, expected, rtol=0, atol=1e-15)
    np.testing.assert_allclose(of_tensor.numpy(), expected, rtol=0, atol=1e-6)


def test_temperatures_belong_to_positions():
    calibration = Calibration((0.5, 1.0, 2.0))
    logits = torch.tensor([[[1.0, 1.0, 1.0]], [[-2.0, 0.0, 2.0]]], dtype=torch.bfloat16)
    expected = torch.tensor([[[2.0, 1.0, 0.5]], [[-4.0, 0.0, 1.0]]]).sigmoid()
    torch.testing.assert_close(calibration.apply(logits), expected)


def test_without_calibration_a_confidence_is_the_sigmoid():
    logits = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Calibration((1.0, 1.0)).apply(logits), logits.sigmoid())


@pytest.mark.parametrize("shape", [(2,), (3, 2), (3, 4), ()])
def test_other_block_sizes_are_not_calibrated(shape):
    for logits in (np.zeros(shape), torch.zeros(shape)):
        with pytest.raises(ValueError, match="blocks of 3"):
            Calibration((1.0, 1.0, 1.0)).apply(logits)


# ---- the file ----


@FEW
@given(st.lists(temperature_values | st.none(), min_size=1, max_size=7))
def test_a_file_gives_back_what_was_written(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("file") / "calibration.json"
    calibration = Calibration(
        tuple(1.0 if value is None else value for value in values),
        tuple(value is not None for value in values),
    )
    save_calibration(path, calibration, CHECKPOINT, [])
    assert load_calibration(path, CHECKPOINT, len(values)) == calibration


def test_the_same_records_give_the_same_bytes(tmp_path):
    written = []
    for name in ("a.json", "b.json"):
        fits = fit_positions(draw((0.7, 1.6), 3_000, seed=10), 500)
        rows = [found.as_row(position) for position, found in enumerate(fits)]
        save_calibration(tmp_path / name, calibration_of(fits), CHECKPOINT, rows)
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]
    report = json.loads(written[0])["report"]
    assert [row["position"] for row in report] == [0, 1]
    assert report[0]["conditional"]["samples"] == report[0]["samples"] == 3_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json"]


def test_a_failed_write_leaves_nothing_behind(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        save_calibration(tmp_path / "folder", Calibration((1.0,)), CHECKPOINT, [])
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


REMOVED = object()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, ["version=2", "Allowed: 1"]),
        ({"version": True}, ["version=True"]),
        ({"version": REMOVED}, ["missing ['version']"]),
        ({"temperatures": REMOVED}, ["missing ['temperatures']"]),
        ({"note": "x"}, ["unknown ['note']", "report may be missing"]),
        ({"checkpoint": "beef"}, ["checkpoint='beef'", "another checkpoint", CHECKPOINT]),
        ({"block_size": 3}, ["block_size=3", "blocks of 2", "num_speculative_tokens"]),
        ({"block_size": "2"}, ["block_size='2'"]),
        ({"temperatures": [1.0]}, ["temperatures=[1.0]", "2 in all"]),
        ({"temperatures": 1.0}, ["temperatures=1.0", "a list"]),
        ({"temperatures": [1.0, 0]}, ["temperatures[1]=0", "at least 1e-05"]),
        ({"temperatures": [1.0, 9e-6]}, ["temperatures[1]=9e-06"]),
        ({"temperatures": [-1.0, 1.0]}, ["temperatures[0]=-1.0"]),
        ({"temperatures": [1.0, float("nan")]}, ["temperatures[1]=nan", "finite"]),
        ({"temperatures": [1.0, float("inf")]}, ["temperatures[1]=inf"]),
        ({"temperatures": [1.0, 10**400]}, ["temperatures[1]=1000"]),
        ({"temperatures": [1.0, True]}, ["temperatures[1]=True"]),
        ({"temperatures": [1.0, "1"]}, ["temperatures[1]='1'"]),
        ({"fitted": [True]}, ["fitted=[True]"]),
        ({"fitted": [True, 1]}, ["fitted[1]=1", "true, false"]),
        ({"fitted": [False, True]}, ["temperatures[0]=0.5", "fitted[0] is false"]),
    ],
)
def test_a_file_is_refused_by_name(tmp_path, changes, words):
    path = tmp_path / "calibration.json"
    save_calibration(path, Calibration((0.5, 2.0)), CHECKPOINT, [])
    content = json.loads(path.read_text())
    content = {k: v for k, v in {**content, **changes}.items() if v is not REMOVED}
    path.write_text(json.dumps(content))
    with pytest.raises(CalibrationError) as error:
        load_calibration(path, CHECKPOINT, 2)
    for word in [str(path), *words]:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("content", "word"),
    [(None, "cannot be read"), (b"{", "not JSON"), (b"\xff", "not JSON"), (b"[1]", "JSON list")],
)
def test_what_is_no_calibration_file_is_refused(tmp_path, content, word):
    path = tmp_path / "calibration.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CalibrationError, match=word):
        load_calibration(path, CHECKPOINT, 2)


def test_the_arithmetic_needs_no_torch():
    package = Path(fit.__file__).parent
    for name in ("calibration", "fit", "records"):
        imports = [
            line
            for line in (package / f"{name}.py").read_text().splitlines()
            if line.startswith(("import ", "from "))
        ]
        assert imports and not any("torch" in line or "vllm " in line for line in imports)


def test_a_calibration_covers_a_block():
    with pytest.raises(CalibrationError, match="empty"):
        Calibration(())
    with pytest.raises(CalibrationError, match="2 entries for 1"):
        Calibration((1.0,), (True, True))

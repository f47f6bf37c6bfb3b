"""What a step is said to cost follows the steps that ran.

If these fail, plans are made for another machine: lengths that no longer pay, or a model that one
slow step or a new load sends astray.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from planner_backends import BACKENDS, using

from vllm_deepinfer.scheduler.step_cost import CostSettings, StepCost, StepTimes

CURVE = [(1, 10.0), (8, 10.4), (16, 11.0), (32, 12.0), (64, 14.0)]


@pytest.fixture(params=BACKENDS, autouse=True)
def _backend(request, monkeypatch):
    using(request.param, monkeypatch)


def run(cost: StepCost, tokens: int, forward_ms: float, count: int = 1, context: int = 0) -> None:
    for _ in range(count):
        cost.observe(StepTimes(1, tokens, context, forward_ms, 1.0))


@pytest.mark.parametrize(
    ("curve", "told"),
    [
        ([], "empty"),
        ([(8, 1.0), (8, 2.0)], "bucket 8 of the curve of step costs follows 8"),
        ([(8, 1.0), (4, 2.0)], "bucket 4 of the curve of step costs follows 8"),
        ([(0, 1.0)], "sizes must be >= 1"),
        ([(8, 0.0)], "bucket 8 of the curve costs 0.0 ms"),
        ([(8, math.nan)], "bucket 8 of the curve costs nan ms"),
        ([(8, math.inf)], "bucket 8 of the curve costs inf ms"),
    ],
)
def test_bad_curves_are_refused(curve, told):
    with pytest.raises(ValueError, match=told):
        StepCost(curve)


@pytest.mark.parametrize(
    ("times", "told"),
    [
        (StepTimes(0, 1, 0, 1.0, 1.0), "num_seqs of a step is 0"),
        (StepTimes(1, 0, 0, 1.0, 1.0), "num_tokens of a step is 0"),
        (StepTimes(1, 1, -1, 1.0, 1.0), "context_tokens of a step is -1"),
        (StepTimes(1, 1, 0, math.nan, 1.0), "forward_ms of a step is nan"),
        (StepTimes(1, 1, 0, 1.0, math.inf), "sampler_ms of a step is inf"),
    ],
)
def test_impossible_times_are_refused(times, told):
    with pytest.raises(ValueError, match=told):
        StepCost(CURVE).observe(times)


def test_settings_are_checked():
    with pytest.raises(ValueError, match="forward_min_samples is 6; it must be from 1 to"):
        CostSettings(forward_window=5, forward_min_samples=6)
    with pytest.raises(ValueError, match="sampler_min_samples is 0"):
        CostSettings(sampler_min_samples=0)


def test_buckets_hold_their_tokens_and_nothing_pads_above_the_largest():
    cost = StepCost(CURVE)
    assert [cost.bucket(n) for n in (1, 2, 8, 9, 64, 65, 100)] == [1, 8, 8, 16, 64, 65, 100]
    # The line through the last two buckets goes on: 2 ms for 32 tokens.
    assert cost.forward_ms(96) == pytest.approx(16.0)
    refusing = StepCost(CURVE, CostSettings.compatible())
    for ask in (refusing.bucket, refusing.forward_ms):
        with pytest.raises(ValueError, match="65 tokens has no price: the largest .* is 64"):
            ask(65)


def test_unpadded_steps_are_priced_between_buckets():
    cost = StepCost(CURVE, CostSettings(padded=False))
    assert cost.forward_ms(12) == pytest.approx(10.7)
    assert StepCost(CURVE).forward_ms(12) == 11.0


@pytest.mark.parametrize("settings", [CostSettings(), CostSettings.compatible()])
def test_the_profile_is_the_floor(settings):
    cost = StepCost(CURVE, settings)
    run(cost, 16, 3.0, count=50)
    assert [cost.forward_ms(size) for size, _ in CURVE] == [ms for _, ms in CURVE]


def test_ten_samples_price_a_bucket_and_one_slow_step_moves_nothing():
    cost = StepCost(CURVE)
    run(cost, 16, 13.0, count=9)
    assert cost.forward_ms(16) == 11.0 and not cost.is_measured(16)
    run(cost, 16, 13.0)
    assert cost.forward_ms(16) == 13.0 and cost.is_measured(16)
    run(cost, 16, 900.0, count=4)
    assert cost.forward_ms(16) == 13.0


def test_neighbours_price_unmeasured_buckets():
    cost = StepCost(CURVE)
    run(cost, 8, 11.4, count=10)
    run(cost, 32, 16.0, count=10)
    # 16 lies a third of the way from 8, at 1 ms above its profile, to 32, at 4 ms.
    assert cost.forward_ms(16) == pytest.approx(11.0 + 2.0)
    # 64 carries 32's share, 4 of 12 ms: less than the slope of 1/8 ms a token would say.
    assert cost.forward_ms(64) == pytest.approx(14.0 + 14.0 / 3)
    assert cost.forward_ms(1) == pytest.approx(10.0 + 10.0 / 10.4)


def test_the_compatible_slope_is_the_median_of_bucket_medians():
    cost = StepCost(CURVE, CostSettings.compatible())
    for tokens, residual_ms in ((8, 0.8), (16, 3.2), (32, 16.0)):  # 0.1, 0.2 and 0.5 ms a token
        base = dict(CURVE)[tokens]
        for noise in (-0.5, 0.5, 0.0) * 4:
            run(cost, tokens, base + residual_ms + noise)
    run(cost, 64, 500.0, count=9)  # one sample too few to count
    assert cost.core.slope_ms == pytest.approx(0.2)
    assert cost.forward_ms(64) == pytest.approx(14.0 + 12.8)


def test_old_samples_leave_the_window():
    cost = StepCost(CURVE, CostSettings(forward_window=30, forget=False))
    run(cost, 16, 20.0, count=30)
    run(cost, 16, 12.0, count=16)
    assert cost.forward_ms(16) == 12.0
    assert cost.core.num_samples(2) == 30


def test_sampler_times_fall_back_from_their_count_to_all_to_none():
    cost = StepCost(CURVE)
    assert cost.sampler_ms(4) == 0.0
    for ms in (3.0, 1.0, 2.0, 9.0):
        cost.observe(StepTimes(4, 8, 0, 10.0, ms))
    assert cost.sampler_ms(4) == 0.0
    cost.observe(StepTimes(2, 8, 0, 10.0, 8.0))
    assert cost.sampler_ms(4) == 3.0  # of all: 1 2 3 8 9
    cost.observe(StepTimes(4, 8, 0, 10.0, 1.0))
    assert cost.sampler_ms(4) == 2.0  # its own: 1 1 2 3 9
    for _ in range(9):
        cost.observe(StepTimes(4, 8, 0, 10.0, 5.0))
    assert cost.sampler_ms(4) == 5.0
    assert cost.step_ms(8, 4) == cost.forward_ms(8) + 5.0


def test_context_is_priced_from_steps_of_one_bucket():
    """Each bucket only saw some context lengths; prices hold for others, too."""
    rng = np.random.default_rng(0)
    cost = StepCost(CURVE)
    price_ms = 2e-5
    for _ in range(1500):
        size, base_ms = CURVE[rng.integers(1, 4)]
        context = int(2 ** rng.uniform(10, 17))
        noise_ms = 0.3 * rng.standard_normal() + (20.0 if rng.random() < 0.02 else 0.0)
        run(cost, size, max(0.0, base_ms + 1.0 + price_ms * context + noise_ms), context=context)
    assert cost.core.context_slope_ms == pytest.approx(price_ms, rel=0.1)
    for size, base_ms in CURVE[1:4]:
        for context in (1000, 60_000, 250_000):
            expected = base_ms + 1.0 + price_ms * context
            assert cost.forward_ms(size, context) == pytest.approx(expected, rel=0.05)


def test_no_context_price_comes_from_noise_alone():
    rng = np.random.default_rng(1)
    cost = StepCost(CURVE)
    for _ in range(1500):
        run(cost, 16, 12.0 + 0.5 * rng.standard_normal(), context=int(2 ** rng.uniform(10, 17)))
    assert cost.core.context_slope_ms * 2**17 < 0.03 * 12.0


@pytest.mark.parametrize("change", [0.8, 1.3, 2.0])
def test_a_shift_is_followed_within_24_steps_of_a_bucket(change):
    """All buckets follow, those not seen since by the share of the one that was."""
    rng = np.random.default_rng(2)
    scale = 1.5
    cost = StepCost(CURVE)
    for _ in range(3000):
        size, base_ms = CURVE[rng.integers(1, 4)]
        run(cost, size, scale * base_ms * (1 + 0.02 * rng.standard_normal()))
    assert cost.core.num_shifts == 0
    for _ in range(24):
        run(cost, 16, scale * change * 11.0 * (1 + 0.02 * rng.standard_normal()))
    assert cost.core.num_shifts == 1
    for size, base_ms in CURVE[1:4]:
        assert cost.forward_ms(size) == pytest.approx(scale * change * base_ms, rel=0.03)
    slow = StepCost(CURVE, CostSettings(forget=False))
    run(slow, 16, scale * 11.0, count=1000)
    run(slow, 16, scale * change * 11.0, count=24)
    assert slow.forward_ms(16) == scale * 11.0


@pytest.mark.parametrize("kind", ["normal", "heavy"])
def test_noise_alone_is_no_shift(kind):
    rng = np.random.default_rng(3)
    cost = StepCost(CURVE)
    for _ in range(6000):
        size, base_ms = CURVE[rng.integers(1, 4)]
        noise = rng.standard_normal() if kind == "normal" else rng.standard_t(2)
        run(cost, size, max(0.1, 1.5 * base_ms * (1 + 0.1 * noise)))
    assert cost.core.num_shifts == 0


def test_state_travels_as_json_and_names_its_source():
    import json

    rng = np.random.default_rng(4)
    cost = StepCost(CURVE)
    assert cost.source == "profile"
    for _ in range(300):
        run(cost, int(rng.integers(1, 80)), 12 + rng.random(), context=int(rng.integers(0, 9999)))
    copy = StepCost.from_state(json.loads(json.dumps(cost.state())))
    assert (copy.source, copy.settings, copy.curve) == ("saved", cost.settings, cost.curve)
    assert [copy.step_ms(n, 1, 500) for n in range(1, 90)] == [
        cost.step_ms(n, 1, 500) for n in range(1, 90)
    ]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda s: s.__setitem__("format", 0), "have format 0; this version reads 1"),
        (lambda s: s.pop("curve"), "damaged: KeyError"),
        (lambda s: s["settings"].__setitem__("other", 1), "damaged: TypeError"),
        (lambda s: s["learned"].pop("errors"), "damaged: KeyError"),
        (lambda s: s["learned"]["errors"].pop(), "buckets|shorter"),
        (lambda s: s["learned"]["samples"].__setitem__(0, [1, 2]), "another length|unpack"),
        (lambda s: s["learned"]["samples"].__setitem__(0, [1, 2, "x"]), "damaged: TypeError"),
        (lambda s: s["learned"]["samples"].__setitem__(0, [1, 2, math.nan]), "not finite"),
        (lambda s: s["learned"]["samples"].__setitem__(0, [0, 2, 1.0]), "no tokens"),
        (lambda s: s["learned"]["sampler"][0][1].append(math.inf), "not finite"),
        (lambda s: s["learned"]["errors"][0][1].append(math.nan), "not finite"),
    ],
)
def test_damaged_states_are_refused(damage, told):
    cost = StepCost(CURVE)
    run(cost, 16, 12.0, count=12)
    state = cost.state()
    damage(state)
    with pytest.raises(ValueError, match=told):
        StepCost.from_state(state)

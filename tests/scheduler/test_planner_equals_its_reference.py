"""The C++ planner and its Python reference agree to the bit: prices, plans, state, refusals.

If this fails, a machine without a compiler plans otherwise than one with it, and the ranks of a
mixed deployment may run different shapes.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_deepinfer.scheduler import step_cost_reference, verification_reference
from vllm_deepinfer.scheduler.planner_backend import backend
from vllm_deepinfer.scheduler.step_cost import CostSettings
from vllm_deepinfer.scheduler.verification import PlannerSettings

EXTENSION = backend()
REFERENCE = step_cost_reference.CostCore, verification_reference.PlannerCore


def test_the_extension_was_built():
    assert EXTENSION[0] is not REFERENCE[0]


@st.composite
def cost_settings(draw) -> CostSettings:
    window = draw(st.sampled_from([12, 40, 5000]))
    return CostSettings(
        forward_window=window,
        forward_min_samples=draw(st.sampled_from([1, 2, 10])),
        **{
            name: draw(st.booleans())
            for name in ("local", "context", "forget", "padded", "extrapolate")
        },
    )


@st.composite
def planner_settings(draw) -> PlannerSettings:
    return PlannerSettings(
        min_benefit=draw(st.sampled_from([0.0, 0.01, 0.2])),
        explore_every=draw(st.sampled_from([0, 1, 3])),
        explore_loss=draw(st.sampled_from([0.0, 0.1, 0.9])),
        ties=draw(st.sampled_from(["position", "sequence"])),
    )


def random_curve(rng: np.random.Generator) -> tuple[list[int], list[float]]:
    count = int(rng.integers(1, 12))
    sizes = np.sort(rng.choice(np.arange(1, 300), count, replace=False)).tolist()
    return sizes, (5.0 + np.cumsum(rng.normal(0.3, 0.5, count)) ** 2).tolist()


def random_steps(rng: np.random.Generator, count: int, largest: int) -> list[tuple]:
    """Steps of few shapes whose level jumps half-way, so that windows fill and shifts are found."""
    shapes = rng.integers(1, int(largest * 1.3) + 2, 4)
    steps = []
    for i in range(count):
        tokens = int(rng.choice(shapes))
        context = int(2 ** rng.uniform(0, 18)) * int(rng.integers(0, 2))
        noise = rng.choice([0.0, 0.25, rng.normal()])
        ms = 10.0 + 0.02 * tokens + 1e-4 * context + noise + (8.0 if i > count / 2 else 0.0)
        steps.append((int(rng.integers(1, 9)), tokens, context, max(0.0, ms), rng.random()))
    return steps


def random_rates(rng: np.random.Generator, shape: tuple[int, int], dtype: Any) -> np.ndarray:
    """Cumulative chances, of few levels half of the time, with ones and zeros among them."""
    rates = rng.random(shape) ** rng.choice([0.1, 1.0, 4.0])
    if rng.integers(0, 2):
        rates = np.round(rates * 4) / 4
    return np.cumprod(rates, axis=1).astype(dtype)


def cores(classes: tuple, curve: tuple, cost: CostSettings, plans: PlannerSettings, k: int):
    core = classes[0](*curve, *asdict(cost).values())
    values = asdict(plans) | {"ties": plans.ties == "position"}
    return core, classes[1](core, k, *values.values())


def prices(core: Any, largest: int) -> list[Any]:
    tokens = [*range(1, largest + 9), 10 * largest]
    return [
        core.slope_ms,
        core.context_slope_ms,
        core.num_observed,
        core.num_shifts,
        [core.forward_ms(t, context) for t in tokens for context in (0, 5000)],
        [core.sampler_ms(n) for n in range(12)],
    ]


def outcome(planner: Any, arguments: tuple) -> Any:
    """The plan, or the message of its refusal."""
    num_drafts = np.full(len(arguments[2]), -7, dtype=np.int32)
    try:
        return *planner.plan(*arguments[:3], num_drafts, *arguments[3:]), num_drafts.tolist()
    except ValueError as error:
        return str(error)


@given(
    seed=st.integers(0, 2**32 - 1),
    cost=cost_settings(),
    plans=planner_settings(),
    num_steps=st.sampled_from([0, 20, 260]),
    num_drafts=st.integers(1, 7),
)
@settings(max_examples=150)
def test_prices_and_plans_are_equal(seed, cost, plans, num_steps, num_drafts):
    rng = np.random.default_rng(seed)
    curve = random_curve(rng)
    largest = curve[0][-1]
    pairs = [cores(classes, curve, cost, plans, num_drafts) for classes in (EXTENSION, REFERENCE)]
    (ours, planner), (expected, reference) = pairs
    for step in random_steps(rng, num_steps, largest):
        ours.observe(*step)
        expected.observe(*step)
    assert prices(ours, largest) == prices(expected, largest)
    assert ours.state() == expected.state()
    for n in (*rng.integers(0, 40, 8).tolist(), 130):
        dtype = rng.choice([np.float32, np.float64])
        rates = [random_rates(rng, (n, num_drafts), dtype) for _ in range(2)]
        limits = rng.integers(0 if rng.integers(2) else num_drafts, num_drafts + 1, n)
        other = int(rng.integers(0, 2) * rng.integers(0, largest + 1))
        arguments = (*rates, limits.astype(np.int32), int(rng.integers(0, 10**5)), other)
        assert outcome(planner, arguments) == outcome(reference, arguments)


@given(seed=st.integers(0, 2**32 - 1), cost=cost_settings())
@settings(max_examples=40)
def test_a_restored_core_learns_on_alike(seed, cost):
    """Whichever of the two saved and whichever restores."""
    rng = np.random.default_rng(seed)
    curve = random_curve(rng)
    steps = random_steps(rng, 300, curve[0][-1])
    saved = [classes[0](*curve, *asdict(cost).values()) for classes in (EXTENSION, REFERENCE)]
    for core in saved:
        for step in steps[:200]:
            core.observe(*step)
    restored = []
    for classes, source in zip((EXTENSION, REFERENCE), reversed(saved), strict=True):
        restored.append(classes[0](*curve, *asdict(cost).values()))
        restored[-1].restore(source.state())
    for step in steps[200:]:
        for core in (*saved, *restored):
            core.observe(*step)
    expected = prices(saved[0], curve[0][-1])
    assert all(prices(core, curve[0][-1]) == expected for core in (*saved, *restored))


GOOD = np.array([[0.9, 0.5], [0.7, 0.7]])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda a: a[0].__setitem__((1, 0), np.nan), "budget rate of sequence 1, draft 0 is nan"),
        (lambda a: a[1].__setitem__((0, 1), np.nan), "ranking rate of sequence 0, draft 1 is nan"),
        (lambda a: a[0].__setitem__((0, 0), 1.5), "is 1.5; a chance must be from 0 to 1"),
        (lambda a: a[0].__setitem__((0, 1), -0.25), "is -0.25; a chance must be from 0 to 1"),
        (lambda a: a[1].__setitem__((1, 1), np.inf), "is inf; a chance must be from 0 to 1"),
        (lambda a: a[0].__setitem__((1, 1), 0.8), "budget rate of sequence 1 rises at draft 1"),
        (lambda a: a[2].__setitem__(1, 3), "limit of sequence 1 is 3; it must be from 0 to 2"),
        (lambda a: a[2].__setitem__(0, -1), "limit of sequence 0 is -1; it must be from 0 to 2"),
        (lambda a: a.__setitem__(3, -1), "context_tokens is -1"),
        (lambda a: a.__setitem__(4, -1), "other_tokens -1"),
        (lambda a: a.__setitem__(4, 15), "largest profiled bucket is 16"),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bad_input_is_refused_in_the_same_words(change, told, dtype):
    messages = []
    for classes in (EXTENSION, REFERENCE):
        arguments = [GOOD.astype(dtype), GOOD.astype(dtype), np.array([2, 2], np.int32), 0, 0]
        change(arguments)
        curve = ([4, 16], [10.0, 11.0])
        compatible = CostSettings.compatible(), PlannerSettings.compatible()
        planner = cores(classes, curve, *compatible, 2)[1]
        with pytest.raises(ValueError) as refusal:
            planner.plan(*arguments[:3], np.empty(2, np.int32), *arguments[3:])
        messages.append(str(refusal.value))
    assert told in messages[0]
    assert messages[0] == messages[1]


def test_shapes_and_types_are_refused():
    planner = cores(EXTENSION, ([16], [10.0]), CostSettings(), PlannerSettings(), 2)[1]
    limits, room = np.array([2, 2], np.int32), np.empty(2, np.int32)
    for budget, ranking in (
        (GOOD[:1], GOOD),
        (GOOD, GOOD[:, :1].copy()),
        (GOOD.astype(np.int64), GOOD),
        (GOOD.astype(np.float16), GOOD),
        (GOOD[0], GOOD),
    ):
        with pytest.raises(ValueError, match="expected float32 or float64"):
            planner.plan(budget, ranking, limits, room, 0, 0)
    with pytest.raises(ValueError, match="limits must be int32"):
        planner.plan(GOOD, GOOD, limits.astype(np.int64), room, 0, 0)
    with pytest.raises(ValueError, match="as long as limits"):
        planner.plan(GOOD, GOOD, limits, room[:1], 0, 0)
    with pytest.raises(TypeError):
        planner.plan(GOOD, GOOD, limits, room)
    with pytest.raises((TypeError, BufferError)):
        planner.plan(GOOD.tolist(), GOOD, limits, room, 0, 0)

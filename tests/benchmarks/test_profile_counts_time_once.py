"""The profile's parts add up: a part's time is its own, without that of parts it calls.

If this breaks, the share of a step that the runner takes is wrong.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def step_profile(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import step_profile

    return step_profile


class Clock:
    """Stands for `time`: it moves only when told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


class Engine:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def outer(self) -> str:
        self.clock.now_s += 1
        self.inner()
        self.clock.now_s += 2
        self.inner()
        return "answer"

    def inner(self) -> None:
        self.clock.now_s += 10
        if self.clock.now_s > 1000:
            raise OverflowError("too late")


@pytest.fixture
def engine(step_profile, monkeypatch):
    engine = Engine(Clock())
    monkeypatch.setattr(step_profile, "time", engine.clock)
    return engine


def wrapped(step_profile, engine):
    return [
        step_profile.Part("runner", "outer", engine, "outer"),
        step_profile.Part("model", "inner", engine, "inner"),
    ]


def test_nested_calls_are_counted_once(step_profile, engine):
    with step_profile.timing(wrapped(step_profile, engine)) as timer:
        assert engine.outer() == "answer"
    assert timer.seconds == {("runner", "outer"): 3, ("model", "inner"): 20}
    assert timer.calls == {("runner", "outer"): 1, ("model", "inner"): 2}


def test_a_call_that_raises_is_counted_and_raises(step_profile, engine):
    engine.clock.now_s = 999.0
    with step_profile.timing(wrapped(step_profile, engine)) as timer:
        with pytest.raises(OverflowError, match="too late"):
            engine.outer()
    assert timer.seconds == {("runner", "outer"): 1, ("model", "inner"): 10}


def test_the_engine_is_left_as_it_was(step_profile, engine):
    engine.own = engine.inner  # an attribute of the object, where the others are of its class
    before = dict(vars(engine))
    own = step_profile.Part("model", "own", engine, "own")
    with step_profile.timing([*wrapped(step_profile, engine), own]):
        assert vars(engine) != before
    assert vars(engine) == before


def test_another_thread_does_not_count_as_nested(step_profile):
    class Waiting:
        def outer(self) -> None:
            thread = threading.Thread(target=self.inner)
            thread.start()
            thread.join()

        def inner(self) -> None:
            time.sleep(0.05)

    engine = Waiting()
    with step_profile.timing(wrapped(step_profile, engine)) as timer:
        engine.outer()
    assert timer.seconds["runner", "outer"] >= timer.seconds["model", "inner"] >= 0.05

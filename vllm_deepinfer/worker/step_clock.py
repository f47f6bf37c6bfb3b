"""Times of steps on an accelerator, by events in its stream: nothing here waits for the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from vllm.v1.worker.gpu.async_utils import StepTimingCollector, StepTimingEvents

from vllm_deepinfer.scheduler.step_cost import StepTimes

# Steps whose events are still kept; a host is one or two steps ahead of its device.
_MOST_PENDING = 8


class StepShape(NamedTuple):
    """What a step computed."""

    num_seqs: int
    num_tokens: int
    context_tokens: int
    is_decode: bool


@dataclass
class TimedStep:
    """A step's events, in its stream's order, and its shape once that is known."""

    begin: Any
    forward_end: Any
    end: Any
    shape: StepShape | None = None

    def forward_ms(self) -> float:
        """Once ``end`` has come: time of the target's forward pass."""
        return self.begin.elapsed_time(self.forward_end)

    def sampler_ms(self) -> float:
        """Once ``end`` has come: time of sampling, verification and drafting."""
        return self.forward_end.elapsed_time(self.end)

    def times(self) -> StepTimes:
        """Once ``end`` has come: what a decode step teaches of costs."""
        shape = self.shape
        return StepTimes(
            num_seqs=shape.num_seqs,
            num_tokens=shape.num_tokens,
            context_tokens=shape.context_tokens,
            forward_ms=self.forward_ms(),
            sampler_ms=self.sampler_ms(),
        )


class StepClock(StepTimingCollector):
    """vLLM's clock of its start-up profile, which goes on to time the steps that are served.

    The model runner itself says when a forward pass begins, right before it replays a graph or
    calls the model; its worker says when that and the step have been launched.

    Args:
        make_event: a new event with timing of the device.

    Attributes:
        is_serving: whether steps are timed. Not while graphs are captured, which may hold none.
    """

    def __init__(self, make_event: Callable[[], Any]) -> None:
        super().__init__()
        self._make_event = make_event
        self._open: TimedStep | None = None
        self.is_serving = False

    def forward_start(self) -> None:
        if self._collecting:
            # As vLLM's own, which makes events of CUDA.
            self._step = StepTimingEvents(*(self._make_event() for _ in range(4)))
            self._step.forward_start.record()
        elif self.is_serving:
            self._open = TimedStep(*(self._make_event() for _ in range(3)))
            self._open.begin.record()

    def end_forward(self, shape: StepShape) -> None:
        """The forward pass has been launched."""
        if self._open is not None:
            self._open.shape = shape
            self._open.forward_end.record()

    def end_step(self) -> TimedStep | None:
        """All of the step has been launched; None where nothing was begun or ended before."""
        step, self._open = self._open, None
        if step is None or step.shape is None:
            return None
        step.end.record()
        return step


class PendingSteps:
    """Steps of which the device may not have seen the end, oldest first."""

    def __init__(self) -> None:
        self._steps: deque[TimedStep] = deque(maxlen=_MOST_PENDING)

    def add(self, step: TimedStep) -> None:
        self._steps.append(step)

    def take_finished(self) -> StepTimes | None:
        """Times of the oldest step if the device is past it; it is then forgotten."""
        if not self._steps or not self._steps[0].end.query():
            return None
        return self._steps.popleft().times()


def shape_of(input_batch: Any) -> StepShape:
    """The shape of a batch of vLLM's V2 model runner, as it runs: drafts trimmed."""
    return StepShape(
        num_seqs=input_batch.num_reqs,
        num_tokens=input_batch.num_tokens,
        context_tokens=int(input_batch.num_computed_tokens_np.sum()),
        is_decode=not input_batch.has_prefill,
    )


def profile_decoding(
    run: Callable[[int], Any], clock: StepClock, sizes: list[int], num_runs: int = 5
) -> tuple[tuple[int, float], ...]:
    """``(tokens, ms)`` of forward passes without context: the median of each size.

    Every rank runs the same, since each run takes all of them.

    Args:
        run: launches a batch of so many tokens and its drafting.
        sizes: ascending.
    """
    for size in sizes:
        run(size)  # compiles and fills caches
    with clock.collect() as samples:
        for size in sizes:
            for _ in range(num_runs):
                run(size)
    found = []
    for index, size in enumerate(sizes):
        times_ms = sorted(s.forward_ms for s in samples[index * num_runs : (index + 1) * num_runs])
        if not times_ms:
            raise RuntimeError(
                f"the forward pass of {size} tokens was not timed; only steps that draft are"
            )
        found.append((size, times_ms[len(times_ms) // 2]))
    return tuple(found)

"""What a step costs, in milliseconds, learned from the steps that ran.

    step_ms = profile[bucket] + residual(bucket, context) + sampler(num_seqs)

The profile is measured at start-up, one time per bucket of tokens (a captured graph's size), and is
the floor: no estimate goes below it. What steps take beyond it is the residual:

- A bucket with enough samples has its own: the median of its newest samples.
- One between two such buckets has what the line between them says.
- One beyond them has its nearest neighbour's in proportion to the profile; a larger one no more
  than the slope (the median over buckets of their median residual per token slot) times its size.
- To that comes a price per context token, fitted to steps of equal bucket and unequal context.

When a bucket's newest steps leave the band of those before them, the machine has changed, and all
older samples of every bucket are dropped. ``CostSettings.compatible()`` has none of these: there,
the slope alone prices every bucket.

Sampling and drafting have a rolling median per number of sequences, or of all numbers where one has
too few samples, or are free where nothing was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vllm_deepinfer.scheduler.planner_backend import backend

STATE_FORMAT = 1


@dataclass(frozen=True)
class StepTimes:
    """One measured step.

    Attributes:
        num_seqs: sequences in it.
        num_tokens: tokens in it, without padding.
        context_tokens: tokens in the KV cache of all its sequences together.
        forward_ms: time of the target's forward pass.
        sampler_ms: time of sampling and drafting.
    """

    num_seqs: int
    num_tokens: int
    context_tokens: int
    forward_ms: float
    sampler_ms: float


@dataclass(frozen=True)
class CostSettings:
    """How step times are learned.

    Attributes:
        forward_window: newest steps whose forward time counts.
        forward_min_samples: samples before a bucket's own times count.
        sampler_window: newest sampler times that count, per number of sequences.
        sampler_min_samples: samples before they count.
        local: a bucket is priced by its own samples and its neighbours', not by the slope alone.
        context: fit a price per context token.
        forget: drop old samples after a shift.
        padded: a step costs what its bucket costs; else what the line between two buckets says.
        extrapolate: price steps above the largest bucket by the line through the last two, as
            engines need that run them without a graph; else such a step is refused, and its time
            ignored.
    """

    forward_window: int = 5000
    forward_min_samples: int = 10
    sampler_window: int = 9
    sampler_min_samples: int = 5
    local: bool = True
    context: bool = True
    forget: bool = True
    padded: bool = True
    extrapolate: bool = True

    def __post_init__(self) -> None:
        for window, needed in (
            ("forward_window", "forward_min_samples"),
            ("sampler_window", "sampler_min_samples"),
        ):
            if not 1 <= getattr(self, needed) <= getattr(self, window):
                raise ValueError(
                    f"{needed} is {getattr(self, needed)}; it must be from 1 to {window}, "
                    f"which is {getattr(self, window)}"
                )

    @classmethod
    def compatible(cls) -> CostSettings:
        """The rules of DeepInfer 0.1.0."""
        return cls(local=False, context=False, forget=False, extrapolate=False)


class StepCost:
    """Prices steps and learns from those that ran.

    Args:
        curve: (tokens, ms) of each profiled bucket, tokens ascending.
        settings: how to learn.
        source: where the curve comes from; "saved" for one that was loaded.

    Raises:
        ValueError: the curve is empty, not ascending or has a time that is not positive.
    """

    def __init__(
        self,
        curve: Sequence[tuple[int, float]],
        settings: CostSettings = CostSettings(),  # noqa: B008 - frozen
        source: str = "profile",
    ) -> None:
        self.curve = checked_curve(curve)
        self.settings, self.source = settings, source
        self.sizes = [size for size, _ in self.curve]
        cost_core, self.planner_core = backend()
        self.core = cost_core(self.sizes, [ms for _, ms in self.curve], *asdict(settings).values())

    def observe(self, times: StepTimes) -> None:
        """Learn from a step.

        Raises:
            ValueError: a count or a time is negative or not a number.
        """
        for name, value in vars(times).items():
            least = 1 if name in ("num_seqs", "num_tokens") else 0
            if not least <= value < math.inf:
                raise ValueError(f"{name} of a step is {value}; it must be >= {least} and finite")
        self.core.observe(
            times.num_seqs,
            times.num_tokens,
            times.context_tokens,
            times.forward_ms,
            times.sampler_ms,
        )

    def bucket(self, num_tokens: int) -> int:
        """Tokens that a step of ``num_tokens`` is padded to.

        That is the smallest bucket that holds them; above the largest, ``num_tokens`` itself, since
        nothing pads there.

        Raises:
            ValueError: no bucket holds them, and the settings do not extrapolate.
        """
        self._check_priced(num_tokens)
        if num_tokens > self.sizes[-1]:
            return num_tokens
        return self.sizes[self.core.bucket_index(num_tokens)]

    def forward_ms(self, num_tokens: int, context_tokens: int = 0) -> float:
        """Predicted time of the forward pass. Raises as ``bucket`` does."""
        self._check_priced(num_tokens)
        return self.core.forward_ms(num_tokens, context_tokens)

    def sampler_ms(self, num_seqs: int) -> float:
        """Predicted time of sampling and drafting."""
        return self.core.sampler_ms(num_seqs)

    def step_ms(self, num_tokens: int, num_seqs: int, context_tokens: int = 0) -> float:
        """Predicted time of a step. Raises as ``bucket`` does."""
        return self.forward_ms(num_tokens, context_tokens) + self.sampler_ms(num_seqs)

    def is_measured(self, num_tokens: int) -> bool:
        """Whether the bucket that holds the tokens has enough samples of its own."""
        return self.core.is_measured(self.core.bucket_index(num_tokens))

    def state(self) -> dict[str, Any]:
        """Curve, settings and all that was learned, for JSON."""
        return {
            "format": STATE_FORMAT,
            "curve": [list(point) for point in self.curve],
            "settings": asdict(self.settings),
            "learned": self.core.state(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> StepCost:
        """A model that prices and learns on exactly as the one that gave ``state``.

        Raises:
            ValueError: the state has another format or is damaged.
        """
        if state.get("format") != STATE_FORMAT:
            raise ValueError(
                f"saved step costs have format {state.get('format')!r}; this version reads "
                f"{STATE_FORMAT}"
            )
        try:
            cost = cls(
                [(size, ms) for size, ms in state["curve"]],
                CostSettings(**state["settings"]),
                source="saved",
            )
            cost.core.restore(state["learned"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"saved step costs are damaged: {error!r}") from error
        return cost

    def has_price(self, num_tokens: int) -> bool:
        """Whether the settings price a step of so many tokens."""
        return num_tokens <= self.sizes[-1] or self.settings.extrapolate

    def _check_priced(self, num_tokens: int) -> None:
        if not self.has_price(num_tokens):
            raise ValueError(
                f"a step of {num_tokens} tokens has no price: the largest profiled bucket is "
                f"{self.sizes[-1]}. Profile a larger one or set extrapolate."
            )


def checked_curve(curve: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The curve as integers and floats.

    Raises:
        ValueError: as in ``StepCost``.
    """
    points = [(int(size), float(ms)) for size, ms in curve]
    if not points:
        raise ValueError("the curve of step costs is empty; it needs one bucket at least")
    smaller = 0
    for size, ms in points:
        if size <= smaller:
            raise ValueError(
                f"bucket {size} of the curve of step costs follows {smaller}; sizes must be >= 1 "
                "and ascend"
            )
        if not 0 < ms < math.inf:
            raise ValueError(f"bucket {size} of the curve costs {ms} ms; it must be > 0 and finite")
        smaller = size
    return points

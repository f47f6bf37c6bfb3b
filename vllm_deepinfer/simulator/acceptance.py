"""How many drafts survive, and what the drafter says of them beforehand.

A block of drafts has one hidden ease: the log-odds of every draft are shifted by it. Ease is the
sum of what a request is like and of what its text is like right now, which changes slowly. So
survival varies between requests and in time, as real text does, while its mean per position is
exactly the given one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from vllm_deepinfer.simulator.errors import SimulationError, require_number

_LEVELS = 513
_REACH = 4.5  # standard deviations of ease that the table covers
_BISECTIONS = 60

# The first draft survives in more than 70 % of the cases and the seventh in less than 10 %: public
# measurements of DeepSeek V4 (vLLM blog, 2026-08-14). The values between are interpolated by eye.
PUBLISHED_SURVIVAL = (0.80, 0.62, 0.47, 0.35, 0.25, 0.16, 0.09)


@dataclass(frozen=True)
class AcceptanceModel:
    """Survival of drafts and the confidences that announce it.

    Attributes:
        survival: mean chance of the first 1, 2, ... drafts to survive together; never rising.
        request_spread: standard deviation of ease between requests, in log-odds.
        text_spread: standard deviation of ease within a request, in log-odds.
        persistence: correlation of ease within a request from one block to the next.
        confidence_temperature: divides the drafter's log-odds: below 1 it is too sure of itself.
        confidence_bias: added to the drafter's log-odds.
        confidence_noise: standard deviation of the drafter's error about ease, in log-odds.

    Raises:
        SimulationError: names the value and what is allowed.
    """

    survival: tuple[float, ...] = PUBLISHED_SURVIVAL
    request_spread: float = 0.5
    text_spread: float = 0.7
    persistence: float = 0.6
    confidence_temperature: float = 1.0
    confidence_bias: float = 0.0
    confidence_noise: float = 0.0
    true_rows: np.ndarray = field(init=False, repr=False, compare=False)
    confidence_rows: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        means = (1.0, *self.survival)
        for position, (before, chance) in enumerate(zip(means, means[1:], strict=False), start=1):
            if not 0 < chance < 1 or chance > before:
                raise SimulationError(
                    f"survival of draft {position} is {chance}; it must be above 0, below 1 and "
                    f"not above that of the draft before it, {before}."
                )
        require_number("request_spread", self.request_spread, 0)
        require_number("text_spread", self.text_spread, 0)
        require_number("persistence", self.persistence, 0, 1)
        require_number("confidence_noise", self.confidence_noise, 0)
        if not 0 < self.confidence_temperature < np.inf or not np.isfinite(self.confidence_bias):
            raise SimulationError(
                f"confidence_temperature is {self.confidence_temperature} and confidence_bias is "
                f"{self.confidence_bias}; both must be finite, the temperature above 0."
            )
        logits = _conditional_logits(self.survival, self._ease, self._weights)
        said = (logits + self.confidence_bias) / self.confidence_temperature
        object.__setattr__(self, "true_rows", _cumulative(logits))
        object.__setattr__(self, "confidence_rows", _cumulative(said))

    @property
    def max_drafts(self) -> int:
        return len(self.survival)

    @property
    def spread(self) -> float:
        return float(np.hypot(self.request_spread, self.text_spread))

    def first_drafts(self, count: int) -> AcceptanceModel:
        """The same model with fewer drafts in a block."""
        if not 0 <= count <= self.max_drafts:
            raise SimulationError(
                f"drafts is {count}; survival is given for 0 to {self.max_drafts} drafts."
            )
        from dataclasses import replace

        return replace(self, survival=self.survival[:count])

    def tokens_per_block(self) -> float:
        """Mean tokens of a verified block, over blocks rather than requests.

        Requests with bad drafts take more blocks for the same answer, so they weigh more.
        """
        grid = np.linspace(-_REACH, _REACH, 129)
        weights = np.exp(-0.5 * grid**2)
        weights /= weights.sum()
        ease = self.request_spread * grid[:, None] + self.text_spread * grid
        tokens = 1 + self.true_rows[self.levels(ease)].sum(axis=-1, dtype=np.float64)
        return float(1 / (weights @ (1 / (tokens @ weights))))

    @property
    def _ease(self) -> np.ndarray:
        return np.linspace(-_REACH, _REACH, _LEVELS) * self.spread

    @property
    def _weights(self) -> np.ndarray:
        weights = np.exp(-0.5 * np.linspace(-_REACH, _REACH, _LEVELS) ** 2)
        return weights / weights.sum()

    def levels(self, ease: np.ndarray) -> np.ndarray:
        """Rows of `true_rows` and `confidence_rows` [levels, drafts] for eases in log-odds."""
        if self.spread == 0:
            return np.zeros(ease.shape, dtype=np.int16)
        scale = (_LEVELS - 1) / (2 * _REACH * self.spread)
        return np.clip(np.rint(ease * scale) + _LEVELS // 2, 0, _LEVELS - 1).astype(np.int16)


def _conditional_logits(
    survival: tuple[float, ...], ease: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Log-odds [levels, drafts] of each draft given those before it, with the given means."""
    logits = np.empty((len(ease), len(survival)))
    alive = np.ones(len(ease))
    for position, mean in enumerate(survival):
        low, high = -40.0, 40.0
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            if weights @ (alive * _sigmoid(middle + ease)) < mean:
                low = middle
            else:
                high = middle
        logits[:, position] = high + ease
        alive = alive * _sigmoid(logits[:, position])
    return logits


def _cumulative(logits: np.ndarray) -> np.ndarray:
    return np.cumprod(_sigmoid(logits), axis=1).astype(np.float32)


def _sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))

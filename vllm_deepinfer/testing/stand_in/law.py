"""What the stand-ins say, as pure functions of counters: tokens, logits, drafts, confidences."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

VOCAB = 512
BLOCK = 5
# Tokens of the text: neither control tokens of the tiny tokenizer nor POISON.
FIRST_TOKEN, LAST_TOKEN = 3, 489
POISON = 490
"""What the target says once its KV rows are not those of the prefix; its own successor."""
SETTINGS_NAME = "stand_in.json"
SUCCESSOR_LOGIT = 8.0
NEVER_LOGIT = -30.0
MAX_CONFIDENCE_LOGIT = 12.0
_TEXT_STREAM, _TABLE_STREAM, _RIGHT_STREAM, _CHANCE_STREAM = range(4)


@dataclass(frozen=True)
class Settings:
    """How the stand-ins behave.

    Attributes:
        seed: chooses the successor rule, the logits, and which drafts are right.
        acceptance: chance of each draft of a block to be right given that those before it are; or
            a schedule of pairs (first position of the text it holds for, chances), ascending from
            position 0.
        confidence: what the drafter says of every draft; ``None``: the draft's own chance.
        confidence_spread: 0 to 1, how far the chances of single drafts lie from ``acceptance``, as
            a share of its distance from the nearer of 0 and 1.
        confidence_scale: raw confidence logits per true logit; not 1 is a calibration error, which
            a temperature of this value corrects.
    """

    seed: int = 0
    acceptance: Any = (1.0,) * BLOCK
    confidence: float | None = None
    confidence_spread: float = 0.0
    confidence_scale: float = 1.0

    def __post_init__(self) -> None:
        steps = self.acceptance
        if not steps or not isinstance(steps[0], (tuple, list)):
            steps = ((0, steps),)
        steps = tuple((int(first), tuple(map(float, chances))) for first, chances in steps)
        object.__setattr__(self, "acceptance", steps)
        firsts = [first for first, _ in steps]
        if firsts != sorted(set(firsts)) or firsts[0] != 0:
            raise ValueError(f"acceptance starts at positions {firsts}; they must ascend from 0.")
        for _, chances in steps:
            if len(chances) != BLOCK or not all(0 <= chance <= 1 for chance in chances):
                raise ValueError(f"acceptance {chances} is not {BLOCK} chances from 0 to 1.")
        if self.confidence is not None and not 0 <= self.confidence <= 1:
            raise ValueError(f"confidence is {self.confidence}; it must be from 0 to 1.")
        if not 0 <= self.confidence_spread <= 1:
            raise ValueError(f"confidence_spread is {self.confidence_spread}; 0 to 1 are allowed.")
        if not self.confidence_scale > 0:
            raise ValueError(f"confidence_scale is {self.confidence_scale}; it must be positive.")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Settings:
        return cls(**json.loads((Path(folder) / SETTINGS_NAME).read_text(encoding="utf-8")))


# -- the target --------------------------------------------------------------------------------


@lru_cache
def successors(seed: int) -> np.ndarray:
    """int64 ``[V]``: the likeliest token after each; text tokens form a single cycle."""
    text = np.arange(FIRST_TOKEN, LAST_TOKEN + 1)
    cycle = text[np.argsort(uniform(seed, _TEXT_STREAM, text), kind="stable")]
    after = np.full(VOCAB, cycle[0])
    after[cycle] = np.roll(cycle, -1)
    after[POISON] = POISON
    return after


@lru_cache
def logits_table(seed: int) -> np.ndarray:
    """float32 ``[V, V]``: logits of the next token after each token."""
    row, column = np.indices((VOCAB, VOCAB))
    table = uniform(seed, _TABLE_STREAM, row, column).astype(np.float32)
    table[:, :FIRST_TOKEN] = table[:, LAST_TOKEN + 1 :] = NEVER_LOGIT
    table[POISON] = NEVER_LOGIT
    table[np.arange(VOCAB), successors(seed)] = SUCCESSOR_LOGIT
    return table


def greedy_text(seed: int, token: int, length: int) -> list[int]:
    """The ``length`` tokens that follow ``token``."""
    text = []
    for _ in range(length):
        token = int(successors(seed)[token])
        text.append(token)
    return text


# -- the drafter -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drafts:
    """Blocks of drafts, each array ``[R, K]``.

    Attributes:
        tokens: the drafts.
        right: whether a draft is the successor of the token before it.
        chances: the chance it had to be.
        logits: raw confidence logits, float32.
    """

    tokens: np.ndarray
    right: np.ndarray
    chances: np.ndarray
    logits: np.ndarray


def drafts(
    settings: Settings, positions: np.ndarray, anchors: np.ndarray, num_drafts: int
) -> Drafts:
    """The blocks drafted after the newest tokens ``anchors`` ``[R]`` at ``positions`` ``[R]``."""
    counters = (positions[:, None], np.arange(num_drafts), anchors[:, None])
    base = _acceptance(settings, positions)[:, :num_drafts]
    swing = 2 * uniform(settings.seed, _CHANCE_STREAM, *counters) - 1
    chances = base + settings.confidence_spread * swing * np.minimum(base, 1 - base)
    right = uniform(settings.seed, _RIGHT_STREAM, *counters) < chances
    after, token, tokens = successors(settings.seed), anchors, []
    for draft in range(num_drafts):
        best = after[token]
        token = np.where(right[:, draft], best, after[best])
        tokens.append(token)
    said = chances if settings.confidence is None else np.full_like(chances, settings.confidence)
    with np.errstate(divide="ignore"):
        logits = settings.confidence_scale * (np.log(said) - np.log1p(-said))
    logits = logits.clip(-MAX_CONFIDENCE_LOGIT, MAX_CONFIDENCE_LOGIT).astype(np.float32)
    return Drafts(np.stack(tokens, 1), right, chances, logits)


def _acceptance(settings: Settings, positions: np.ndarray) -> np.ndarray:
    """``[R, K]``."""
    firsts, chances = zip(*settings.acceptance, strict=True)
    return np.array(chances)[np.searchsorted(firsts, positions, side="right") - 1]


# -- randomness --------------------------------------------------------------------------------


def uniform(seed: int, stream: int, *counters: Iterable[int] | np.ndarray) -> np.ndarray:
    """Uniform in [0, 1), a function of seed, stream and counters; counters broadcast."""
    with np.errstate(over="ignore"):
        state = _mixed(np.array([seed], np.uint64) + np.uint64(1))
        state = _mixed(state ^ np.uint64(stream))
        for counter in counters:
            state = _mixed(state ^ np.asarray(counter).astype(np.uint64))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(values: np.ndarray) -> np.ndarray:
    """SplitMix64: add the golden gamma, then its finaliser (Steele, Lea and Flood, 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))

"""Requests: when they come, how long their prompts and answers are. All arrays grow by request."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vllm_deepinfer.simulator.errors import SimulationError, require_count, require_number
from vllm_deepinfer.simulator.randomness import fine_uniforms, random_bits

KINDS = ("poisson", "bursts", "closed", "recorded")
ANY_RANK = -1
_ARRIVALS, _PROMPTS, _OUTPUTS = 1, 2, 3  # streams of random bits
_BLOCK = 1024


class Arrival(NamedTuple):
    """One recorded request; rank -1 leaves the choice to the load balancer."""

    arrival_ms: float
    prompt_tokens: int
    output_tokens: int
    rank: int = ANY_RANK


@dataclass(frozen=True)
class Traffic:
    """What arrives.

    Attributes:
        kind: `poisson`; `bursts` of `burst_size` at Poisson times; `closed`: `concurrency` requests
            at any time, the next one when one ends; `recorded`.
        rate_per_s: requests per second of all ranks together, bursts included.
        prompt_tokens, output_tokens: mean lengths.
        length_spread: lengths are uniform within this share of the mean, up and down.
        recorded: the arrivals, times ascending.

    Raises:
        SimulationError: names the value and what is allowed.
    """

    kind: str = "poisson"
    rate_per_s: float = 8.0
    burst_size: int = 16
    concurrency: int = 64
    prompt_tokens: int = 1024
    output_tokens: int = 256
    length_spread: float = 0.0
    recorded: tuple[Arrival, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SimulationError(f"traffic is {self.kind!r}; allowed: {', '.join(KINDS)}.")
        require_number("rate_per_s", self.rate_per_s, 1e-6)
        require_number("length_spread", self.length_spread, 0, 1)
        for name in ("burst_size", "concurrency", "prompt_tokens", "output_tokens"):
            require_count(name, getattr(self, name), 1)
        if (self.kind == "recorded") != bool(self.recorded):
            raise SimulationError("recorded traffic needs at least one arrival, others take none.")
        before = 0.0
        for arrival in self.recorded:
            require_number("arrival_ms", arrival.arrival_ms, before)
            require_count("prompt_tokens of an arrival", arrival.prompt_tokens, 1)
            require_count("output_tokens of an arrival", arrival.output_tokens, 1)
            require_count("rank of an arrival", arrival.rank, ANY_RANK)
            before = arrival.arrival_ms

    def longest_tokens(self) -> int:
        """Most tokens that one request can come to hold."""
        if self.recorded:
            return max(entry.prompt_tokens + entry.output_tokens for entry in self.recorded)
        longest = 1 + self.length_spread
        return math.ceil(self.prompt_tokens * longest) + math.ceil(self.output_tokens * longest)


class Requests:
    """All requests so far, one column per property, and those still to come."""

    def __init__(self, traffic: Traffic, seed: int) -> None:
        self.traffic, self.seed = traffic, seed
        self.arrival_ms = np.empty(0)
        self.prompt_tokens = np.empty(0, dtype=np.int64)
        self.output_tokens = np.empty(0, dtype=np.int64)
        self.rank = np.empty(0, dtype=np.int64)
        self.emitted = np.empty(0, dtype=np.int64)
        self.first_token_ms = np.empty(0)
        self.finish_ms = np.empty(0)
        self.num_arrived = 0
        self._opened = traffic.concurrency if traffic.kind == "closed" else 0
        if traffic.recorded:
            times, prompts, outputs, ranks = map(np.array, zip(*traffic.recorded, strict=True))
            self._extend(times.astype(float), prompts, outputs, ranks)

    def next_ms(self) -> float:
        """When the next request arrives; infinite if none does on its own."""
        self._prepare()
        if self.num_arrived >= len(self.arrival_ms):
            return math.inf
        return float(self.arrival_ms[self.num_arrived])

    def due(self, now_ms: float) -> range:
        """The requests that have arrived since the last call."""
        first = self.num_arrived
        while self.next_ms() <= now_ms:
            self.num_arrived += 1
        if self.traffic.kind == "closed":
            self.arrival_ms[first : self.num_arrived] = now_ms
        return range(first, self.num_arrived)

    def ended(self, count: int) -> None:
        """Tell that requests finished; in closed traffic each makes room for another."""
        if self.traffic.kind == "closed":
            self._opened += count

    def _prepare(self) -> None:
        """Make the next request known if there is one."""
        traffic = self.traffic
        if traffic.kind == "recorded":
            return
        if self.num_arrived >= len(self.arrival_ms):
            self._generate(np.arange(len(self.arrival_ms), len(self.arrival_ms) + _BLOCK))
        if traffic.kind == "closed" and self.num_arrived < self._opened:
            self.arrival_ms[self.num_arrived] = 0.0

    def _generate(self, index: np.ndarray) -> None:
        traffic = self.traffic
        if traffic.kind == "closed":
            times = np.full(len(index), math.inf)
        else:
            times = self._arrival_times(index)
        prompts = self._lengths(_PROMPTS, index, traffic.prompt_tokens)
        outputs = self._lengths(_OUTPUTS, index, traffic.output_tokens)
        self._extend(times, prompts, outputs, np.full(len(index), ANY_RANK))

    def _arrival_times(self, index: np.ndarray) -> np.ndarray:
        size = self.traffic.burst_size if self.traffic.kind == "bursts" else 1
        chance = fine_uniforms(random_bits(self.seed, _ARRIVALS, index // size, index * 0))
        gaps = np.where(index % size == 0, -np.log1p(-chance), 0.0)
        last = self.arrival_ms[-1] if len(self.arrival_ms) else 0.0
        return last + np.cumsum(gaps) * (1e3 * size / self.traffic.rate_per_s)

    def _lengths(self, stream: int, index: np.ndarray, mean: int) -> np.ndarray:
        chance = fine_uniforms(random_bits(self.seed, stream, index, index * 0))
        lengths = np.rint(mean * (1 + self.traffic.length_spread * (2 * chance - 1)))
        return np.maximum(lengths, 1).astype(np.int64)

    def _extend(
        self, times: np.ndarray, prompts: np.ndarray, outputs: np.ndarray, ranks: np.ndarray
    ) -> None:
        unknown = np.full(len(times), math.nan)
        self.arrival_ms = np.concatenate([self.arrival_ms, times])
        self.prompt_tokens = np.concatenate([self.prompt_tokens, prompts])
        self.output_tokens = np.concatenate([self.output_tokens, outputs])
        self.rank = np.concatenate([self.rank, ranks])
        self.emitted = np.concatenate([self.emitted, np.zeros(len(times), dtype=np.int64)])
        self.first_token_ms = np.concatenate([self.first_token_ms, unknown])
        self.finish_ms = np.concatenate([self.finish_ms, unknown])


def read_arrivals(path: Path) -> tuple[Arrival, ...]:
    """Arrivals of a JSONL file, one object a line with the fields of `Arrival`.

    Raises:
        SimulationError: the file cannot be read or a line is not one; names file and line.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            return tuple(_arrivals(lines, path))
    except OSError as error:
        raise SimulationError(f"{path} cannot be read: {error.strerror}.") from error


def _arrivals(lines: Iterable[str], path: Path) -> Iterable[Arrival]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield Arrival(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise SimulationError(
                f"{path}, line {number}: {error}; a line is an object with "
                f"{', '.join(Arrival._fields)}, the last one optional."
            ) from error

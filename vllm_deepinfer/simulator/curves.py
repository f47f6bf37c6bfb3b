"""What steps really cost on a simulated machine. The planner under test never sees this."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vllm_deepinfer.scheduler.step_cost import StepCost
from vllm_deepinfer.simulator.errors import SimulationError, require_number

Points = tuple[tuple[int, float], ...]
_LINES = ("prefill", "sampler", "drafter")


@dataclass(frozen=True)
class MachineCurve:
    """True step times of one rank, in milliseconds.

    Attributes:
        name, provenance: what it is and where its numbers come from.
        verify: (tokens, ms) of a forward pass over decoding rows without context, a staircase: a
            step costs what the smallest listed size costs that holds its tokens. Above the largest
            it goes on along the line through the last two.
        prefill: (tokens, ms) of a step that computes prompt tokens alone, joined by lines. Decoding
            rows beside them add what they cost beyond a pass over one row, whose weights are read
            anyway.
        sampler: (sequences, ms) of sampling and verification, joined by lines.
        drafter: (sequences, ms) of drafting one block each, joined by lines.
        context_us_per_token: time that each token in the context of decoding sequences adds.

    Raises:
        SimulationError: names the curve, the part and the point that is not allowed.
    """

    name: str
    provenance: str
    verify: Points
    prefill: Points
    sampler: Points = ((0, 0.0),)
    drafter: Points = ((0, 0.0),)
    context_us_per_token: float = 0.0
    _columns: dict[str, tuple[np.ndarray, np.ndarray]] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        columns = {}
        for part in ("verify", *_LINES):
            points = _checked(f"curve {self.name!r}, {part}", getattr(self, part), part == "verify")
            object.__setattr__(self, part, points)
            columns[part] = (
                np.array([size for size, _ in points], dtype=np.int64),
                np.array([ms for _, ms in points]),
            )
        require_number(f"context_us_per_token of curve {self.name!r}", self.context_us_per_token, 0)
        object.__setattr__(self, "_columns", columns)

    def forward_ms(self, tokens: np.ndarray, context_tokens: np.ndarray) -> np.ndarray:
        """Time of forward passes over decoding rows; an empty one is padded to the first size."""
        sizes, times = self._columns["verify"]
        tokens = np.maximum(tokens, 1)
        index = np.minimum(np.searchsorted(sizes, tokens), len(sizes) - 1)
        slope = 0.0
        if len(sizes) > 1:
            slope = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
        beyond = np.maximum(tokens - sizes[-1], 0)
        return times[index] + slope * beyond + context_tokens * (self.context_us_per_token / 1e3)

    def prefill_ms(self, tokens: np.ndarray) -> np.ndarray:
        """Time of forward passes over prompt tokens alone."""
        return _on_line(self._columns["prefill"], tokens)

    def mixed_ms(
        self, prompt_tokens: np.ndarray, tokens: np.ndarray, context_tokens: np.ndarray
    ) -> np.ndarray:
        """Time of forward passes over prompt tokens, decoding rows or both."""
        decode_ms = self.forward_ms(tokens, context_tokens)
        prefill_ms = self.prefill_ms(prompt_tokens)
        added_ms = np.where(tokens > 0, decode_ms - self.verify[0][1], 0.0)
        alone_ms = np.where((tokens > 0) | (prompt_tokens == 0), decode_ms, 0.0)
        return np.where(prompt_tokens > 0, np.maximum(prefill_ms + added_ms, alone_ms), decode_ms)

    def sampler_ms(self, sequences: np.ndarray) -> np.ndarray:
        return _on_line(self._columns["sampler"], sequences)

    def drafter_ms(self, sequences: np.ndarray) -> np.ndarray:
        return _on_line(self._columns["drafter"], sequences)

    def profile(self) -> list[tuple[int, float]]:
        """What a start-up profile of this machine measures: no context, no sampling."""
        return list(self.verify)

    def as_dict(self) -> dict[str, Any]:
        """The curve in the form of its file."""
        entries = asdict(self)
        del entries["_columns"]
        return {name: _as_lists(value) for name, value in entries.items()}


def _as_lists(value: Any) -> Any:
    return [list(point) for point in value] if isinstance(value, tuple) else value


def _on_line(columns: tuple[np.ndarray, np.ndarray], counts: np.ndarray) -> np.ndarray:
    """Value on the line through the points; beyond the last two it goes on."""
    sizes, times = columns
    inside = np.interp(counts, sizes, times)
    if len(sizes) == 1:
        return inside
    slope = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
    return inside + slope * np.maximum(counts - sizes[-1], 0)


def _checked(where: str, points: Sequence[Sequence[float]], is_staircase: bool) -> Points:
    found: list[tuple[int, float]] = []
    if not isinstance(points, Sequence) or not points:
        raise SimulationError(f"{where} is {points!r}; it must be a list of [count, ms].")
    for point in points:
        if not isinstance(point, Sequence) or len(point) != 2:
            raise SimulationError(f"{where} has {point!r}; each point must be [count, ms].")
        size, ms = point
        least = 1 if is_staircase else 0
        require_number(f"{where}: a count", size, found[-1][0] + 1 if found else least)
        require_number(f"{where}: the time of {size}", ms, 0)
        if size != int(size):
            raise SimulationError(f"{where}: a count is {size}; it must be an integer.")
        if is_staircase and ms <= 0:
            raise SimulationError(f"{where}: the time of {size} is {ms}; it must be above 0.")
        found.append((int(size), float(ms)))
    return tuple(found)


def curve_from_dict(entries: Mapping[str, Any], where: str) -> MachineCurve:
    """Read a curve's entries.

    Raises:
        SimulationError: an entry is unknown, missing or not allowed; names `where`.
    """
    needed, allowed = {"name", "provenance", "verify", "prefill"}, MachineCurve.__dataclass_fields__
    known = {name for name in allowed if name != "_columns"}
    if not isinstance(entries, Mapping) or needed - set(entries) or set(entries) - known:
        raise SimulationError(
            f"{where} is not a curve: it needs {sorted(needed)}, may have "
            f"{sorted(known - needed)} and nothing else."
        )
    try:
        return MachineCurve(**entries)
    except SimulationError as error:
        raise SimulationError(f"{where}: {error}") from error


def curve_from_costs(cost: StepCost, sequences: Sequence[int], where: str) -> MachineCurve:
    """The machine that an engine's learned step costs describe.

    Drafting is part of the engine's sampler time, and prompts are not part of its costs at all: a
    prompt token is taken to cost what a decoding row costs at the largest bucket.

    Args:
        cost: what the engine saved.
        sequences: numbers of sequences to read the sampler's time at.
    """
    largest = cost.sizes[-1]
    context = 1 << 20
    added_ms = cost.forward_ms(largest, context) - cost.forward_ms(largest)
    return MachineCurve(
        name=Path(where).name,
        provenance=f"step costs of an engine, saved in {where}",
        verify=tuple((size, cost.forward_ms(size)) for size in cost.sizes),
        prefill=((0, 0.0), (largest, cost.forward_ms(largest))),
        sampler=tuple((count, cost.sampler_ms(count)) for count in sequences),
        context_us_per_token=max(added_ms, 0.0) * 1e3 / context,
    )


def read_curve(path: Path) -> MachineCurve:
    """A curve file, or the step costs that an engine saved.

    Raises:
        SimulationError: the file cannot be read or holds neither; names it.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SimulationError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise SimulationError(f"{path} is not JSON: {error}.") from error
    if isinstance(document, dict) and "step_cost" in document:
        try:
            cost = StepCost.from_state(document["step_cost"])
        except (ValueError, AttributeError, TypeError) as error:
            raise SimulationError(f"{path} holds damaged step costs: {error}.") from error
        return curve_from_costs(cost, [1 << power for power in range(11)], str(path))
    return curve_from_dict(document, str(path))

"""The error of a simulation that cannot be run as asked."""

from __future__ import annotations


class SimulationError(ValueError):
    """Names the value that is not allowed, what is allowed and what to change."""


def require_number(name: str, value: float, minimum: float, maximum: float | None = None) -> None:
    """Refuse a number outside its range; NaN is outside of every range."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= minimum:
        raise SimulationError(f"{name} is {value!r}; it must be a number of at least {minimum}.")
    if value == float("inf") or (maximum is not None and value > maximum):
        limit = "finite" if maximum is None else f"at most {maximum}"
        raise SimulationError(f"{name} is {value!r}; it must be {limit}.")


def require_count(name: str, value: int, minimum: int) -> None:
    """Refuse what is no integer of at least a minimum."""
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise SimulationError(f"{name} is {value!r}; it must be an integer of at least {minimum}.")

"""One line of the contract: a symbol of vLLM's, and the form in which this package relies on it.

The five forms:

    uses(module, name)                 the name exists
    calls(module, name, *parameters)   it can be called with these, by position or keyword
    overrides(module, name, *params)   a subclass replaces it, so the parameters match exactly
    kernel(module, name, *parameters)  a Triton kernel replaced by name, parameters match exactly
    has_fields(module, cls, *names)    the class declares these fields or sets them on itself

`since` and `until` (exclusive) limit a line to some versions, as in `uses(..., since=(0, 33))`.
Names of methods are written `Class.method`; a method may come from a base class. A name is looked
for in the module that code here takes it from, which may have imported it itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Symbol:
    """One thing of vLLM's that this package relies on.

    name: in the module, `Class.member` for members.
    form: "uses", "calls", "overrides", "kernel" or "fields".
    parameters: of the function; for "fields" the names of the fields.
    since, until: versions (major, minor) it exists in, `until` excluded; None for no limit.
    """

    module: str
    name: str
    form: str
    parameters: tuple[str, ...] = ()
    since: tuple[int, int] | None = None
    until: tuple[int, int] | None = None

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"

    def applies_to(self, version: tuple[int, int]) -> bool:
        """Whether the line is meant for vLLM `version` (major, minor)."""
        return (self.since is None or version >= self.since) and (
            self.until is None or version < self.until
        )


def uses(module: str, name: str, **versions: Any) -> Symbol:
    """`name` exists."""
    return Symbol(module, name, "uses", **versions)


def calls(module: str, name: str, *parameters: str, **versions: Any) -> Symbol:
    """`name` can be called with `parameters` and nothing else."""
    return Symbol(module, name, "calls", parameters, **versions)


def overrides(module: str, name: str, *parameters: str, **versions: Any) -> Symbol:
    """A subclass here replaces method or property `name`, which takes exactly `parameters`."""
    return Symbol(module, name, "overrides", parameters, **versions)


def kernel(module: str, name: str, *parameters: str, **versions: Any) -> Symbol:
    """Triton kernel `name` is replaced by one that takes exactly `parameters`."""
    return Symbol(module, name, "kernel", parameters, **versions)


def has_fields(module: str, name: str, *fields: str, **versions: Any) -> Symbol:
    """Class `name` declares `fields`, or its methods set them on the instance."""
    return Symbol(module, name, "fields", fields, **versions)


def compare_parameters(
    symbol: Symbol, names: Sequence[str], required: Iterable[str], variadic: bool
) -> str | None:
    """What is wrong with a function's parameters, or None.

    Args:
        symbol: the line of the contract.
        names: the function's parameters in order, without *args and **kwargs.
        required: those without a default.
        variadic: whether the function takes *args or **kwargs.
    """
    expected = symbol.parameters
    if symbol.form in ("overrides", "kernel"):
        if tuple(names) != expected:
            return f"takes ({', '.join(names)}), expected ({', '.join(expected)})"
        return None
    missing = [name for name in expected if name not in names]
    if missing and not variadic:
        return f"has no parameter {', '.join(missing)}; it takes ({', '.join(names)})"
    demanded = [name for name in required if name not in expected]
    if demanded:
        return f"now requires {', '.join(demanded)}"
    return None

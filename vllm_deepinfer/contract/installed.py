"""Whether the installed vLLM is one that this package runs on, and still is what it relies on.

At start the symbols whose modules are already loaded are checked, which imports nothing and takes
milliseconds; the tests check all of them against the source of every supported release
(source_reader.py).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from vllm_deepinfer import envs
from vllm_deepinfer.contract.releases import (
    BELOW_VLLM,
    MINIMUM_VLLM,
    RELEASE_TAGS,
    WINDOW,
    ContractError,
    parse_version,
)
from vllm_deepinfer.contract.symbols import Symbol, compare_parameters


def check_window(version: str, allow_untested: bool) -> None:
    """Checks vLLM's `version` against the supported window.

    Raises:
        ContractError: it is outside and `allow_untested` is false.
    """
    if allow_untested or MINIMUM_VLLM <= parse_version(version) < BELOW_VLLM:
        return
    raise ContractError(
        f"vLLM {version} is not supported: this release of vllm-deepinfer runs on vLLM {WINDOW} "
        f"and was tested with {' and '.join(RELEASE_TAGS)}. Install one of those, or set "
        f"DEEPINFER_ALLOW_UNTESTED_VLLM=1 to try."
    )


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
    listed = (getattr(owner, "__annotations__", {}), getattr(owner, "__all__", ()), dir(owner))
    return any(name in names for names in listed)


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
            f"Install vLLM {WINDOW} as released."
        )

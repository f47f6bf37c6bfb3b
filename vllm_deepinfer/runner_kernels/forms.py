"""Forms of one kernel for several versions of vLLM.

A module's `KERNELS` are the forms for the oldest release (contract/releases.py). `KERNELS_SINCE`
holds, by version, those that changed in a later one, in their parameters or, under the same
parameters, in what they do. A changed form is written as what it adds to the earlier one:

    @later_form(post_update, inserted={"total_len_ptr": ("draft_tokens_ptr",)})
    def post_update_0_33(*, draft_tokens_ptr, **arguments): ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

Form = Callable[..., Any]


def positional_names(form: Form) -> tuple[str, ...]:
    """The parameters of the kernel that `form` stands for, in order; `grid` is not one."""
    parameters = inspect.signature(form).parameters.values()
    return tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)


def later_form(earlier: Form, *, inserted: Mapping[str, tuple[str, ...]]) -> Callable[[Form], Form]:
    """Decorator for a form that takes the parameters of `earlier` and more, all by keyword.

    inserted: the new parameters, by the parameter they follow. The result also takes positional
    arguments, in the kernel's order.
    """
    names: list[str] = []
    for name in positional_names(earlier):
        names += (name, *inserted.get(name, ()))

    def decorate(function: Form) -> Form:
        @wraps(function)
        def launch(*args: Any, **kwargs: Any) -> Any:
            # Fewer arguments than names: the others are among the keywords.
            return function(**dict(zip(names, args, strict=False)), **kwargs)

        parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
        if "grid" in inspect.signature(earlier).parameters:
            parameters.append(inspect.Parameter("grid", inspect.Parameter.KEYWORD_ONLY))
        launch.__signature__ = inspect.Signature(parameters)
        return launch

    return decorate

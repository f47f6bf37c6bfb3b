"""The planner's arithmetic: the C++ extension, or where it was not built the same in Python."""

from __future__ import annotations

import importlib
from typing import Any

from vllm_deepinfer.log import get_logger, warn_once
from vllm_deepinfer.scheduler import step_cost_reference, verification_reference

logger = get_logger(__name__)
_EXTENSION = "vllm_deepinfer._planner"


def backend() -> tuple[type[Any], type[Any]]:
    """The classes ``CostCore`` and ``PlannerCore``, both of one kind."""
    try:
        extension = importlib.import_module(_EXTENSION)
    except ModuleNotFoundError as error:
        if error.name != _EXTENSION:
            raise
        warn_once(
            logger,
            "The C++ planner was not built, so plans are made in Python, tens of times "
            "slower. Install a C++17 compiler and reinstall vllm-deepinfer.",
        )
        return step_cost_reference.CostCore, verification_reference.PlannerCore
    return extension.CostCore, extension.PlannerCore

"""The C++ extensions of scheduling, where they were built."""

from __future__ import annotations

import importlib
from types import ModuleType

from vllm_deepinfer.log import get_logger, warn_once

logger = get_logger(__name__)


def load(name: str, consequence: str) -> ModuleType | None:
    """The extension ``vllm_deepinfer._<name>``; None, with one warning, where it was not built.

    Args:
        consequence: of not having it; completes "was not built, so".
    """
    full_name = f"vllm_deepinfer._{name}"
    try:
        return importlib.import_module(full_name)
    except ModuleNotFoundError as error:
        if error.name != full_name:
            raise
    warn_once(
        logger,
        f"The C++ extension {full_name} was not built, so {consequence}. Install a C++17 compiler "
        "and reinstall vllm-deepinfer.",
    )
    return None

"""Which classes vLLM loads for the architectures of this package, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vllm.model_executor.models import ModelRegistry
from vllm.plugins import load_general_plugins

from vllm_deepinfer.model_entry import InProcessModel
from vllm_deepinfer.registration import ARCHITECTURE, DRAFT_ARCHITECTURE

_PACKAGE = "vllm_deepinfer.testing.stand_in"
CLASSES = {
    ARCHITECTURE: (f"{_PACKAGE}.target", "StandInTarget"),
    DRAFT_ARCHITECTURE: (f"{_PACKAGE}.drafter", "StandInDrafter"),
}


@contextmanager
def registered() -> Iterator[None]:
    """Load stand-ins for this package's architectures; on leaving, what was loaded before.

    Holds for engines of this process and for engine cores forked from it.
    """
    # An engine's start would otherwise register this package's own classes over the stand-ins.
    load_general_plugins()
    before = {name: ModelRegistry.models[name] for name in CLASSES}
    ModelRegistry.models.update({name: InProcessModel(*it) for name, it in CLASSES.items()})
    try:
        yield
    finally:
        ModelRegistry.models.update(before)

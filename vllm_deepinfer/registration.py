"""What this package registers with vLLM once one of its platforms is active."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ARCHITECTURE = "DeepseekV41ForCausalLM"
MODEL_CLASS = ("vllm_deepinfer.models.deepseek_v41.model", "DeepseekV41ForCausalLM")
# The name vLLM gives to the draft stages in a checkpoint of this architecture.
DRAFT_ARCHITECTURE = "DSparkV41DraftModel"
DRAFT_CLASS = ("vllm_deepinfer.models.deepseek_v41.draft_model", "DSparkV41DraftModel")
# vLLM's name for the model's chat format, and the module and class that render it here.
CHAT_FORMAT = "deepseek_v41"
RENDERER_CLASS = ("vllm_deepinfer.renderer", "TextOnlyRenderer")


# What vLLM has under these names itself, where its classes run too; see ``using``.
_of_vllm: dict[str, Any] = {}


def register_all() -> None:
    """Registers the model, its weight format and its chat renderer. Safe to repeat.

    Where vLLM's own class of the model runs too, that stays the one in the registry: options say
    which to use, and configurations are made before options are known.

    Raises:
        vllm_deepinfer.contract.releases.ContractError: the installed vLLM is outside the supported
            window or lacks something this package relies on.
    """
    from vllm.model_executor.models import ModelRegistry
    from vllm.platforms import current_platform
    from vllm.renderers.registry import RENDERER_REGISTRY

    from vllm_deepinfer import quantization
    from vllm_deepinfer.contract.installed import check_at_start

    check_at_start()
    runs_vllms_class = getattr(type(current_platform), "runs_vllms_class", False)
    quantization.register(claims_checkpoints=not runs_vllms_class)
    # Names, so that the classes are imported only where they are used. The registries' own methods
    # warn that vLLM has entries of these names, which is the point here.
    RENDERER_REGISTRY.renderers[CHAT_FORMAT] = RENDERER_CLASS
    if runs_vllms_class:
        for name in (ARCHITECTURE, DRAFT_ARCHITECTURE):
            _of_vllm.setdefault(name, ModelRegistry.models[name])
    else:
        ModelRegistry.models.update(entries())


def entries() -> dict[str, Any]:
    """The registry's entries for this package's classes, by architecture."""
    global _entries
    from vllm_deepinfer.model_entry import InProcessModel

    # One object each: vLLM remembers classes by it.
    if _entries is None:
        _entries = {
            ARCHITECTURE: InProcessModel(*MODEL_CLASS),
            DRAFT_ARCHITECTURE: InProcessModel(*DRAFT_CLASS),
        }
    return _entries


_entries: dict[str, Any] | None = None


@contextmanager
def using(model: str) -> Iterator[None]:
    """Models built within are of the classes of `model`: "deepinfer" or "vllm".

    For platforms where both run. It is the worker that builds models, and it knows the options.

    Raises:
        RuntimeError: `register_all` has not run.
    """
    from vllm.model_executor.model_loader import utils
    from vllm.model_executor.models import ModelRegistry

    if not _of_vllm:
        raise RuntimeError("the models were not registered; is vllm-deepinfer's plugin loaded?")
    ModelRegistry.models.update(entries() if model == "deepinfer" else _of_vllm)
    # By architecture and folder, not by what the registry held when they were looked up.
    utils._MODEL_ARCH_BY_HASH.clear()
    try:
        yield
    finally:
        ModelRegistry.models.update(_of_vllm)
        utils._MODEL_ARCH_BY_HASH.clear()

"""What this package registers with vLLM once one of its platforms is active."""

from __future__ import annotations

ARCHITECTURE = "DeepseekV41ForCausalLM"
MODEL_CLASS = ("vllm_deepinfer.models.deepseek_v41.model", "DeepseekV41ForCausalLM")
# The name vLLM gives to the draft stages in a checkpoint of this architecture.
DRAFT_ARCHITECTURE = "DSparkV41DraftModel"
DRAFT_CLASS = ("vllm_deepinfer.models.deepseek_v41.draft_model", "DSparkV41DraftModel")
# vLLM's name for the model's chat format, and the module and class that render it here.
CHAT_FORMAT = "deepseek_v41"
RENDERER_CLASS = ("vllm_deepinfer.renderer", "TextOnlyRenderer")


def register_all() -> None:
    """Registers the model, its weight format and its chat renderer. Safe to repeat.

    Raises:
        vllm_deepinfer.compat.ContractError: the installed vLLM is outside the supported window or
            lacks something this package relies on.
    """
    from vllm.model_executor.models import ModelRegistry
    from vllm.renderers.registry import RENDERER_REGISTRY

    from vllm_deepinfer import compat, quantization

    compat.check_at_start()
    from vllm_deepinfer.model_entry import InProcessModel

    quantization.register()
    # Names, so that the classes are imported only where they are used. The registries' own methods
    # warn that vLLM has entries of these names, which is the point here.
    ModelRegistry.models[ARCHITECTURE] = InProcessModel(*MODEL_CLASS)
    ModelRegistry.models[DRAFT_ARCHITECTURE] = InProcessModel(*DRAFT_CLASS)
    RENDERER_REGISTRY.renderers[CHAT_FORMAT] = RENDERER_CLASS

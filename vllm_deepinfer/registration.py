"""What this package registers with vLLM once one of its platforms is active."""

from __future__ import annotations

ARCHITECTURE = "DeepseekV41ForCausalLM"
MODEL_CLASS = "vllm_deepinfer.models.deepseek_v41.model:DeepseekV41ForCausalLM"


def register_all() -> None:
    """Registers the model and its weight format. Safe to repeat.

    Raises:
        vllm_deepinfer.compat.ContractError: the installed vLLM is outside the supported window or
            lacks something this package relies on.
    """
    from vllm.model_executor.models import ModelRegistry

    from vllm_deepinfer import compat, quantization

    compat.check_at_start()
    # A string, so that the class is imported only where the model is built.
    ModelRegistry.register_model(ARCHITECTURE, MODEL_CLASS)
    quantization.register()

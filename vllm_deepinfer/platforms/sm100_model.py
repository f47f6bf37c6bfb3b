"""Which class of DeepSeek-V4.1 a configuration runs on SM100, where vLLM has one too.

vLLM builds a model's configuration before it looks at ``additional_config``, and by its own class,
which is a multimodal one with a weight format of its own. Where this package's class is asked for,
the configuration is changed here to what it would have been with that class in the registry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.registration import ARCHITECTURE, DRAFT_ARCHITECTURE, entries

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

# vLLM's class is tuned for this hardware; ours takes its place here once it measures faster.
AUTOMATIC = "vllm"


def chosen_model(options: DeepInferConfig) -> str:
    """Whose class runs: "vllm" or "deepinfer"."""
    return AUTOMATIC if options.model == "auto" else options.model


def use_our_class(vllm_config: VllmConfig) -> None:
    """Describe this package's text model in a configuration made for vLLM's class. Idempotent.

    Raises:
        vllm_deepinfer.quantization.StoredFormatError: the checkpoint is stored in another format.
    """
    model_config = vllm_config.model_config
    _describe(model_config, ARCHITECTURE)
    model_config.multimodal_config = None
    # Kept by vLLM from the time the class was a multimodal one.
    vllm_config.scheduler_config.is_multimodal_model = False
    vllm_config.quant_config = _stored_format(model_config)
    speculative = vllm_config.speculative_config
    if speculative is not None and speculative.draft_model_config is not None:
        draft = speculative.draft_model_config
        if DRAFT_ARCHITECTURE in (draft.architectures or ()):
            _describe(draft, DRAFT_ARCHITECTURE)


def _describe(model_config: ModelConfig, architecture: str) -> None:
    from vllm_deepinfer.quantization import NAME

    model_config._model_info = entries()[architecture].inspect_model_cls()
    model_config.quantization = NAME


def _stored_format(model_config: ModelConfig) -> Any:
    from vllm_deepinfer.quantization import DeepseekV41StoredConfig

    stored = dict(model_config.model_arch_config.quantization_config or {})
    return DeepseekV41StoredConfig.from_config(stored)


def check_built(model: Any, chosen: str, name: str) -> None:
    """Make sure that a worker's model is of the class that was chosen.

    Raises:
        RuntimeError: it is of another one: something else put its own into vLLM's registry.
    """
    is_ours = type(model).__module__.startswith("vllm_deepinfer.")
    if is_ours != (chosen == "deepinfer"):
        raise RuntimeError(
            f"additional_config: model is {chosen!r}, but vLLM built the {name} as "
            f"{type(model).__module__}.{type(model).__name__}. Another plugin has registered that "
            "class for this architecture; leave it out of VLLM_PLUGINS."
        )

"""What the model, its checkpoint format and its chat rendering rely on to be found by vLLM."""

from __future__ import annotations

from vllm_deepinfer.contract.symbols import Symbol, calls, has_fields, overrides, uses

_MODEL_REGISTRY = "vllm.model_executor.models.registry"
_RENDERERS = "vllm.renderers.deepseek_v4"
_QUANTIZATION = "vllm.model_executor.layers.quantization"
_QUANTIZATION_BASE = f"{_QUANTIZATION}.base_config"

REGISTRATION: tuple[Symbol, ...] = (
    uses("vllm.model_executor.models", "ModelRegistry"),
    calls("vllm.plugins", "load_general_plugins"),
    has_fields(_MODEL_REGISTRY, "_ModelRegistry", "models"),
    has_fields(_MODEL_REGISTRY, "_LazyRegisteredModel", "module_name", "class_name"),
    overrides(_MODEL_REGISTRY, "_LazyRegisteredModel.inspect_model_cls", "self"),
    calls(_MODEL_REGISTRY, "_LazyRegisteredModel.load_model_cls", "self"),
    calls(_MODEL_REGISTRY, "_ModelInfo.from_model_cls", "model"),
    calls(_QUANTIZATION, "register_quantization_config", "quantization"),
    calls(_QUANTIZATION, "get_quantization_config", "quantization"),
    uses(_QUANTIZATION, "QUANTIZATION_METHODS"),
    uses(_QUANTIZATION_BASE, "QuantizeMethodBase"),
    overrides(_QUANTIZATION_BASE, "QuantizationConfig.get_name", "self"),
    overrides(_QUANTIZATION_BASE, "QuantizationConfig.get_supported_act_dtypes", "self"),
    overrides(_QUANTIZATION_BASE, "QuantizationConfig.get_min_capability", "cls"),
    overrides(_QUANTIZATION_BASE, "QuantizationConfig.get_config_filenames"),
    overrides(_QUANTIZATION_BASE, "QuantizationConfig.from_config", "cls", "config"),
    overrides(
        _QUANTIZATION_BASE,
        "QuantizationConfig.override_quantization_method",
        "cls",
        "hf_quant_cfg",
        "user_quant",
        "hf_config",
    ),
    overrides(_QUANTIZATION_BASE, "QuantizationConfig.get_quant_method", "self", "layer", "prefix"),
    uses(_RENDERERS, "DeepseekV41Renderer", since=(0, 33)),
    overrides(_RENDERERS, "DeepseekV4Renderer.render_messages", "self", "messages", "params"),
    overrides(_RENDERERS, "DeepseekV4Renderer.render_messages_async", "self", "messages", "params"),
    has_fields("vllm.renderers.registry", "RendererRegistry", "renderers"),
    uses("vllm.renderers.registry", "RENDERER_REGISTRY"),
    calls("vllm.exceptions", "VLLMValidationError.__init__", "self", "message", "parameter"),
)

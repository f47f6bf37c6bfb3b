"""Tells vLLM how a DeepSeek-V4.1 checkpoint is stored.

Off CUDA, vLLM 0.32 and 0.33 take such a checkpoint for their generic `fp8` format, which rejects
float32 activations and would put its own kernels under vLLM's linear layers. The model here owns
its parameters and its kernels, so this class only checks the format and stays out of the way.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.quantization import (
    QUANTIZATION_METHODS,
    get_quantization_config,
    register_quantization_config,
)
from vllm.model_executor.layers.quantization.base_config import (
    QuantizationConfig,
    QuantizeMethodBase,
)

from vllm_deepinfer.models.deepseek_v41.config import QUANTIZATION

NAME = "deepseek_v41_stored"
MODEL_TYPE = "deepseek_v41"
# A checkpoint says fp8; vLLM rewrites that to its own name for this family before asking us.
CHECKPOINT_METHODS = (QUANTIZATION["quant_method"], "deepseek_v4_fp8")
# The other keys of the checkpoint's quantization_config and the one value that is implemented.
STORED_FORMAT = {key: value for key, value in QUANTIZATION.items() if key != "quant_method"}


class StoredFormatError(ValueError):
    """A checkpoint declares a weight format that this model does not implement."""


class DeepseekV41StoredConfig(QuantizationConfig):
    """FP8 weights in 32x32 blocks with UE8M0 scales, FP4 experts; applied by the model itself.

    source: V4.1 specification, section 2.
    """

    # Not where vLLM's own class of this model is the default, with a method of its own.
    claims_checkpoints = True

    @classmethod
    def get_name(cls) -> str:
        """The method's name in vLLM's registry."""
        return NAME

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        """The `--dtype` values the model runs with."""
        return [torch.bfloat16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        """CUDA compute capability; not restricted here, the platform decides."""
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        """None: the format is part of config.json."""
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> DeepseekV41StoredConfig:
        """Checks a checkpoint's `quantization_config`.

        Raises:
            StoredFormatError: a key is missing or has another value than the published format.
        """
        method = config.get("quant_method")
        wrong = []
        if method not in CHECKPOINT_METHODS:
            wrong.append(f"quant_method={method!r} (allowed: {CHECKPOINT_METHODS[0]!r})")
        wrong += [
            f"{key}={config.get(key)!r} (allowed: {value!r})"
            for key, value in STORED_FORMAT.items()
            if config.get(key) != value
        ]
        if wrong:
            raise StoredFormatError(
                f"quantization_config of config.json: {'; '.join(wrong)}. Convert the checkpoint "
                f"to the published DeepSeek-V4.1 format."
            )
        return cls()

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: dict[str, Any], user_quant: str | None, hf_config: Any = None
    ) -> str | None:
        """Claims DeepSeek-V4.1 checkpoints, unless the user asked for another method.

        The draft stages of a checkpoint arrive under another model type, with this method as the
        one asked for.
        """
        if hf_quant_cfg.get("quant_method") not in CHECKPOINT_METHODS:
            return None
        if user_quant == NAME:
            return NAME
        is_ours = cls.claims_checkpoints and getattr(hf_config, "model_type", None) == MODEL_TYPE
        return NAME if is_ours and user_quant in (None, *CHECKPOINT_METHODS) else None

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """None: vLLM's own layers in the model, if any, are not quantised."""
        return None


def register(claims_checkpoints: bool = True) -> None:
    """Adds the method to vLLM's registry. Safe to repeat.

    Args:
        claims_checkpoints: whether checkpoints of the model get it unless they ask for another.
    """
    DeepseekV41StoredConfig.claims_checkpoints = claims_checkpoints
    if NAME in QUANTIZATION_METHODS and get_quantization_config(NAME) is DeepseekV41StoredConfig:
        return
    register_quantization_config(NAME)(DeepseekV41StoredConfig)

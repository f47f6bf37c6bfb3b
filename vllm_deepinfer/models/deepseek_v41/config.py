"""The model's configuration: every number the model, its caches and its checkpoint depend on.

Read from the published ``config.json`` (nested ``text_config``/``vision_config``) or from the
flattened Hugging Face object vLLM makes of it. Contradictions are refused here, all at once, so
that nothing downstream needs to check again. Source: V4.1 specification, sections 1 and 9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from typing import Any

from vllm_deepinfer.models.deepseek_v41.config_checks import (
    HC_STREAMS,
    HEAD_DIM,
    INDEX_HEAD_DIM,
    ROPE_DIM,
    find_problems,
)

QUANTIZATION = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
    "expert_dtype": "fp4",
}


class ConfigError(ValueError):
    """A configuration that cannot be this model's; lists every problem found."""


@dataclass(frozen=True)
class RopeScaling:
    """YaRN parameters of the compressed layers (section 2.5)."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class VisionConfig:
    """Sizes of the vision tower; only its checkpoint schema is used (section 2.11)."""

    num_hidden_layers: int = 0
    hidden_size: int = 1024
    intermediate_size: int = 2816
    patch_size: int = 14
    downsample_ratio: int = 3


@dataclass(frozen=True)
class LayerPlan:
    """What one decoder layer owns and where it finds what it shares.

    ``ratio`` is the number of tokens per compressed row (0: window attention only). ``kv_source``
    and ``index_source`` name the layers whose compressed rows and whose top-k selection this
    layer reads; an index source scores the keys of its ``kv_source``. ``uses_candidates`` restricts
    the selection to the blocks published by the candidate source.
    """

    layer: int
    ratio: int
    kv_source: int | None
    index_source: int | None
    is_candidate_source: bool
    uses_candidates: bool
    has_engram: bool

    @property
    def owns_kv(self) -> bool:
        return self.kv_source == self.layer

    @property
    def owns_index(self) -> bool:
        return self.index_source == self.layer


@dataclass(frozen=True)
class V41Config:
    """Configuration of a DeepSeek-V4.1 text model; field names are those of ``text_config``."""

    vocab_size: int
    hidden_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    swiglu_limit: float
    rms_norm_eps: float
    max_position_embeddings: int
    rope_theta: float
    compress_rope_theta: float
    rope_scaling: RopeScaling
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    norm_topk_prob: bool
    routed_scaling_factor: float
    sliding_window: int
    compress_ratios: tuple[int, ...]
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    index_n_heads: int
    index_topk: int
    candidate_source_layer_id: int
    candidate_topk_blocks: int
    candidate_block_size: int
    hc_sinkhorn_iters: int
    hc_eps: float
    engram_layer_ids: tuple[int, ...]
    engram_num_embeddings: tuple[int, ...]
    engram_max_ngram_size: int
    engram_vocab_size: int
    engram_n_heads: int
    engram_head_dim: int
    engram_pad_token_id: int
    engram_compressed_vocab_size: int
    num_nextn_predict_layers: int
    dspark_block_size: int
    dspark_noise_token_id: int
    dspark_target_layer_ids: tuple[int, ...]
    dspark_markov_rank: int
    dspark_n_routed_experts: int
    dspark_num_experts_per_tok: int
    vision: VisionConfig = field(default_factory=VisionConfig)
    head_dim: int = HEAD_DIM
    qk_rope_head_dim: int = ROPE_DIM
    num_key_value_heads: int = 1
    index_head_dim: int = INDEX_HEAD_DIM
    hc_mult: int = HC_STREAMS
    scoring_func: str = "sqrtsoftplus"
    topk_method: str = "noaux_tc"
    hidden_act: str = "silu"
    attention_bias: bool = False
    tie_word_embeddings: bool = False
    hc_shifted: bool = True
    gate_temp: float = 1.0
    num_hash_layers: int = 0

    def __post_init__(self) -> None:
        problems = find_problems(self)
        if problems:
            raise ConfigError(
                "This config.json does not describe a DeepSeek-V4.1 model:\n  - "
                + "\n  - ".join(problems)
            )

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> V41Config:
        """Build from the content of a ``config.json`` (nested as published)."""
        if "text_config" not in config:
            raise ConfigError(
                f"config.json has no 'text_config' (its keys: {sorted(config)}); "
                "a DeepSeek-V4.1 checkpoint nests the text model there."
            )
        check_quantization(config.get("quantization_config"))
        return cls._build(config["text_config"].get, config.get("vision_config") or {})

    @classmethod
    def from_hf(cls, hf_config: Any) -> V41Config:
        """Build from vLLM's flattened ``DeepseekV41Config`` object."""
        quantization = getattr(hf_config, "quantization_config", None)
        if quantization is not None:
            # vLLM writes the method it chose into the config; ours checked the file's own.
            quantization = {**quantization, "quant_method": QUANTIZATION["quant_method"]}
        check_quantization(quantization)
        vision = {
            "num_hidden_layers": getattr(hf_config, "vision_n_layers", 0),
            "hidden_size": getattr(hf_config, "vision_dim", 1024),
            "intermediate_size": getattr(hf_config, "vision_inter_dim", 2816),
            "patch_size": getattr(hf_config, "vision_patch_size", 14),
            "downsample_ratio": getattr(hf_config, "vision_downsample_ratio", 3),
        }

        def get(key: str, default: Any = None) -> Any:
            # transformers standardises rope_scaling into rope_parameters
            if key == "rope_scaling":
                return getattr(hf_config, "rope_parameters", None) or default
            return getattr(hf_config, key, default)

        return cls._build(get, vision)

    @classmethod
    def _build(cls, get: Any, vision: Mapping[str, Any]) -> V41Config:
        values: dict[str, Any] = {}
        missing = []
        for item in fields(cls):
            if item.name == "vision":
                continue
            value = get(item.name, None)
            if value is None:
                if item.name in _OPTIONAL:
                    continue
                missing.append(item.name)
            elif item.name == "rope_scaling":
                values[item.name] = _rope_scaling(value)
            else:
                values[item.name] = tuple(value) if isinstance(value, list) else value
        if missing:
            raise ConfigError(f"text_config lacks {', '.join(missing)}.")
        known = {item.name for item in fields(VisionConfig)}
        values["vision"] = VisionConfig(**{k: v for k, v in vision.items() if k in known})
        return cls(**values)

    @property
    def hc_mix_size(self) -> int:
        """Columns of a hyper-connection mix: pre (4), post (4), combination (16)."""
        return (2 + self.hc_mult) * self.hc_mult

    @property
    def engram_columns(self) -> int:
        """Table rows looked up per token and engram layer."""
        return (self.engram_max_ngram_size - 1) * self.engram_n_heads

    @property
    def softmax_scale(self) -> float:
        return self.head_dim**-0.5

    @cached_property
    def layers(self) -> tuple[LayerPlan, ...]:
        return tuple(self._plan(layer) for layer in range(self.num_hidden_layers))

    def _plan(self, layer: int) -> LayerPlan:
        ratio = self.compress_ratios[layer]
        compressed = ratio > 0
        owns_index = compressed and layer in self.index_source_layer_ids
        source = self.candidate_source_layer_id
        return LayerPlan(
            layer=layer,
            ratio=ratio,
            kv_source=_latest(self.kv_source_layer_ids, layer) if compressed else None,
            index_source=_latest(self.index_source_layer_ids, layer) if compressed else None,
            is_candidate_source=layer == source,
            uses_candidates=owns_index and layer > source,
            has_engram=layer in self.engram_layer_ids,
        )


_OPTIONAL = frozenset(item.name for item in fields(V41Config) if item.default is not MISSING)


def _latest(sources: tuple[int, ...], layer: int) -> int:
    return max(source for source in sources if source <= layer)


def _rope_scaling(value: Mapping[str, Any]) -> RopeScaling:
    kind = value.get("rope_type", value.get("type"))
    if kind != "yarn":
        raise ConfigError(f"rope_scaling has type {kind!r}; only 'yarn' is this model's.")
    names = [item.name for item in fields(RopeScaling)]
    missing = [name for name in names if name not in value]
    if missing:
        raise ConfigError(f"rope_scaling lacks {', '.join(missing)}.")
    return RopeScaling(**{name: value[name] for name in names})


def check_quantization(quantization: Mapping[str, Any] | None) -> None:
    """Refuse weight formats other than the published one (section 1)."""
    if quantization is None:
        raise ConfigError(
            "config.json has no 'quantization_config'; DeepSeek-V4.1 weights are stored in FP8 and "
            f"FP4, expected {QUANTIZATION}."
        )
    wrong = [
        f"{key}={quantization.get(key)!r} (expected {expected!r})"
        for key, expected in QUANTIZATION.items()
        if quantization.get(key) != expected
    ]
    if wrong:
        raise ConfigError("quantization_config is not DeepSeek-V4.1's: " + ", ".join(wrong) + ".")

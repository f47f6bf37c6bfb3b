"""The configuration keys the text model and the draft block depend on.

source: V4.1 specification, section 1.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

HC_STREAMS = 4
ROPE_DIMS = 64


@dataclass(frozen=True)
class Config:
    """Plain values from config.json; names follow the file."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    o_groups: int
    num_experts_per_tok: int
    routed_scaling_factor: float
    swiglu_limit: float
    rms_norm_eps: float
    rope_theta: float
    compress_rope_theta: float
    rope_scaling: dict
    sliding_window: int
    compress_ratios: tuple[int, ...]
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    candidate_source_layer_id: int
    candidate_topk_blocks: int
    candidate_block_size: int
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    engram_layer_ids: tuple[int, ...]
    engram_num_embeddings: tuple[int, ...]
    engram_max_ngram_size: int
    engram_vocab_size: int
    engram_n_heads: int
    engram_pad_token_id: int
    engram_compressed_vocab_size: int
    num_nextn_predict_layers: int
    dspark_block_size: int
    dspark_noise_token_id: int
    dspark_target_layer_ids: tuple[int, ...]
    dspark_num_experts_per_tok: int
    image_token_id: int

    def kv_source(self, layer: int) -> int:
        """The layer whose compressed rows ``layer`` reads (ratio > 0 only)."""
        return max(source for source in self.kv_source_layer_ids if source <= layer)

    def index_source(self, layer: int) -> int:
        """The layer whose top-k ``layer`` reads (ratio > 0 only)."""
        return max(source for source in self.index_source_layer_ids if source <= layer)

    def uses_candidates(self, index_source: int) -> bool:
        """Index sources after the candidate source select inside its blocks."""
        return index_source > self.candidate_source_layer_id


def read_config(checkpoint_dir: Path) -> Config:
    """Read config.json; ValueError names every missing or unsupported key."""
    raw = json.loads((checkpoint_dir / "config.json").read_text())
    flat = {**raw, **raw["text_config"]}
    names = Config.__dataclass_fields__
    missing = sorted(name for name in names if name not in flat)
    if missing:
        raise ValueError(f"{checkpoint_dir}/config.json lacks {', '.join(missing)}")
    values = {name: flat[name] for name in names}
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = tuple(value)
    required = {
        "hc_mult": HC_STREAMS,
        "qk_rope_head_dim": ROPE_DIMS,
        "scoring_func": "sqrtsoftplus",
        "n_shared_experts": 1,
        "norm_topk_prob": True,
    }
    wrong = {name: flat[name] for name, wanted in required.items() if flat[name] != wanted}
    if wrong:
        raise ValueError(f"unsupported values {wrong}; this oracle needs {required}")
    return Config(**values)

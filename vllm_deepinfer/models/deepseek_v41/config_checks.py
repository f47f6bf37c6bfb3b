"""What makes a configuration unsound: one sentence per contradiction.

Source: V4.1 specification, sections 1 and 9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_deepinfer.ops.formats import FP8_GROUP

if TYPE_CHECKING:
    from vllm_deepinfer.models.deepseek_v41.config import V41Config

HEAD_DIM = 512
ROPE_DIM = 64
INDEX_HEAD_DIM = 128
HC_STREAMS = 4


def find_problems(config: V41Config) -> list[str]:
    """Return one sentence per contradiction; empty when the configuration is sound."""
    problems: list[str] = []
    fixed = {
        "head_dim": HEAD_DIM,
        "qk_rope_head_dim": ROPE_DIM,
        "num_key_value_heads": 1,
        "index_head_dim": INDEX_HEAD_DIM,
        "hc_mult": HC_STREAMS,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "hc_shifted": True,
        "gate_temp": 1.0,
        "num_hash_layers": 0,
        "n_shared_experts": 1,
    }
    for name, expected in fixed.items():
        if getattr(config, name) != expected:
            problems.append(f"{name} is {getattr(config, name)!r}; only {expected!r} is supported.")
    problems += _width_problems(config) + _layer_problems(config)
    return problems


def _width_problems(config: V41Config) -> list[str]:
    problems = []
    widths = {
        "hidden_size": config.hidden_size,
        "q_lora_rank": config.q_lora_rank,
        "o_groups * o_lora_rank": config.o_groups * config.o_lora_rank,
        "moe_intermediate_size": config.moe_intermediate_size,
        "engram_head_dim": config.engram_head_dim,
    }
    for name, value in widths.items():
        if value <= 0 or value % FP8_GROUP:
            problems.append(f"{name} is {value}; it must be a positive multiple of {FP8_GROUP}.")
    if config.num_attention_heads % config.o_groups:
        problems.append(
            f"num_attention_heads {config.num_attention_heads} is not divisible by o_groups "
            f"{config.o_groups}."
        )
    if not 0 < config.num_experts_per_tok <= config.n_routed_experts:
        problems.append(
            f"num_experts_per_tok {config.num_experts_per_tok} is not in 1..n_routed_experts "
            f"({config.n_routed_experts})."
        )
    if config.candidate_topk_blocks * config.candidate_block_size < config.index_topk:
        problems.append(
            f"candidate_topk_blocks {config.candidate_topk_blocks} x candidate_block_size "
            f"{config.candidate_block_size} covers fewer rows than index_topk {config.index_topk}."
        )
    for name in ("engram_pad_token_id", "dspark_noise_token_id"):
        if not 0 <= getattr(config, name) < config.vocab_size:
            problems.append(
                f"{name} {getattr(config, name)} is outside the vocabulary of {config.vocab_size}."
            )
    return problems


def _layer_problems(config: V41Config) -> list[str]:
    count, ratios = config.num_hidden_layers, config.compress_ratios
    expected = count + config.num_nextn_predict_layers
    if len(ratios) != expected:
        return [
            f"compress_ratios has {len(ratios)} entries; it needs {expected} "
            "(num_hidden_layers + num_nextn_predict_layers)."
        ]
    problems = []
    bad = sorted({ratio for ratio in ratios if ratio not in (0, 1, 2)})
    if bad:
        problems.append(f"compress_ratios contains {bad}; allowed are 0, 1 and 2.")
    if any(ratios[count:]):
        problems.append(f"draft layers have compress_ratios {ratios[count:]}; they must be 0.")
    if not set(config.kv_source_layer_ids) <= set(config.index_source_layer_ids):
        problems.append("every kv_source_layer_ids entry must be in index_source_layer_ids.")
    for name in ("kv_source_layer_ids", "index_source_layer_ids"):
        sources = getattr(config, name)
        for layer in range(count):
            if not ratios[layer]:
                continue
            owners = [source for source in sources if source <= layer]
            if not owners:
                problems.append(f"layer {layer} has no source at or below it in {name}.")
            elif ratios[max(owners)] != ratios[layer]:
                problems.append(
                    f"layer {layer} has ratio {ratios[layer]} but its source {max(owners)} in "
                    f"{name} has ratio {ratios[max(owners)]}."
                )
    source = config.candidate_source_layer_id
    if source not in config.index_source_layer_ids:
        problems.append(f"candidate_source_layer_id {source} is not in index_source_layer_ids.")
    for name in ("engram_layer_ids", "dspark_target_layer_ids"):
        outside = [layer for layer in getattr(config, name) if not 0 <= layer < count]
        if outside:
            problems.append(f"{name} {outside} are outside 0..{count - 1}.")
    if len(config.engram_num_embeddings) != len(config.engram_layer_ids):
        problems.append("engram_num_embeddings needs one entry per engram layer.")
    return problems

"""A config.json that contradicts itself is refused, with every contradiction in one message.

If this breaks, a wrong configuration fails deep inside the model with a shape error, or worse,
computes something else.
"""

from __future__ import annotations

import copy

import pytest

from vllm_deepinfer.models.deepseek_v41.config import ConfigError, V41Config
from vllm_deepinfer.models.deepseek_v41.presets import PRESETS, preset


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_sound(name):
    assert V41Config.from_dict(preset(name)).num_hidden_layers > 0


def test_published_layers_have_the_published_sharing():
    layers = V41Config.from_dict(preset("published")).layers
    assert [p.layer for p in layers if p.owns_kv] == [2, 8, 14, 20]
    assert [p.layer for p in layers if p.owns_index] == [2, 8, 14, 20, 24, 28, 32, 36]
    assert [p.layer for p in layers if p.uses_candidates] == [24, 28, 32, 36]
    assert [p.layer for p in layers if p.has_engram] == [1, 14]
    assert (layers[1].kv_source, layers[19].kv_source, layers[39].kv_source) == (None, 14, 20)
    assert (layers[23].index_source, layers[39].index_source) == (20, 36)


CONTRADICTIONS = {
    "head_dim": (256, "head_dim is 256"),
    "hc_mult": (2, "hc_mult is 2"),
    "scoring_func": ("softmax", "scoring_func is 'softmax'"),
    "hidden_size": (250, "hidden_size is 250"),
    "num_experts_per_tok": (9, "num_experts_per_tok 9"),
    "compress_ratios": ([0] * 3, "compress_ratios has 3 entries"),
    "candidate_topk_blocks": (1, "covers fewer rows"),
    "candidate_source_layer_id": (5, "candidate_source_layer_id 5"),
    "kv_source_layer_ids": ([1, 3, 4, 5], "kv_source_layer_ids entry"),
    "engram_layer_ids": ([70], "engram_layer_ids [70]"),
    "dspark_noise_token_id": (99999, "dspark_noise_token_id 99999"),
    "o_groups": (3, "not divisible by o_groups"),
}


@pytest.mark.parametrize("key", CONTRADICTIONS)
def test_contradiction_is_named(key):
    value, sentence = CONTRADICTIONS[key]
    config = copy.deepcopy(preset("tiny"))
    config["text_config"][key] = value
    with pytest.raises(ConfigError) as caught:
        V41Config.from_dict(config)
    assert sentence in str(caught.value)


def test_all_contradictions_are_reported_together():
    config = copy.deepcopy(preset("tiny"))
    config["text_config"].update(head_dim=256, hc_mult=2)
    with pytest.raises(ConfigError) as caught:
        V41Config.from_dict(config)
    assert "head_dim is 256" in str(caught.value) and "hc_mult is 2" in str(caught.value)


def test_missing_keys_are_named():
    config = copy.deepcopy(preset("tiny"))
    del config["text_config"]["q_lora_rank"]
    with pytest.raises(ConfigError, match="lacks q_lora_rank"):
        V41Config.from_dict(config)


@pytest.mark.parametrize(
    ("key", "value"), [("expert_dtype", "fp8"), ("weight_block_size", [128, 128])]
)
def test_other_weight_formats_are_refused(key, value):
    config = copy.deepcopy(preset("tiny"))
    config["quantization_config"][key] = value
    with pytest.raises(ConfigError, match=key):
        V41Config.from_dict(config)


def test_unquantised_checkpoints_are_refused():
    config = copy.deepcopy(preset("tiny"))
    del config["quantization_config"]
    with pytest.raises(ConfigError, match="no 'quantization_config'"):
        V41Config.from_dict(config)

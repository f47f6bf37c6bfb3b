"""vLLM's own configuration class reads the tiny checkpoint, and ours reads what it makes of it.

If the two readings differed, the engine would size caches for one model and run another.
"""

from __future__ import annotations

import json

from vllm_deepinfer.models.deepseek_v41.config import V41Config


def test_both_readings_agree(tiny_folder):
    from vllm.transformers_utils.configs.deepseek_v41 import DeepseekV41Config

    flattened = DeepseekV41Config.from_pretrained(tiny_folder)
    nested = V41Config.from_dict(json.loads((tiny_folder / "config.json").read_text()))
    assert flattened.architectures == ["DeepseekV41ForCausalLM"]
    assert flattened.vision_n_layers == 2
    assert flattened.expert_dtype == "fp4"
    assert V41Config.from_hf(flattened) == nested


def test_generation_config_stops_at_the_end_token(tiny_folder):
    from transformers import GenerationConfig

    generation = GenerationConfig.from_pretrained(tiny_folder)
    assert (generation.bos_token_id, generation.eos_token_id) == (0, 1)

"""Configurations made the way `vllm serve` makes them, without starting an engine."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

V41_TINY = Path(__file__).parents[1] / "data" / "v41_tiny"
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture
def unchanged_environ():
    """vLLM's CPU platform writes environment variables; put them back."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def v41_config(unchanged_environ):
    """Makes the configuration of a tiny DeepSeek-V4.1 from engine arguments."""
    from vllm.engine.arg_utils import EngineArgs

    def make(**arguments):
        arguments = {"skip_tokenizer_init": True, **arguments}
        return EngineArgs(model=str(V41_TINY), **arguments).create_engine_config()

    return make


@pytest.fixture
def llama_dir(tmp_path):
    """A folder with the configuration of a tiny Llama and no weights."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path

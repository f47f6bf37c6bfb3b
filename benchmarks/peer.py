"""The model to compare with: a dense Llama of (nearly) the same size, with random weights.

It has the tiny model's tokenizer, vocabulary, hidden size and number of layers; the width of its
feed-forward layers is chosen so that it has as many parameters. Nothing is downloaded.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
HEAD_DIM = 32
WIDTH_STEP = 8  # stock CPU matrix kernels want widths that are multiples of this
INITIAL_RANGE = 0.02


def count_parameters(checkpoint: Path) -> int:
    """Parameters of the text model of a V4.1 checkpoint; scales of its formats are not counted."""
    from vllm_deepinfer.models.deepseek_v41.config import V41Config
    from vllm_deepinfer.models.deepseek_v41.schema import FP4_CODES_PER_BYTE, PACKED_FP4
    from vllm_deepinfer.models.deepseek_v41.weights import expected_parameters

    config = V41Config.from_dict(read_config(checkpoint))
    return sum(
        math.prod(spec.shape) * (FP4_CODES_PER_BYTE if spec.dtype == PACKED_FP4 else 1)
        for name, spec in expected_parameters(config, "target").items()
        if not name.endswith(".scale")
    )


def make_llama(folder: Path, checkpoint: Path, num_parameters: int, seed: int = 0) -> int:
    """Write a Llama about as large as ``num_parameters``, shaped after a V4.1 ``checkpoint``.

    Returns:
        Its number of parameters.

    Raises:
        ValueError: the vocabulary and the attention alone have more.
    """
    import torch
    from safetensors.torch import save_file

    config = llama_config(read_config(checkpoint), num_parameters)
    shapes = llama_shapes(config)
    folder.mkdir(parents=True)
    for name in TOKENIZER_FILES:
        shutil.copyfile(checkpoint / name, folder / name)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    generator = torch.Generator().manual_seed(seed)
    save_file(
        {
            name: torch.ones(shape, dtype=torch.bfloat16)
            if len(shape) == 1
            else torch.randn(shape, generator=generator).mul_(INITIAL_RANGE).bfloat16()
            for name, shape in shapes.items()
        },
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    return sum(math.prod(shape) for shape in shapes.values())


def llama_config(like: dict[str, Any], num_parameters: int) -> dict[str, Any]:
    """The content of the peer's ``config.json``."""
    text = like["text_config"]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_size": text["hidden_size"],
        "num_hidden_layers": text["num_hidden_layers"],
        "num_attention_heads": text["hidden_size"] // HEAD_DIM,
        "num_key_value_heads": text["hidden_size"] // HEAD_DIM,
        "head_dim": HEAD_DIM,
        "intermediate_size": 0,
        "vocab_size": text["vocab_size"],
        "max_position_embeddings": text["max_position_embeddings"],
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    } | {key: like[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    rest = sum(math.prod(shape) for shape in llama_shapes(config).values())
    per_width = 3 * config["hidden_size"] * config["num_hidden_layers"]
    width = round((num_parameters - rest) / per_width / WIDTH_STEP) * WIDTH_STEP
    if width <= 0:
        raise ValueError(f"a Llama of {num_parameters} parameters is too small: {rest} are fixed")
    return config | {"intermediate_size": width}


def llama_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name and shape of each tensor of the checkpoint."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    vocabulary = (config["vocab_size"], hidden)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": vocabulary}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for part in "qkvo":
            shapes[f"{prefix}self_attn.{part}_proj.weight"] = (hidden, hidden)
        for part in ("gate", "up"):
            shapes[f"{prefix}mlp.{part}_proj.weight"] = (inner, hidden)
        shapes[f"{prefix}mlp.down_proj.weight"] = (hidden, inner)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{prefix}{norm}.weight"] = (hidden,)
    return shapes | {"model.norm.weight": (hidden,), "lm_head.weight": vocabulary}


def read_config(checkpoint: Path) -> dict[str, Any]:
    return json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))

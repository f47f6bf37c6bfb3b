"""Every tensor of a checkpoint: name, storage dtype and shape, from the configuration alone.

Source: V4.1 specification, section 6.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

import torch

from vllm_deepinfer.models.deepseek_v41.config import LayerPlan, V41Config
from vllm_deepinfer.ops.formats import FP8_GROUP

BF16, F32, FP8, UE8M0 = (
    torch.bfloat16,
    torch.float32,
    torch.float8_e4m3fn,
    torch.float8_e8m0fnu,
)
PACKED_FP4 = torch.int8  # two e2m1 codes a byte, the even column in the low half
FP4_CODES_PER_BYTE = 2

DTYPE_NAMES = {  # as safetensors writes them
    BF16: "BF16",
    F32: "F32",
    FP8: "F8_E4M3",
    UE8M0: "F8_E8M0",
    PACKED_FP4: "I8",
}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One stored tensor."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{DTYPE_NAMES.get(self.dtype, self.dtype)} {list(self.shape)}"


def schema(config: V41Config) -> dict[str, TensorSpec]:
    """Return name -> tensor for a whole checkpoint of ``config``, in model order.

    A configuration without vision layers has no vision tensors and no ``gate.bias_vl``.
    """
    return {spec.name: spec for spec in _all_tensors(config)}


def total_bytes(tensors: Iterable[TensorSpec]) -> int:
    """Return the bytes of tensor data, without file headers."""
    return sum(spec.num_bytes for spec in tensors)


def _all_tensors(config: V41Config) -> Iterator[TensorSpec]:
    vocabulary = (config.vocab_size, config.hidden_size)
    yield TensorSpec("embed.weight", BF16, vocabulary)
    for plan in config.layers:
        prefix = f"layers.{plan.layer}."
        yield from _block(prefix, config, config.n_routed_experts)
        yield from _compressed_attention(prefix, config, plan)
        if plan.has_engram:
            yield from _engram(prefix, config, plan.layer)
    yield TensorSpec("norm.weight", BF16, (config.hidden_size,))
    yield TensorSpec("head.weight", BF16, vocabulary)
    for stage in range(config.num_nextn_predict_layers):
        yield from _block(f"mtp.{stage}.", config, config.dspark_n_routed_experts)
    yield from _draft_ends(config)
    if config.vision.num_hidden_layers:
        yield from _vision(config)


def _fp8(name: str, outputs: int, inputs: int) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.weight", FP8, (outputs, inputs))
    yield TensorSpec(f"{name}.scale", UE8M0, (_groups(outputs), _groups(inputs)))


def _fp4(name: str, outputs: int, inputs: int) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.weight", PACKED_FP4, (outputs, inputs // FP4_CODES_PER_BYTE))
    yield TensorSpec(f"{name}.scale", UE8M0, (outputs, _groups(inputs)))


def _groups(size: int) -> int:
    return -(-size // FP8_GROUP)


def _block(prefix: str, config: V41Config, num_experts: int) -> Iterator[TensorSpec]:
    """What decoder layers and draft stages have in common."""
    hidden, mix = config.hidden_size, config.hc_mix_size
    for half in ("attn", "ffn"):
        yield TensorSpec(f"{prefix}hc_{half}_fn", F32, (mix, config.hc_mult * hidden))
        yield TensorSpec(f"{prefix}hc_{half}_base", F32, (mix,))
        yield TensorSpec(f"{prefix}hc_{half}_scale", F32, (3,))
        yield TensorSpec(f"{prefix}{half}_norm.weight", BF16, (hidden,))
    yield from _attention(f"{prefix}attn.", config)
    yield from _experts(f"{prefix}ffn.", config, num_experts)


def _attention(prefix: str, config: V41Config) -> Iterator[TensorSpec]:
    heads, width = config.num_attention_heads, config.head_dim
    low_rank = config.o_groups * config.o_lora_rank
    yield from _fp8(f"{prefix}wq_a", config.q_lora_rank, config.hidden_size)
    yield TensorSpec(f"{prefix}q_norm.weight", BF16, (config.q_lora_rank,))
    yield from _fp8(f"{prefix}wq_b", heads * width, config.q_lora_rank)
    yield from _fp8(f"{prefix}wkv", width, config.hidden_size)
    yield TensorSpec(f"{prefix}kv_norm.weight", BF16, (width,))
    yield TensorSpec(f"{prefix}attn_sink", F32, (heads,))
    yield from _fp8(f"{prefix}wo_a", low_rank, heads * width // config.o_groups)
    yield from _fp8(f"{prefix}wo_b", config.hidden_size, low_rank)


def _experts(prefix: str, config: V41Config, num_experts: int) -> Iterator[TensorSpec]:
    hidden, inner = config.hidden_size, config.moe_intermediate_size
    yield TensorSpec(f"{prefix}gate.weight", BF16, (num_experts, hidden))
    yield TensorSpec(f"{prefix}gate.bias", F32, (num_experts,))
    if config.vision.num_hidden_layers:
        yield TensorSpec(f"{prefix}gate.bias_vl", F32, (num_experts,))
    shapes = {"w1": (inner, hidden), "w2": (hidden, inner), "w3": (inner, hidden)}
    for expert in range(num_experts):
        for part, shape in shapes.items():
            yield from _fp4(f"{prefix}experts.{expert}.{part}", *shape)
    for part, shape in shapes.items():
        yield from _fp8(f"{prefix}shared_experts.{part}", *shape)


def _compressed_attention(prefix: str, config: V41Config, plan: LayerPlan) -> Iterator[TensorSpec]:
    hidden, width, keys = config.hidden_size, config.head_dim, config.index_head_dim
    if plan.owns_index:
        indexer = f"{prefix}attn.indexer."
        yield from _fp8(f"{indexer}wq_b", config.index_n_heads * keys, config.q_lora_rank)
        yield TensorSpec(f"{indexer}weights_proj.weight", BF16, (config.index_n_heads, hidden))
        if plan.owns_kv:
            yield TensorSpec(f"{indexer}wk.weight", BF16, (keys, width))
            yield TensorSpec(f"{indexer}k_norm.weight", BF16, (keys,))
    if plan.owns_kv:
        compressor = f"{prefix}attn.compressor."
        yield TensorSpec(f"{compressor}wkv.weight", BF16, (width, hidden))
        if plan.ratio > 1:
            yield TensorSpec(f"{compressor}wgate.weight", BF16, (width, hidden))
        yield TensorSpec(f"{compressor}norm.weight", BF16, (width,))


def _engram(prefix: str, config: V41Config, layer: int) -> Iterator[TensorSpec]:
    rows = config.engram_num_embeddings[config.engram_layer_ids.index(layer)]
    hidden, width, streams = config.hidden_size, config.engram_head_dim, config.hc_mult
    engram = f"{prefix}engram."
    yield TensorSpec(f"{engram}embed.weight", FP8, (rows, width))
    yield TensorSpec(f"{engram}embed.scale", UE8M0, (rows, _groups(width)))
    yield TensorSpec(f"{engram}q_weight", BF16, (streams, hidden))
    yield TensorSpec(f"{engram}k_weight", BF16, (streams, hidden))
    # one key per stream and one value for all of them
    yield from _fp8(f"{engram}wkv", (streams + 1) * hidden, config.engram_columns * width)


def _draft_ends(config: V41Config) -> Iterator[TensorSpec]:
    stages, hidden, rank = (
        config.num_nextn_predict_layers,
        config.hidden_size,
        config.dspark_markov_rank,
    )
    if not stages:
        return
    taps = len(config.dspark_target_layer_ids)
    yield TensorSpec("mtp.0.main_norm.weight", BF16, (hidden,))
    yield from _fp8("mtp.0.main_proj", hidden, taps * hidden)
    last = f"mtp.{stages - 1}."
    yield TensorSpec(f"{last}norm.weight", BF16, (hidden,))
    yield TensorSpec(f"{last}markov_head.embed.weight", BF16, (config.vocab_size, rank))
    yield TensorSpec(f"{last}markov_head.head.weight", BF16, (config.vocab_size, rank))
    yield TensorSpec(f"{last}confidence_head.proj.weight", BF16, (1, hidden + rank))


def _vision(config: V41Config) -> Iterator[TensorSpec]:
    tower, hidden = config.vision, config.hidden_size
    width, inner, rgb = tower.hidden_size, tower.intermediate_size, 3
    yield from _affine("vision.patch_embed.proj", width, rgb * tower.patch_size**2)
    for block in range(tower.num_hidden_layers):
        prefix = f"vision.blocks.{block}."
        yield TensorSpec(f"{prefix}norm1.weight", BF16, (width,))
        yield from _affine(f"{prefix}attn.wqkv", 3 * width, width)
        yield from _affine(f"{prefix}attn.wo", width, width)
        yield TensorSpec(f"{prefix}norm2.weight", BF16, (width,))
        yield TensorSpec(f"{prefix}mlp.w1.weight", BF16, (2 * inner, width))
        yield TensorSpec(f"{prefix}mlp.w2.weight", BF16, (width, inner))
    yield TensorSpec("vision.norm.weight", BF16, (width,))
    yield from _affine("aligner.w1", hidden, width * tower.downsample_ratio**2)
    yield from _affine("aligner.w2", hidden, hidden)
    for delimiter in ("image_start", "image_newline", "image_end"):
        yield TensorSpec(delimiter, BF16, (hidden,))


def _affine(name: str, outputs: int, inputs: int) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.weight", BF16, (outputs, inputs))
    yield TensorSpec(f"{name}.bias", BF16, (outputs,))

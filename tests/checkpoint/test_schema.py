"""The schema lists exactly the tensors of a published checkpoint.

If it does not, the loader refuses good checkpoints or accepts bad ones. Counts and bytes are the
published totals; a sample of shapes pins the formats down one by one.
"""

from __future__ import annotations

import dataclasses

import pytest

from vllm_deepinfer.models.deepseek_v41.config import V41Config, VisionConfig
from vllm_deepinfer.models.deepseek_v41.presets import preset
from vllm_deepinfer.models.deepseek_v41.schema import TensorSpec, schema, total_bytes


@pytest.fixture(scope="module")
def published() -> V41Config:
    return V41Config.from_dict(preset("published"))


@pytest.fixture(scope="module")
def tensors(published) -> dict[str, TensorSpec]:
    return schema(published)


def test_published_totals(tensors):
    assert len(tensors) == 96085
    assert total_bytes(tensors.values()) == 510286023000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("layers.0.hc_attn_fn", "F32 [24, 20480]"),
        ("layers.2.attn.wq_b.weight", "F8_E4M3 [32768, 1280]"),
        ("layers.2.attn.wo_a.scale", "F8_E8M0 [256, 128]"),
        ("layers.3.ffn.experts.383.w2.weight", "I8 [5120, 1152]"),
        ("layers.3.ffn.experts.383.w2.scale", "F8_E8M0 [5120, 72]"),
        ("layers.14.engram.embed.scale", "F8_E8M0 [384016682, 8]"),
        ("layers.14.engram.wkv.weight", "F8_E4M3 [25600, 6144]"),
        ("layers.20.attn.indexer.wk.weight", "BF16 [128, 512]"),
        ("layers.14.attn.compressor.wgate.weight", "BF16 [512, 5120]"),
        ("mtp.0.main_proj.weight", "F8_E4M3 [5120, 15360]"),
        ("mtp.1.ffn.gate.bias_vl", "F32 [128]"),
        ("mtp.2.confidence_head.proj.weight", "BF16 [1, 5376]"),
        ("vision.blocks.31.mlp.w1.weight", "BF16 [5632, 1024]"),
        ("aligner.w1.weight", "BF16 [5120, 9216]"),
    ],
)
def test_published_shapes(tensors, name, text):
    assert str(tensors[name]) == text


@pytest.mark.parametrize(
    "name",
    [
        "layers.20.attn.compressor.wgate.weight",  # ratio 1 pools nothing
        "layers.24.attn.indexer.wk.weight",  # borrows layer 20's keys
        "layers.21.attn.indexer.wq_b.weight",  # borrows layer 20's selection
        "layers.0.engram.embed.weight",
        "mtp.1.main_proj.weight",
        "mtp.0.norm.weight",
    ],
)
def test_layers_own_only_what_their_kind_owns(tensors, name):
    assert name not in tensors


def test_tiny_schema_has_every_kind_and_fits_25_megabytes():
    tensors = schema(V41Config.from_dict(preset("tiny")))
    assert len(tensors) == 668
    assert total_bytes(tensors.values()) < 25e6


def test_text_only_configuration_has_no_image_tensors(published, tensors):
    text_only = dataclasses.replace(published, vision=VisionConfig(num_hidden_layers=0))
    names = set(tensors) - set(schema(text_only))
    assert len(names) == 2 + 32 * 8 + 1 + 4 + 3 + 43
    assert all(n.startswith(("vision.", "aligner.", "image_")) or "bias_vl" in n for n in names)

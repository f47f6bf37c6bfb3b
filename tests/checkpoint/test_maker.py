"""``make-checkpoint`` writes a real checkpoint: right files, names and formats, telling values.

If it does not, every test that runs the tiny model proves less than it says.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from parameter_modules import module_of
from safetensors import safe_open

from vllm_deepinfer.checkpoint_maker.maker import (
    FolderNotEmptyError,
    corpus_successors,
    make_tiny_checkpoint,
)
from vllm_deepinfer.checkpoint_maker.random_weights import RandomWeights
from vllm_deepinfer.checkpoint_maker.shards import plan_shards, units
from vllm_deepinfer.models.deepseek_v41.checkpoint_files import iterate_tensors, shard_paths
from vllm_deepinfer.models.deepseek_v41.config import V41Config
from vllm_deepinfer.models.deepseek_v41.engram_constants import compressed_token_map, table_primes
from vllm_deepinfer.models.deepseek_v41.presets import preset
from vllm_deepinfer.models.deepseek_v41.schema import UE8M0, schema, total_bytes
from vllm_deepinfer.models.deepseek_v41.weights import expected_parameters, load_weights
from vllm_deepinfer.ops.formats import (
    decode_ue8m0,
    dequantise_fp4_rows,
    dequantise_fp8_blocks,
    dequantise_fp8_rows,
)


@pytest.fixture(scope="module")
def config(tiny_folder) -> V41Config:
    return V41Config.from_dict(json.loads((tiny_folder / "config.json").read_text()))


@pytest.fixture(scope="module")
def tensors(tiny_folder) -> dict[str, torch.Tensor]:
    return dict(iterate_tensors(tiny_folder))


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_equal_seeds_give_equal_bytes_and_other_seeds_other_weights(tiny_folder, tmp_path):
    make_tiny_checkpoint(tmp_path / "again", seed=0)
    make_tiny_checkpoint(tmp_path / "other", seed=1)
    first = digests(tiny_folder)
    assert digests(tmp_path / "again") == first
    other = digests(tmp_path / "other")
    changed = {name for name in first if other[name] != first[name]}
    assert changed == {name for name in first if name.endswith(".safetensors")}


def test_files_are_those_of_a_published_checkpoint(tiny_folder, config):
    shards = [path.name for path in shard_paths(tiny_folder)]
    assert shards == [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    assert {path.name for path in tiny_folder.iterdir()} == {
        *shards,
        "config.json",
        "generation_config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(path.stat().st_size for path in tiny_folder.iterdir()) < 25e6
    index = json.loads((tiny_folder / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == total_bytes(schema(config).values())
    for shard in shards:
        with safe_open(tiny_folder / shard, framework="pt") as content:
            named = {name for name, file in index["weight_map"].items() if file == shard}
            assert set(content.keys()) == named
    assert index["weight_map"].keys() == schema(config).keys()


def test_every_kind_of_layer_is_present(config):
    plans = config.layers
    assert {plan.ratio for plan in plans} == {0, 1, 2}
    assert any(plan.has_engram for plan in plans)
    assert config.dspark_target_layer_ids
    assert any(plan.is_candidate_source for plan in plans)
    assert any(plan.uses_candidates and not plan.owns_kv for plan in plans)
    for ratio in (1, 2):
        assert {plan.owns_kv for plan in plans if plan.ratio == ratio} == {True, False}
    assert config.num_nextn_predict_layers
    assert config.vision.num_hidden_layers


@pytest.mark.parametrize("part", ["target", "draft"])
def test_the_loader_accepts_it(tiny_folder, config, part):
    model = module_of(expected_parameters(config, part))
    loaded = load_weights(model, iterate_tensors(tiny_folder), config, part)
    assert loaded == set(expected_parameters(config, part))


def test_engram_numbers_fit_the_tokenizer(tiny_folder, config):
    compressed, count = compressed_token_map(tiny_folder / "tokenizer.json")
    assert len(compressed) == config.vocab_size
    assert count == config.engram_compressed_vocab_size
    rows = [int(primes.sum()) for primes in table_primes(config).values()]
    assert rows == list(config.engram_num_embeddings)


def dequantised(tensors, name):
    weight, scale = tensors[f"{name}.weight"], tensors[f"{name}.scale"]
    if weight.dtype == torch.int8:
        return dequantise_fp4_rows(weight, scale)
    if ".engram.embed" in name:
        return dequantise_fp8_rows(weight, scale)
    return dequantise_fp8_blocks(weight, scale)


def test_quantised_weights_are_the_random_values_rounded(config, tensors):
    """Half a step of e4m3 is 1/16 of a value, of e2m1 1/4 or less."""
    weights = RandomWeights(config, corpus_successors(), seed=0)
    quantised = [spec for spec in schema(config).values() if spec.dtype == UE8M0]
    for spec in quantised[::7]:
        name = spec.name.removesuffix(".scale")
        found = dequantised(tensors, name)
        exact = torch.from_numpy(weights.values(f"{name}.weight", tuple(found.shape)))
        scale = decode_ue8m0(tensors[spec.name])
        rows_per_scale = found.shape[0] // scale.shape[0]
        scale = scale.repeat_interleave(rows_per_scale, 0).repeat_interleave(32, 1)
        fp4 = tensors[f"{name}.weight"].dtype == torch.int8
        relative, absolute = (1 / 4, 1 / 4) if fp4 else (1 / 16, 2**-10)
        bound = (exact.abs() * relative).maximum(scale * absolute)
        assert ((found - exact).abs() <= bound).all(), name


def test_values_make_mistakes_visible(config, tensors):
    for name, tensor in tensors.items():
        if tensor.dtype == UE8M0:
            if tensor.numel() >= 64:
                assert tensor.view(torch.uint8).unique().numel() > 1, f"{name}: one scale only"
            continue
        values = tensor.view(torch.int8).float() if tensor.element_size() == 1 else tensor.float()
        assert values.isfinite().all(), name
        assert values.std() > 0, name
    norms = [t.float() for name, t in tensors.items() if name.endswith("norm.weight")]
    assert all((norm - 1).abs().mean() > 0.03 for norm in norms)
    for layer in range(config.num_hidden_layers):
        gate = f"layers.{layer}.ffn.gate"
        assert not torch.equal(tensors[f"{gate}.bias"], tensors[f"{gate}.bias_vl"])


def test_the_last_two_experts_of_the_last_layer_are_twins(config, tensors):
    last = f"layers.{config.num_hidden_layers - 1}.ffn."
    for name in ("gate.weight", "gate.bias", "gate.bias_vl"):
        values = tensors[last + name]
        assert torch.equal(values[-1], values[-2])
        assert not torch.equal(values[-2], values[-3])
    for name in ("w1.weight", "w2.weight", "w3.scale"):
        twins = [tensors[f"{last}experts.{e}.{name}"].view(torch.uint8) for e in (5, 6, 7)]
        assert torch.equal(twins[1], twins[2])
        assert not torch.equal(twins[0], twins[1])


def test_output_leans_to_the_successor(config, tensors):
    """Both heads: the successor's logit given a token's embedding is far above the others'."""
    for head, embedding in (
        ("head.weight", "embed.weight"),
        ("mtp.0.markov_head.head.weight", "mtp.0.markov_head.embed.weight"),
    ):
        logits = tensors[embedding].float() @ tensors[head].float().T
        successors = corpus_successors()
        assert config.dspark_noise_token_id not in successors
        leaning = torch.stack([logits[token, after] for token, after in successors.items()])
        assert leaning.mean() > logits.mean() + 4 * logits.std()


def test_a_folder_with_files_is_left_alone_unless_forced(tiny_folder, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "model-00009-of-00009.safetensors").write_text("old")
    with pytest.raises(FolderNotEmptyError, match="--force"):
        make_tiny_checkpoint(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    make_tiny_checkpoint(tmp_path, force=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    (tmp_path / "notes.txt").unlink()
    assert digests(tmp_path) == digests(tiny_folder)


def test_an_interrupted_run_leaves_nothing(tmp_path):
    def interrupt(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_tiny_checkpoint(tmp_path / "model", on_progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_a_shard_is_filled_to_the_last_byte_but_not_beyond():
    grouped = units(schema(V41Config.from_dict(preset("tiny"))).values())
    first_three = sum(map(total_bytes, grouped[:3]))
    assert len(plan_shards(grouped, first_three)[0]) == 3
    assert len(plan_shards(grouped, first_three - 1)[0]) == 2


@given(limit=st.integers(1, 3_000_000))
def test_shards_keep_order_pairs_and_limit(limit):
    grouped = units(schema(V41Config.from_dict(preset("tiny"))).values())
    shards = plan_shards(grouped, limit)
    assert [unit for shard in shards for unit in shard] == grouped
    for shard in shards:
        assert len(shard) == 1 or sum(map(total_bytes, shard)) <= limit
    for unit in grouped:
        names = [spec.name for spec in unit]
        if len(names) > 1:
            stem = names[0].removesuffix("weight")
            assert names == [f"{stem}weight", f"{stem}scale"]
        else:
            assert unit[0].dtype in (torch.bfloat16, torch.float32)

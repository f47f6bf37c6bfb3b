"""The loader fills every parameter with the right bytes, or names everything that is wrong.

If it does not, a model serves with weights that were never loaded, or a user repairs a checkpoint
one error at a time.
"""

from __future__ import annotations

import logging

import pytest
import torch
from parameter_modules import module_of

from vllm_deepinfer.models.deepseek_v41.config import V41Config
from vllm_deepinfer.models.deepseek_v41.presets import preset
from vllm_deepinfer.models.deepseek_v41.schema import schema
from vllm_deepinfer.models.deepseek_v41.weight_problems import WeightsError, ranges, summarise
from vllm_deepinfer.models.deepseek_v41.weights import (
    destination,
    expected_parameters,
    load_weights,
)

VISION = ("vision.", "aligner.", "image_")
PARTS = ("target", "draft")


@pytest.fixture(scope="module")
def config() -> V41Config:
    return V41Config.from_dict(preset("tiny"))


@pytest.fixture(scope="module")
def tensors(config) -> dict[str, torch.Tensor]:
    """Random bytes in every tensor's dtype and shape."""
    generator = torch.Generator().manual_seed(5)
    made = {}
    for spec in schema(config).values():
        data = torch.empty(spec.shape, dtype=spec.dtype)
        data.view(torch.uint8).random_(0, 256, generator=generator)
        made[spec.name] = data
    return made


def load(config, tensors, part):
    model = module_of(expected_parameters(config, part))
    return load_weights(model, tensors.items(), config, part), model


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize("part", PARTS)
def test_every_byte_arrives_where_it_belongs(config, tensors, part):
    loaded, model = load(config, tensors, part)
    parameters = dict(model.named_parameters())
    assert loaded == set(parameters)
    filled = dict.fromkeys(parameters, 0)
    for name, tensor in tensors.items():
        if name.startswith("mtp.") != (part == "draft") or name.startswith(VISION):
            continue
        expert = name.partition(".experts.")[2].partition(".")
        parameter = parameters[name.replace(f".experts.{expert[0]}.", ".experts.")]
        assert same_bytes(parameter[int(expert[0])] if expert[0] else parameter, tensor), name
        filled[name.replace(f".experts.{expert[0]}.", ".experts.")] += tensor.numel()
    assert filled == {name: parameter.numel() for name, parameter in parameters.items()}


@pytest.mark.parametrize("part", PARTS)
def test_the_prefix_model_is_accepted(config, tensors, part):
    prefixed = {f"model.{name}": tensor for name, tensor in tensors.items()}
    assert load(config, prefixed, part)[0] == set(expected_parameters(config, part))


def test_published_names_map_one_to_one():
    """On the meta device: every tensor but the vision tower has one place, no place is left."""
    config = V41Config.from_dict(preset("published"))
    everywhere = {}
    for part in PARTS:
        expected = expected_parameters(config, part)
        model = module_of(expected, device="meta")
        assert {name for name, _ in model.named_parameters()} == set(expected)
        everywhere |= expected
    places = set()
    rows: dict[str, set[int]] = {}
    for name, spec in schema(config).items():
        if name.startswith(VISION):
            assert destination(name)[0] not in everywhere
            continue
        parameter, row = destination(name)
        assert (parameter, row) not in places
        places.add((parameter, row))
        target = everywhere[parameter]
        assert target.dtype == spec.dtype
        assert target.shape == (spec.shape if row is None else (target.shape[0], *spec.shape))
        rows.setdefault(parameter, set()).add(-1 if row is None else row)
    assert rows.keys() == everywhere.keys()
    for parameter, found in rows.items():
        stacked = ".experts." in parameter
        assert found == (set(range(everywhere[parameter].shape[0])) if stacked else {-1}), parameter


def test_a_whole_published_checkpoint_loads_on_the_meta_device():
    config = V41Config.from_dict(preset("published"))
    stream = (
        (spec.name, torch.empty(spec.shape, dtype=spec.dtype, device="meta"))
        for spec in schema(config).values()
    )
    expected = expected_parameters(config, "draft")
    assert load_weights(module_of(expected, "meta"), stream, config, "draft") == set(expected)


@pytest.mark.parametrize("part", PARTS)
def test_text_only_checkpoint_gets_zero_vision_biases(config, tensors, part, caplog):
    text_only = {
        name: tensor
        for name, tensor in tensors.items()
        if not name.startswith(VISION) and not name.endswith("bias_vl")
    }
    with caplog.at_level(logging.INFO):
        loaded, model = load(config, text_only, part)
    biases = [p for name, p in model.named_parameters() if name.endswith("bias_vl")]
    assert len(biases) == (7 if part == "target" else 1)
    assert not any(bias.any() for bias in biases)
    assert loaded == set(expected_parameters(config, part))
    assert "Text-only checkpoint" in caplog.text


@pytest.mark.parametrize("kept", ["image_start", "layers.2.ffn.gate.bias_vl"])
def test_half_a_vision_tower_is_refused(config, tensors, kept):
    some = {
        name: tensor
        for name, tensor in tensors.items()
        if name == kept or not (name.startswith(VISION) or name.endswith("bias_vl"))
    }
    with pytest.raises(WeightsError, match=r"\b33 missing|\b32 missing"):
        load(config, some, "target")


def test_all_problems_are_reported_at_once(config, tensors):
    broken = dict(tensors)
    del broken["norm.weight"]
    for expert in (1, 2, 3, 6):
        del broken[f"layers.4.ffn.experts.{expert}.w2.scale"]
    broken["layers.0.attn.q_norm.bias"] = torch.zeros(3)
    broken["head.weight"] = broken["head.weight"][:-1]
    broken["vision.norm.weight"] = broken["vision.norm.weight"][None]
    broken["embed.weight"] = broken["embed.weight"].float()
    broken["mtp.0.attn.attn_sink"] = broken["mtp.0.attn.attn_sink"].bfloat16()
    broken["model.layers.1.engram.q_weight"] = broken["layers.1.engram.q_weight"]
    with pytest.raises(WeightsError) as caught:
        load(config, broken, "target")
    message = str(caught.value)
    assert message.startswith(
        "The checkpoint does not fit its config.json: "
        "5 missing, 1 unexpected, 2 wrong shape, 2 wrong dtype, 1 repeated."
    )
    for line in (
        "norm.weight\n",
        "layers.4.ffn.experts.{1-3,6}.w2.scale\n",
        "layers.0.attn.q_norm.bias\n",
        "head.weight is [511, 256], expected [512, 256]\n",
        "vision.norm.weight is [1, 64], expected [64]\n",
        "embed.weight is F32, expected BF16\n",
        "mtp.0.attn.attn_sink is BF16, expected F32\n",
        "layers.1.engram.q_weight",
    ):
        assert f"  - {line}" in message, message


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scales_that_are_numbers_are_refused_by_name_and_reason(config, tensors, part, dtype):
    """Powers of two, too: their bytes are no exponents."""
    scales = [name for name in tensors if tensors[name].dtype == torch.float8_e8m0fnu]
    changed = {**tensors, **{name: torch.ones(tensors[name].shape, dtype=dtype) for name in scales}}
    with pytest.raises(WeightsError) as error:
        load(config, changed, part)
    text, name = str(error.value), {torch.float32: "F32", torch.bfloat16: "BF16"}[dtype]
    assert f"{len(scales)} wrong dtype" in text
    assert f"is {name}, expected F8_E8M0: scales are exponents" in text
    assert "attn.wq_a.scale" in text and "ffn.experts" in text


@pytest.mark.parametrize("part", PARTS)
def test_each_absent_tensor_is_missed_by_name(config, tensors, part):
    """One tensor of every kind, and the other part does not care."""
    names = ["layers.0.hc_attn_fn", "head.weight", "layers.3.attn.compressor.wgate.weight"]
    if part == "draft":
        names = ["mtp.0.main_proj.scale", "mtp.0.markov_head.head.weight", "mtp.0.attn.attn_sink"]
    other = next(p for p in PARTS if p != part)
    for name in names:
        fewer = {key: tensor for key, tensor in tensors.items() if key != name}
        with pytest.raises(WeightsError, match=rf"(?s)1 missing.*- {name}$"):
            load(config, fewer, part)
        load(config, fewer, other)


def test_models_with_other_parameters_are_refused(config, tensors):
    expected = expected_parameters(config, "target")
    spec = expected.pop("norm.weight")
    expected["norm.bias"] = spec
    with pytest.raises(ValueError, match="norm.weight is absent; norm.bias has no tensor"):
        load_weights(module_of(expected), tensors.items(), config, "target")


def test_summaries_keep_every_number():
    names = [(f"layers.{n}.ffn.experts.{e}.w1.scale", "") for n in (0, 1, 5) for e in range(9)]
    names += [("layers.7.ffn.experts.3.w1.scale", ""), ("norm.weight", "x")]
    assert summarise(names) == [
        "layers.{0-1,5}.ffn.experts.{0-8}.w1.scale",
        "layers.7.ffn.experts.3.w1.scale",
        "norm.weight x",
    ]
    assert ranges([3]) == "3"

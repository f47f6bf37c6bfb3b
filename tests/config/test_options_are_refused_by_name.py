"""Options under `additional_config["deepinfer"]` are either understood or refused.

Claim: every option parses from its documented values, and anything else (unknown name, wrong type,
value out of range, not a mapping) raises one error that names the option, the value and what is
allowed. If this breaks, a mistyped option is silently ignored and a server runs with other settings
than its owner believes.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_deepinfer.config import (
    DeepInferConfig,
    OptionError,
    option_docs,
    option_names,
)


def test_defaults_are_what_the_documentation_table_says():
    resolved = DeepInferConfig.from_mapping(None)
    assert resolved == DeepInferConfig.from_mapping({})
    for doc in option_docs():
        assert getattr(resolved, doc.name) == doc.default
        assert doc.help and doc.allowed


@pytest.mark.parametrize(
    "options",
    [
        {"quantization": "off"},
        {"batch_invariant": True},
        {"prefill_kv_watermark": 1},
        {"confidence_calibration": "calibration.json"},
        {"quantization": "stored", "batch_invariant": False, "prefill_kv_watermark": 0.5},
    ],
)
def test_allowed_values_are_kept(options):
    resolved = DeepInferConfig.from_mapping(options)
    for name, value in options.items():
        assert getattr(resolved, name) == value
        assert type(getattr(resolved, name)) is type(getattr(DeepInferConfig(), name))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("quantization", "fp8"),
        ("quantization", None),
        ("quantization", True),
        ("batch_invariant", 1),
        ("batch_invariant", "true"),
        ("prefill_kv_watermark", -0.1),
        ("prefill_kv_watermark", True),
        ("prefill_kv_watermark", "1"),
        ("prefill_kv_watermark", float("nan")),
        ("prefill_kv_watermark", float("inf")),
        ("confidence_calibration", None),
        ("confidence_calibration", {"temperatures": [1.0]}),
    ],
)
def test_bad_value_names_option_value_and_choices(name, value):
    with pytest.raises(OptionError) as error:
        DeepInferConfig.from_mapping({name: value})
    (doc,) = (d for d in option_docs() if d.name == name)
    assert name in str(error.value)
    assert repr(value) in str(error.value)
    assert doc.allowed in str(error.value)


@given(st.text().filter(lambda name: name not in option_names()))
def test_unknown_option_lists_all_options(name):
    with pytest.raises(OptionError) as error:
        DeepInferConfig.from_mapping({name: 1})
    assert name in str(error.value)
    for known in option_names():
        assert known in str(error.value)


@pytest.mark.parametrize("options", ["batch_invariant", ["batch_invariant"], 1, True])
def test_options_must_be_a_mapping(options):
    with pytest.raises(OptionError, match="not a mapping"):
        DeepInferConfig.from_mapping(options)


def test_options_are_read_from_a_vllm_configuration():
    def resolve(additional_config):
        return DeepInferConfig.from_vllm(SimpleNamespace(additional_config=additional_config))

    assert resolve({}) == DeepInferConfig()
    assert resolve({"other_plugin": {"x": 1}}) == DeepInferConfig()
    assert resolve({"deepinfer": {"batch_invariant": True}}).batch_invariant
    with pytest.raises(OptionError, match="SimpleNamespace"):
        resolve(SimpleNamespace(deepinfer={}))

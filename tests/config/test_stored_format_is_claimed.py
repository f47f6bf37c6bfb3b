"""vLLM leaves the weight format of a DeepSeek-V4.1 checkpoint to this package, and only that.

Claim: checkpoints of this model in the published format are claimed under our method's name, other
formats of this model are refused by key and value, and other models or methods are left alone. If
this breaks, vLLM loads FP8 kernels of its own under the model, or rejects float32.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from vllm.model_executor.layers.quantization import (
    QUANTIZATION_METHODS,
    get_quantization_config,
)

from vllm_deepinfer import quantization
from vllm_deepinfer.quantization import DeepseekV41StoredConfig, StoredFormatError

PUBLISHED = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
    "expert_dtype": "fp4",
}
V41 = SimpleNamespace(model_type="deepseek_v41")


@pytest.mark.parametrize("method", ["fp8", "deepseek_v4_fp8"])
@pytest.mark.parametrize("user", [None, "fp8", "deepseek_v4_fp8", quantization.NAME])
def test_this_models_checkpoints_are_claimed(method, user):
    stored = {**PUBLISHED, "quant_method": method}
    claim = DeepseekV41StoredConfig.override_quantization_method(stored, user, hf_config=V41)
    assert claim == quantization.NAME
    config = DeepseekV41StoredConfig.from_config(stored)
    assert set(config.get_supported_act_dtypes()) == {torch.bfloat16, torch.float32}
    assert config.get_quant_method(torch.nn.Linear(1, 1), "") is None


@pytest.mark.parametrize(
    ("stored", "user", "hf_config"),
    [
        (PUBLISHED, None, SimpleNamespace(model_type="deepseek_v4")),
        (PUBLISHED, None, None),
        (PUBLISHED, "awq", V41),
        ({**PUBLISHED, "quant_method": "awq"}, None, V41),
    ],
)
def test_everything_else_is_left_alone(stored, user, hf_config):
    claim = DeepseekV41StoredConfig.override_quantization_method(stored, user, hf_config=hf_config)
    assert claim is None


@pytest.mark.parametrize("key", PUBLISHED)
@pytest.mark.parametrize("value", ["other", None])
def test_another_format_is_refused_by_key_and_value(key, value):
    with pytest.raises(StoredFormatError) as error:
        DeepseekV41StoredConfig.from_config({**PUBLISHED, key: value})
    assert f"{key}={value!r}" in str(error.value)


def test_registration_is_idempotent():
    quantization.register()
    quantization.register()
    assert QUANTIZATION_METHODS.count(quantization.NAME) == 1
    assert get_quantization_config(quantization.NAME) is DeepseekV41StoredConfig

"""The decoder has a parameter for every tensor of the schema, of the stored dtype and shape.

Checked on the meta device for the published configuration too: 510 GB of weights, none allocated.
If this breaks, a real checkpoint does not load, or is converted on the way.
"""

from __future__ import annotations

import pytest
import torch

from vllm_deepinfer.models.deepseek_v41.config import V41Config
from vllm_deepinfer.models.deepseek_v41.decoder import Decoder
from vllm_deepinfer.models.deepseek_v41.presets import PRESETS, preset
from vllm_deepinfer.models.deepseek_v41.weights import expected_parameters
from vllm_deepinfer.ops.numerics import Numerics


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("quantised", [True, False])
def test_parameters_equal_the_schema(name, quantised):
    config = V41Config.from_dict(preset(name))
    with torch.device("meta"):
        decoder = Decoder(config, Numerics(torch.bfloat16, quantised))
    found = {n: (p.dtype, tuple(p.shape)) for n, p in decoder.named_parameters()}
    expected = expected_parameters(config, "target")
    assert found == {n: (spec.dtype, spec.shape) for n, spec in expected.items()}

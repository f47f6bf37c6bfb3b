"""The DSpark stages draft what the specification says, checked against the float64 oracle.

If this fails, drafts are still verified, but few survive: speed goes, and the confidences lie.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from model.forcing import probe_with_decisions_of, relative_l2

from oracle import Oracle
from vllm_deepinfer.models.deepseek_v41.config import V41Config
from vllm_deepinfer.models.deepseek_v41.draft import Draft
from vllm_deepinfer.models.deepseek_v41.presets import PRESETS, preset
from vllm_deepinfer.models.deepseek_v41.standalone import Chunk, StandaloneModel
from vllm_deepinfer.models.deepseek_v41.standalone_draft import StandaloneDraft
from vllm_deepinfer.models.deepseek_v41.weights import expected_parameters
from vllm_deepinfer.ops.numerics import Numerics

RECORDED = Path(__file__).parents[1] / "data" / "v41_tiny"
PROMPT = np.random.default_rng(21).integers(3, 500, 200)


@pytest.fixture(scope="module", params=["recorded", "made"])
def folder(request, tiny_folder):
    return RECORDED if request.param == "recorded" else tiny_folder


def drafted(folder, numerics, oracle, context_tokens, bonus, forced=False):
    """One block of ours after the same context and decisions as the oracle's, and the oracle's.

    ``forced`` conditions ours on the oracle's drafts, past a near tie that falls the other way.
    """
    trace = oracle.forward(PROMPT[:context_tokens])
    target = StandaloneModel.load(folder, numerics)
    draft = StandaloneDraft.load(folder, target)
    taps = draft.tap_layers()
    chunk = Chunk(0, PROMPT[:context_tokens].tolist())
    target.compute([chunk], probe_with_decisions_of(trace), taps=taps)
    draft.observe(taps, 0)
    wanted = oracle.draft(trace, context_tokens, bonus)
    drafts = wanted.drafts.tolist() if forced else None
    return draft.propose(context_tokens, bonus, drafts), wanted


@pytest.mark.parametrize("context_tokens", [1, 3, 127, 128, 200])
def test_unquantised_float32_drafts_agree_to_5e_6(folder, context_tokens):
    """Contexts shorter than the window, exactly as long, and longer."""
    oracle = Oracle(folder, quantised=False, rounding=None)
    found, wanted = drafted(folder, Numerics(torch.float32, False), oracle, context_tokens, 17)
    assert found.drafts == wanted.drafts.tolist()
    assert relative_l2(found.logits, wanted.logits) <= 5e-6
    np.testing.assert_allclose(found.confidences.numpy(), wanted.confidences, atol=1e-4)


def test_quantised_drafts_stay_within_the_specified_divergence(folder):
    oracle = Oracle(folder, quantised=True, rounding="bf16")
    found, wanted = drafted(folder, Numerics(), oracle, 200, 17, forced=True)
    assert relative_l2(found.logits, wanted.logits) <= 0.15


@pytest.mark.parametrize("name", PRESETS)
def test_draft_parameters_are_the_checkpoints_tensors(name):
    config = V41Config.from_dict(preset(name))
    with torch.device("meta"):
        draft = Draft(config, Numerics())
    found = {n: (p.dtype, tuple(p.shape)) for n, p in draft.named_parameters()}
    expected = expected_parameters(config, "draft")
    assert found == {n: (spec.dtype, spec.shape) for n, spec in expected.items()}

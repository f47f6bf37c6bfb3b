"""Drafts are verified exactly as upstream's Triton kernels verify them.

Claim: for any mixture of greedy and sampled requests, draft counts from none to the full block,
placeholders, filtered targets, certain and probabilistic drafts, with the standard, the block and
the synthetic test, each kernel leaves what upstream's leaves in Triton's interpreter, for every
supported release: numbers to float32 rounding, decisions and tokens exactly. If this breaks, text
changes under drafting, or differs from vLLM elsewhere for the same seed.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runner.kernel_case import RELEASES, Batch, check, run_ours
from runner.verification_case import Chain, Verification, random_verification

from vllm_deepinfer.ops.runner import philox
from vllm_deepinfer.ops.runner.philox import acceptance_uniform

# Sums over a vocabulary in another order; exp and log of numpy there, of torch here.
ROUNDING = (4e-6, 4e-6)
CLOSE = dict.fromkeys(
    (
        "target_local_sumexp_ptr",
        "draft_local_max_ptr",
        "draft_local_sumexp_ptr",
        "cumulative_log_p_ptr",
        "local_residual_mass_ptr",
        "target_rejected_logsumexp_ptr",
        "draft_rejected_logsumexp_ptr",
    ),
    ROUNDING,
)
# The residual is a difference: where draft and target are nearly equal its logarithm is coarse.
CLOSE["resampled_local_max_ptr"] = (1e-4, 1e-4)
METHODS = ("standard", "block", "synthetic")


def with_method(case: Verification, method: str) -> Verification:
    case.is_blockwise = method == "block"
    if method == "synthetic":
        case.synthetic_rates = torch.linspace(0.9, 0.6, case.num_steps)
    return case


def verify_against(oracle, case: Verification, version) -> tuple[torch.Tensor, torch.Tensor]:
    return Chain(case, version, partial(check, oracle, close=CLOSE, version=version)).verify()


@pytest.mark.parametrize("version", RELEASES, ids=str)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("has_draft_logits", [False, True])
@given(
    seed=st.integers(0, 2**30),
    num_reqs=st.integers(1, 8),
    num_steps=st.integers(1, 5),
    vocab_size=st.sampled_from([2, 16, 37]),
    greedy_share=st.sampled_from([0.0, 0.5, 1.0]),
    use_fp64=st.booleans(),
)
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_drafts_are_verified_as_upstream(
    oracle,
    version,
    method,
    has_draft_logits,
    seed,
    num_reqs,
    num_steps,
    vocab_size,
    greedy_share,
    use_fp64,
):
    case = random_verification(
        seed,
        num_reqs,
        num_steps,
        vocab_size,
        has_draft_logits=has_draft_logits,
        greedy_share=greedy_share,
    )
    case.use_fp64 = use_fp64
    verify_against(oracle, with_method(case, method), version)


@pytest.mark.parametrize("version", RELEASES, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_the_random_cases_accept_and_reject(oracle, version, method):
    # Otherwise the comparisons above would see one branch only.
    lengths = set()
    for seed in range(6):
        case = random_verification(
            seed,
            8,
            3,
            16,
            has_draft_logits=seed % 2 == 0,
            greedy_share=0.3,
            placeholder_share=0.02,
            guess_share=0.05,
            agreement=5.0,
        )
        _, num_sampled = verify_against(oracle, with_method(case, method), version)
        lengths.update(num_sampled.tolist())
    assert lengths == {1, 2, 3, 4}


@pytest.mark.parametrize("version", RELEASES, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_a_batch_without_drafts_draws_one_token_each(oracle, version, method):
    case = random_verification(3, 5, 4, 16, has_draft_logits=False, greedy_share=0.4)
    case = Verification(
        **{
            name: getattr(case, name)
            for name in ("draft_logits", "idx_mapping", "temperature", "seed", "num_steps")
        },
        target_logits=case.target_logits[:5],
        draft_sampled=case.draft_sampled[:5],
        cu_num_logits=torch.arange(6, dtype=torch.int32),
        pos=case.pos[:5],
    )
    _, num_sampled = verify_against(oracle, with_method(case, method), version)
    assert num_sampled.tolist() == [1] * 5


@pytest.mark.parametrize("block_max", [[1.0, float("nan"), 2.0], [float("nan")] * 3])
def test_a_block_of_nans_is_drawn_from_last(oracle, block_max):
    case = random_verification(1, 1, 1, 24, has_draft_logits=False, greedy_share=0.0)
    chain = Chain(case, RELEASES[0], partial(check, oracle))
    rejected = {
        "sampled_ptr": torch.tensor([[5, 6]]),
        "rejected_steps_ptr": torch.zeros(1, dtype=torch.int32),
    }
    drawn = {
        "resampled_local_argmax_ptr": torch.tensor([[3, 11, 19]]),
        "resampled_local_argmax_stride": 3,
        "resampled_local_max_ptr": torch.tensor([block_max]),
        "resampled_local_max_stride": 3,
    }
    token = chain.insert(rejected, drawn)["sampled_ptr"][0, 0]
    assert token == (19 if block_max[0] == 1.0 else 3)


@pytest.mark.parametrize("version", RELEASES, ids=str)
def test_a_target_of_nans_does_not_leave_the_vocabulary(oracle, version):
    case = random_verification(1, 4, 2, 37, has_draft_logits=False, greedy_share=1.0)
    case.target_logits[:, ::2] = float("nan")
    sampled, num_sampled = Chain(
        case, version, partial(run_ours, on_host=True, version=version)
    ).verify()
    tokens = sampled[torch.arange(3) < num_sampled.unsqueeze(1)]
    assert ((tokens >= 0) & (tokens < 37)).all()


def test_a_residual_without_mass_is_drawn_from_the_target():
    """A drafter equal to the target, rejected by rounding alone, must not emit a filtered token."""
    logits = torch.tensor([[float("-inf"), 0.0, 1.0, float("-inf")]])
    case = Verification(
        target_logits=logits.repeat(2, 1),
        draft_logits=logits.unsqueeze(0).clone(),
        draft_sampled=torch.tensor([0, 1], dtype=torch.int32),
        cu_num_logits=torch.tensor([0, 2], dtype=torch.int32),
        pos=torch.tensor([5, 6]),
        idx_mapping=torch.tensor([0]),
        temperature=torch.tensor([1.0]),
        seed=torch.tensor([7]),
        num_steps=1,
    )
    for on_host in (True, False):
        chain = Chain(case, RELEASES[0], partial(run_ours, on_host=on_host))
        log_sum = logits.logsumexp(1)
        rejected = {
            "sampled_ptr": torch.tensor([[1, -77]]),
            "rejected_steps_ptr": torch.zeros(1, dtype=torch.int32),
            "target_rejected_logsumexp_ptr": log_sum,
            "draft_rejected_logsumexp_ptr": log_sum.clone(),
        }
        after = chain.insert(rejected, chain.resample(rejected, None))
        assert after["sampled_ptr"][0, 0] in (1, 2)


def test_acceptance_numbers_are_bit_equal(oracle):
    seeds = torch.tensor([0, 1, -1, 7, 2**31, 2**32 - 1, 2**62 + 12345, -(2**63), 2**63 - 1])
    positions = Batch(0, 0).integers(0, 2**40, seeds.shape[0], 64, dtype=torch.int64)
    positions[:, 0] = torch.tensor([0, 1, 99, 2**20, 2**30 + 5, 3, 4, 2**31 + 1, 2**40])
    after = oracle.run(
        "runner.noise_kernels.acceptance_kernel",
        (seeds.shape[0],),
        {
            "out_ptr": torch.zeros(positions.shape),
            "seeds_ptr": seeds,
            "pos_ptr": positions,
            "BLOCK": 64,
        },
    )
    assert torch.equal(acceptance_uniform(seeds.unsqueeze(1), positions), after["out_ptr"])
    assert after["out_ptr"].unique().numel() == positions.numel()


@pytest.mark.parametrize("word", [0, 2**32 - 1])
def test_an_acceptance_number_is_never_zero(monkeypatch, word):
    # Zero would accept a draft that the target cannot emit.
    monkeypatch.setattr(
        philox, "_first_word", lambda seeds, positions: np.full(positions.shape, word)
    )
    zeros = torch.zeros(1, 1, dtype=torch.int64)
    assert acceptance_uniform(zeros, zeros).item() == pytest.approx(2**-31)


@pytest.mark.parametrize("option", ["FLY_WINDOW_SIZE", "WATERMARK"])
def test_methods_that_change_the_text_are_refused(option):
    case = random_verification(0, 2, 2, 16, has_draft_logits=False, greedy_share=0.0)

    def run(kernel, grid, arguments):
        if option in arguments:
            arguments[option] = 4
        return run_ours(kernel, grid, arguments, on_host=True, version=(0, 33))

    with pytest.raises(NotImplementedError, match="fly" if "FLY" in option else "watermark"):
        Chain(case, (0, 33), run).verify()

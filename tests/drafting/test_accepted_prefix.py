"""A draft survives exactly when it and all before it are the tokens drawn; the law stays exact.

``accepted_prefix`` against a plain loop, and chi-square tests of what it emits, with the noise a
server draws, against direct sampling on tiny vocabularies. If one fails, drafting changes which
tokens a model says and not only how fast.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_deepinfer.drafting.coupled_verification import NO_TOKEN, accepted_prefix

NUM_TRIALS = 30_000
NUM_DRAFTS = 3
MIN_P_VALUE = 1e-3


def by_a_loop(requests, max_drafts):
    emitted = []
    for drawn, drafts in requests:
        count = 1
        while count <= len(drafts) and drafts[count - 1] == drawn[count - 1]:
            count += 1
        emitted.append(drawn[:count] + [NO_TOKEN] * (max_drafts + 1 - count))
    return emitted


@st.composite
def verified_requests(draw):
    max_drafts = draw(st.integers(1, 5))
    requests = []
    for _ in range(draw(st.integers(0, 6))):
        drafts = draw(st.lists(st.integers(-1, 1), max_size=max_drafts))
        drawn = [draw(st.integers(0, 1)) for _ in range(len(drafts) + 1)]
        requests.append((drawn, drafts))
    return max_drafts, requests


@given(verified_requests(), st.integers(-1, 1))
@settings(max_examples=300, deadline=None)
def test_equals_a_loop(case, last_token):
    max_drafts, requests = case
    drawn = torch.tensor([token for tokens, _ in requests for token in tokens], dtype=torch.int64)
    drafts = torch.tensor([t for _, found in requests for t in (last_token, *found)])
    offsets = torch.tensor([0, *(len(tokens) for tokens, _ in requests)]).cumsum(0)
    if not requests:
        drawn = drafts = torch.zeros(1, dtype=torch.int64)  # an engine pads an empty batch
    emitted, count = accepted_prefix(drawn, drafts.int(), offsets.int(), max_drafts)
    assert emitted.tolist() == by_a_loop(requests, max_drafts)
    assert count.tolist() == [(row >= 0).sum() for row in emitted]
    assert (emitted.dtype, count.dtype) == (torch.int64, torch.int32)


@pytest.mark.parametrize("accepted", range(6))
def test_every_run_length_of_a_block(accepted):
    drawn = torch.arange(6)
    drafts = torch.tensor([9, 0, 1, 2, 3, 4])
    if accepted < 5:
        drafts[accepted + 1] = 9
    emitted, count = accepted_prefix(drawn, drafts, torch.tensor([0, 6]), 5)
    assert count.tolist() == [accepted + 1]
    assert emitted[0, : accepted + 1].tolist() == list(range(accepted + 1))


# -- the law ---------------------------------------------------------------------------------------

LOGITS = {
    "two tokens": [0.4, -0.3],
    "three tokens": [0.5, -0.2, 0.1],
    "three tokens, one rare": [2.0, 0.0, 1.5],
}


def no_mask(probabilities):
    return torch.ones_like(probabilities, dtype=torch.bool)


def top_k(probabilities):
    return probabilities >= probabilities.topk(2, dim=-1).values[..., -1:]


def top_p(probabilities):
    order = probabilities.argsort(dim=-1, descending=True)
    before = probabilities.gather(-1, order).cumsum(-1) - probabilities.gather(-1, order)
    return torch.zeros_like(order, dtype=torch.bool).scatter(-1, order, before < 0.7)


def min_p(probabilities):
    return probabilities >= 0.5 * probabilities.max(dim=-1, keepdim=True).values


def random_seeds(seed):
    return torch.randint(0, 2**62, (NUM_TRIALS,), generator=torch.Generator().manual_seed(seed))


def verify(logits, temperature, inputs, seeds, positions):
    """Draws a token at every row, as a server does, and keeps those of the accepted prefixes.

    Args:
        logits: processed logits ``[N, drafts + 1, V]`` of each request.
        inputs: the token of each row, ``[N, drafts + 1]``: the last one emitted, then the drafts.
        seeds: ``[N]``.
        positions: of each row, ``[N, drafts + 1]``.
    """
    from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample

    from vllm_deepinfer import runner_kernels

    runner_kernels.register()
    number, rows = inputs.shape
    drawn = gumbel_sample(
        logits.flatten(0, 1),
        torch.arange(number).repeat_interleave(rows).int(),
        torch.full((number,), temperature),
        seeds,
        positions.flatten(),
        apply_temperature=False,
        is_drafting=False,
    )
    return accepted_prefix(drawn, inputs.flatten(), torch.arange(number + 1) * rows, rows - 1)


def draw_and_verify(logits, temperature, drafts, seed):
    """Emitted tokens of ``NUM_TRIALS`` requests that verify the same drafts.

    Args:
        logits: processed logits ``[drafts + 1, V]`` of the rows of each request.
        drafts: the tokens proposed.
    """
    inputs = torch.tensor([0, *drafts]).expand(NUM_TRIALS, -1)
    positions = (torch.arange(len(drafts) + 1) + 17).expand(NUM_TRIALS, -1)
    repeated = logits.expand(NUM_TRIALS, -1, -1)
    return verify(repeated, temperature, inputs, random_seeds(seed), positions)


def p_value(counts: torch.Tensor, probabilities: torch.Tensor) -> float:
    """Chance of a chi-square at least this large; tokens of probability zero must not occur."""
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    degrees = int(possible.sum()) - 1
    if degrees == 0:
        return 1.0
    wanted = (probabilities * counts.sum())[possible].double()
    statistic = ((counts[possible] - wanted) ** 2 / wanted).sum()
    half = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return torch.special.gammaincc(half[0], half[1]).item()


def masked_rows(name, temperature, mask):
    """Processed logits ``[NUM_DRAFTS + 1, V]``: another distribution at each position."""
    base = torch.tensor(LOGITS[name])
    rows = torch.stack([base.roll(shift) for shift in range(NUM_DRAFTS + 1)]) / temperature
    return rows.masked_fill(~mask(rows.softmax(-1)), -torch.inf)


@pytest.mark.parametrize("mask", [no_mask, top_k, top_p, min_p], ids=lambda mask: mask.__name__)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("name", LOGITS)
def test_every_emitted_position_has_the_direct_law(name, temperature, mask):
    """Given that it is reached, and reached with the chance of the drafts before it."""
    logits = masked_rows(name, temperature, mask)
    laws = logits.double().softmax(-1)
    drafts = [int(row.argmax()) for row in logits[:-1]]
    emitted, _ = draw_and_verify(logits, temperature, drafts, seed=12)
    reach, reached = 1.0, torch.ones(NUM_TRIALS, dtype=torch.bool)
    for position, law in enumerate(laws):
        is_here = emitted[:, position] != NO_TOKEN
        assert torch.equal(is_here, reached), "a position follows when its draft was drawn"
        counts = torch.bincount(emitted[is_here, position], minlength=len(law))
        assert p_value(counts, law) > MIN_P_VALUE
        arrivals = torch.tensor([int(is_here.sum()), NUM_TRIALS - int(is_here.sum())])
        assert p_value(arrivals, torch.tensor([reach, 1 - reach]).double().round(decimals=12)) > (
            MIN_P_VALUE
        )
        if position < NUM_DRAFTS:
            reached = is_here & (emitted[:, position] == drafts[position])
            reach *= law[drafts[position]].item()


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("draft", [0, 1, 2])
def test_recovered_tokens_have_the_residual_law(temperature, draft):
    """After a rejected draft, the others in proportion; whatever the draft was, likely or not."""
    logits = masked_rows("three tokens", temperature, no_mask)[:2]
    emitted, count = draw_and_verify(logits, temperature, [draft], seed=12)
    recovered = torch.bincount(emitted[count == 1, 0], minlength=3)
    residual = logits[0].double().softmax(-1)
    residual[draft] = 0
    assert p_value(recovered, residual / residual.sum()) > MIN_P_VALUE


def generate(target, drafter, num_drafts, length):
    """Tokens ``[NUM_TRIALS, length]`` behind a token 0, by as many steps as they take.

    Args:
        target, drafter: logits ``[V, V]``, a row for the token before.
    """
    tokens = torch.zeros(NUM_TRIALS, length + num_drafts + 1, dtype=torch.int64)
    ends, seeds = torch.zeros(NUM_TRIALS, dtype=torch.int64), random_seeds(13)
    while len(going := (ends < length).nonzero().view(-1)):
        inputs = [tokens[going, ends[going]]]
        for _ in range(num_drafts):
            inputs.append(drafter[inputs[-1]].argmax(1))
        inputs = torch.stack(inputs, 1)
        positions = ends[going].unsqueeze(1) + torch.arange(num_drafts + 1)
        emitted, count = verify(target[inputs], 1.0, inputs, seeds[going], positions)
        for column in range(num_drafts + 1):
            taken = count > column
            tokens[going[taken], ends[going[taken]] + column + 1] = emitted[taken, column]
        ends[going] += count
    return tokens[:, 1 : length + 1]


@pytest.mark.parametrize(("size", "num_drafts", "length"), [(2, 1, 4), (2, 3, 4), (3, 2, 3)])
def test_sequences_of_several_steps_enumerated(size, num_drafts, length):
    """What one step has looked at and rejected, the next draws again with the same noise."""
    random = torch.Generator().manual_seed(size)
    target, drafter = 1.5 * torch.randn(2, size, size, generator=random)
    if size > 2:
        target[0, 1] = -torch.inf
    law = torch.ones(1, dtype=torch.float64)
    for _ in range(length):
        last = torch.arange(len(law)) % size
        law = (law.unsqueeze(1) * target.double().softmax(1)[last]).flatten()
    weights = size ** torch.arange(length).flip(0)
    sequences = (generate(target, drafter, num_drafts, length) * weights).sum(1)
    counts = torch.bincount(sequences, minlength=len(law))
    assert p_value(counts, law) > MIN_P_VALUE
    possible = law > 0
    assert p_value(counts[possible].roll(1), law[possible]) < MIN_P_VALUE, "says nothing"


def test_the_chi_square_rejects_a_wrong_law():
    logits = masked_rows("three tokens", 1.0, no_mask)[:1]
    emitted, _ = draw_and_verify(logits, 1.0, [], seed=15)
    counts = torch.bincount(emitted[:, 0], minlength=3)
    law = logits[0].double().softmax(-1)
    assert p_value(counts, law) > MIN_P_VALUE
    assert p_value(counts, (law + torch.tensor([0.02, -0.01, -0.01]))) < MIN_P_VALUE

"""The end of a thought and the constrained answer after it may be accepted in one step.

The drafter is made to propose the target's own continuation, so that whole blocks survive and every
boundary lies inside one. If a test fails, the grammar starts late, at the wrong token, or forbids
what it should let through; or a right draft is refused.
"""

from __future__ import annotations

import pytest
import torch
from drafting.comparison import (
    NUM_DRAFTS,
    Verifications,
    both_engines,
    generate,
    random_prompt,
    sampling,
    seen,
    tokens,
)
from in_process import counter
from vllm.sampling_params import StructuredOutputsParams


@pytest.fixture(scope="module")
def engines(tiny_folder):
    with both_engines(tiny_folder, reasoning_parser="deepseek_v41") as engines:
        yield engines


def draft_rightly(llm, answer: tuple[int, ...], monkeypatch) -> None:
    """Make the drafter of a single request propose ``answer`` from where the request stands."""
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    speculator = worker.model_runner.speculator
    original, emitted = speculator.propose, [0]

    def propose(input_batch, *args, **kwargs):
        drafts = original(input_batch, *args, **kwargs)
        emitted[0] += int(args[4][0])
        rest = [*answer[emitted[0] :], *[0] * NUM_DRAFTS][:NUM_DRAFTS]
        return torch.tensor([rest], dtype=drafts.dtype)

    monkeypatch.setattr(speculator, "propose", propose)


def check(engines, request, monkeypatch) -> tuple[tuple[int, ...], Verifications]:
    [wanted] = generate(engines[0], [request])
    with monkeypatch.context() as patches, Verifications(engines[1]) as verifications:
        draft_rightly(engines[1], tokens(wanted), patches)
        [found] = generate(engines[1], [request])
    assert seen(found) == seen(wanted)
    return tokens(found), verifications


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.0, "seed": 3}], ids=["greedy", "sampled"]
)
def test_right_drafts_all_survive(engines, options, monkeypatch):
    """Cold and after a prefix hit."""
    request = (random_prompt(70, 140), sampling(19, **options))
    for _ in range(2):
        _, verifications = check(engines, request, monkeypatch)
        assert verifications.blocks == [(NUM_DRAFTS, NUM_DRAFTS)] * 3
    assert counter(engines[1], "vllm:prefix_cache_queries") > 0


@pytest.mark.parametrize("budget", range(1, 7))
@pytest.mark.parametrize("kind", ["regex", "json"])
def test_end_of_thought_inside_a_run(engines, budget, kind, monkeypatch):
    constraint = {"regex": {"regex": "[0-9]{6}"}, "json": {"json": {"type": "boolean"}}}[kind]
    config = engines[0].llm_engine.vllm_config.reasoning_config
    params = sampling(
        budget + 10,
        ignore_eos=False,
        thinking_token_budget=budget,
        structured_outputs=StructuredOutputsParams(**constraint),
    )
    prompt = random_prompt(71, 3) + config.reasoning_start_token_ids
    answer, verifications = check(engines, (prompt, params), monkeypatch)
    end = tuple(config.reasoning_end_token_ids)
    assert answer[budget : budget + len(end)] == end
    text = engines[0].get_tokenizer().decode(answer[budget + len(end) :], skip_special_tokens=True)
    assert text.isdigit() and len(text) == 6 if kind == "regex" else text in ("true", "false")
    assert sum(verifications.accepted.values()) > 0

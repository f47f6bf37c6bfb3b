"""Voting changes when prompts are computed, never what is said; decode steps stay decode steps.

If this breaks, a prompt stalls every decode of a data-parallel group again, waits without bound, or
text depends on scheduling. Takes about 40 s.
"""

from __future__ import annotations

import pytest
from drafting.stand_in_engine import expected, generate, num_faults, prompt, sampling
from in_process import counter, scheduler
from scheduling.steps import recorded
from vllm import TokensPrompt

from vllm_deepinfer.scheduler.vote import Phase

PROMPTS = [prompt(30 + 13 * salt, salt) for salt in range(24)]
# Room for a third of the requests, prompts in chunks.
TIGHT = {"max_num_batched_tokens": 128, "max_num_seqs": 8}
INTERVALS = {"prefill_all_interval": 9, "prefill_any_interval": 12, "prefill_max_steps": 3}


def options(**deepinfer):
    return {"additional_config": {"deepinfer": deepinfer}, **TIGHT}


def arrive_over_time(llm, prompts, num_tokens, every_steps):
    """Texts of prompts that arrive one by one while others are decoded."""
    engine, steps, texts = llm.llm_engine, 0, {}
    waiting = list(enumerate(prompts))
    while waiting or engine.has_unfinished_requests():
        if waiting and steps % every_steps == 0:
            index, tokens = waiting.pop(0)
            engine.add_request(
                str(index), TokensPrompt(prompt_token_ids=tokens), sampling(num_tokens)
            )
        for output in engine.step():
            if output.finished:
                texts[output.request_id] = list(output.outputs[0].token_ids)
        steps += 1
    return [texts[str(index)] for index in range(len(prompts))]


@pytest.mark.parametrize(
    ("num_drafts", "async_scheduling", "mode", "verification"),
    [
        (5, True, "cadence", "adaptive"),
        (5, False, "slo", "adaptive"),
        (0, True, "slo", "all"),
        (0, False, "cadence", "all"),
    ],
)
def test_strict_phases_never_mix_and_say_the_same(
    stand_ins, num_drafts, async_scheduling, mode, verification
):
    llm = stand_ins(
        num_drafts,
        async_scheduling=async_scheduling,
        **options(prefill_vote=mode, verification=verification, **INTERVALS),
    )
    with recorded(llm) as together:
        assert generate(llm, PROMPTS, sampling(60)) == expected(PROMPTS, 60)
    with recorded(llm) as scattered:
        assert arrive_over_time(llm, PROMPTS, 60, every_steps=3) == expected(PROMPTS, 60)
    for steps in (together.steps, scattered.steps):
        kinds = {(step.phase, step.prompts > 0, step.decodes > 0) for step in steps}
        assert kinds == {(Phase.PREFILL, True, False), (Phase.DECODE, False, True)}
    assert scattered.longest_wait() <= 12
    assert num_faults(llm) == 0


def test_mixed_phases_keep_prompts_out_of_decode_steps(stand_ins):
    llm = stand_ins(5, **options(prefill_vote="cadence", prefill_phases="mixed", **INTERVALS))
    with recorded(llm) as found:
        assert arrive_over_time(llm, PROMPTS, 60, every_steps=3) == expected(PROMPTS, 60)
    assert not any(step.prompts for step in found.steps if step.phase is Phase.DECODE)
    assert any(step.prompts and step.decodes for step in found.steps)
    assert found.longest_wait() <= 12
    assert num_faults(llm) == 0


@pytest.mark.parametrize(("mode", "most_in_a_row"), [("cadence", 8), ("slo", 3)])
def test_a_long_prompt_does_not_crawl(stand_ins, mode, most_in_a_row):
    """Eight chunks beside a decode. A single rank that wants is every rank: `cadence` goes on."""
    llm = stand_ins(0, async_scheduling=False, **options(prefill_vote=mode, **INTERVALS))
    engine = llm.llm_engine
    with recorded(llm) as found:
        engine.add_request("short", TokensPrompt(prompt_token_ids=prompt(9, 1)), sampling(200))
        for _ in range(5):
            engine.step()
        long = prompt(900, 2)
        engine.add_request("long", TokensPrompt(prompt_token_ids=long), sampling(4))
        while engine.has_unfinished_requests():
            engine.step()
    chunks = [index for index, step in enumerate(found.steps[5:]) if step.prompts]
    assert len(chunks) == 8
    assert chunks[-1] - chunks[0] <= 8 + 3 * 12
    assert found.longest_prefill() <= most_in_a_row


def test_preemption_and_a_full_house(stand_ins):
    """Blocks run out again and again; everyone still finishes with the right text."""
    llm = stand_ins(
        5,
        max_model_len=256,
        num_gpu_blocks_override=24,
        max_num_seqs=16,
        max_num_batched_tokens=128,
        additional_config={
            "deepinfer": {"prefill_vote": "cadence", "verification": "adaptive", **INTERVALS}
        },
    )
    before = counter(llm, "vllm:num_preemptions")
    prompts = [prompt(60 + salt, salt) for salt in range(12)]
    with recorded(llm) as found:
        assert generate(llm, prompts, sampling(120)) == expected(prompts, 120)
    assert counter(llm, "vllm:num_preemptions") > before
    assert not any(step.prompts and step.decodes for step in found.steps)
    assert num_faults(llm) == 0


def test_aborted_prompts_leave_nothing(stand_ins):
    llm = stand_ins(5, **options(prefill_vote="slo", **INTERVALS))
    engine = llm.llm_engine
    for index, tokens in enumerate(PROMPTS):
        engine.add_request(str(index), TokensPrompt(prompt_token_ids=tokens), sampling(40))
    for step in range(30):
        engine.step()
        engine.abort_request([str(step % 24)] if step % 3 else [])
    while engine.has_unfinished_requests():
        engine.step()
    generate(llm, [prompt(5, 5)], sampling(2))
    generate(llm, [prompt(5, 5)], sampling(2))
    assert len(scheduler(llm).parts.voting._arrived_s) <= 1
    assert generate(llm, PROMPTS[:4], sampling(20)) == expected(PROMPTS[:4], 20)


def test_a_constrained_request_starts_although_its_grammar_takes_time(stand_ins):
    """While a grammar compiles the request is no prompt with room; afterwards it must be."""
    from vllm.sampling_params import StructuredOutputsParams

    llm = stand_ins(5, **options(prefill_vote="cadence", **INTERVALS))
    constrained = sampling(12, structured_outputs=StructuredOutputsParams(regex="[ab]{4}"))
    plain = [sampling(60)] * 4
    texts = generate(llm, PROMPTS[:5], [*plain, constrained])
    assert texts[:4] == expected(PROMPTS[:4], 60)
    assert texts[4]

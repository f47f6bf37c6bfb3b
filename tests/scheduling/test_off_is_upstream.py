"""With vote and plan off, every step and every text is that of vLLM's own scheduler.

If this breaks, installing the package changes scheduling for people who did not ask for it.
"""

from __future__ import annotations

import pytest
from drafting.stand_in_engine import generate, prompt, sampling
from scheduling.steps import scheduler

PROMPTS = [prompt(20 + 17 * salt, salt) for salt in range(20)]


@pytest.mark.parametrize("async_scheduling", [True, False])
def test_the_same_steps_and_the_same_texts(stand_ins, async_scheduling):
    name = "AsyncScheduler" if async_scheduling else "Scheduler"
    module = "async_scheduler" if async_scheduling else "scheduler"
    settings = {
        "async_scheduling": async_scheduling,
        "max_num_batched_tokens": 128,
        "max_num_seqs": 8,
    }
    params = [sampling(40, temperature=salt % 2, seed=salt) for salt in range(20)]
    found = []
    for scheduler_class in (None, f"vllm.v1.core.sched.{module}.{name}"):
        llm = stand_ins(5, scheduler_cls=scheduler_class, **settings)
        target, steps = scheduler(llm), []
        schedule = target.schedule

        def recording(*args, steps=steps, schedule=schedule):
            output = schedule(*args)
            drafts = output.scheduled_spec_decode_tokens
            steps.append(
                [
                    (request.split("-")[0], count, drafts.get(request))
                    for request, count in output.num_scheduled_tokens.items()
                ]
            )
            return output

        target.schedule = recording
        found.append((generate(llm, PROMPTS, params), steps))
    (ours, our_steps), (theirs, their_steps) = found
    assert type(target).__module__.startswith("vllm.v1")
    assert ours == theirs
    assert our_steps == their_steps

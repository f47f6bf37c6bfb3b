"""A worker on an accelerator tells the scheduler what the CPU's tells it, and changes nothing.

Claim: with the same prompts and drafts, tokens are the same, each draft's confidence is settled
with the outcome of its own block, steps come with times of their own and the profile comes once;
the guard is on where steps are launched and off where their outputs are waited for. If this fails,
a GPU server plans by other requests' confidences, or by none. The device is the host.
"""

from __future__ import annotations

import pytest
from in_process import engine, scheduler
from vllm import SamplingParams, TokensPrompt
from worker.host_device import HostDevice

from vllm_deepinfer.metrics.catalogue import ACCEPTED, CONFIDENCE, OFFERED, counter
from vllm_deepinfer.worker import sync_guard

WORKER = "worker.host_device.AcceleratedHostWorker"
NUM_DRAFTS = 3
PROMPTS = [[3 + (7 * i + k) % 200 for k in range(5 + 9 * i)] for i in range(4)]


def serve(folder, worker, prompts=PROMPTS, look=None, **options):
    """Greedy tokens, what was counted of drafts, and what ``look(llm)`` finds afterwards."""
    drafting = {"method": "dspark", "num_speculative_tokens": NUM_DRAFTS}
    with engine(
        folder,
        worker_cls=worker,
        speculative_config=drafting,
        additional_config={"deepinfer": options},
        max_num_seqs=8,
    ) as llm:
        params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
        outputs = llm.generate([TokensPrompt(prompt_token_ids=p) for p in prompts], params)
        counters = scheduler(llm).parts.counters
        counted = {
            family: [
                float(counters.slice(counter(family, position), 1)[0])
                for position in range(NUM_DRAFTS)
            ]
            for family in (OFFERED, ACCEPTED, CONFIDENCE)
        }
        tokens = [tuple(output.outputs[0].token_ids) for output in outputs]
        return tokens, counted, look(llm) if look else None


@pytest.fixture(scope="module")
def by_cpu(tiny_folder):
    return serve(tiny_folder, "auto")[:2]


@pytest.fixture(scope="module")
def launched(tiny_folder):
    """A run with the guard on, and the switch as every forward pass and every report found it."""
    modes = {"launching": [], "waiting": []}
    from vllm_deepinfer.worker import reported_output, step_clock

    def at_forward(self, shape, end_forward=step_clock.StepClock.end_forward):
        modes["launching"].append(HostDevice.mode)
        end_forward(self, shape)

    def at_wait(self, get_output=reported_output.ReportedOutput.get_output):
        modes["waiting"].append(HostDevice.mode)
        return get_output(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_clock.StepClock, "end_forward", at_forward)
        patch.setattr(reported_output.ReportedOutput, "get_output", at_wait)
        tokens, counted, cost = serve(
            tiny_folder,
            WORKER,
            look=lambda llm: scheduler(llm).parts.verification.cost,
            sync_guard="error",
            verification="adaptive",
        )
    return tokens, counted, cost, modes


def test_tokens_and_settled_confidences_are_those_of_the_cpu(tiny_folder, by_cpu):
    tokens, counted, _ = serve(tiny_folder, WORKER)
    assert tokens == by_cpu[0]
    assert min(counted[OFFERED]) > 30 and min(counted[ACCEPTED]) > 5
    assert counted[OFFERED] == by_cpu[1][OFFERED]
    assert counted[ACCEPTED] == by_cpu[1][ACCEPTED]
    assert counted[CONFIDENCE] == pytest.approx(by_cpu[1][CONFIDENCE], rel=1e-6)


def test_planned_steps_change_no_token(launched, by_cpu):
    assert launched[0] == by_cpu[0]
    assert sum(launched[1][OFFERED]) < sum(by_cpu[1][OFFERED])


def test_costs_begin_with_the_profile_and_follow_served_steps(launched):
    cost = launched[2]
    assert [size for size, _ in cost.curve] == [1, 2, 4, 8, 16, 32]
    assert all(0 < ms < 10_000 for _, ms in cost.curve)
    measured = [n for n in range(1, 9) if cost.sampler_ms(n)]
    assert measured


def test_guard_is_on_where_steps_are_launched_and_nowhere_else(launched):
    modes = launched[3]
    # Before the guard there are warm-ups.
    assert set(modes["launching"]) <= {0, 2} and modes["launching"][-1] == 2
    assert modes["waiting"] and set(modes["waiting"]) == {0}
    assert HostDevice.mode == 0 and sync_guard._installed is None

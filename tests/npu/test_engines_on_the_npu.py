"""Engines on a device named npu answer, bit for bit, as the CPU platform does.

Claim: the Ascend 950 platform's worker, vLLM's V2 runner on it and the model give the CPU's greedy
tokens, their log-probabilities and the tokens drawn by seed: step by step, with decode steps
replayed from graphs, and with drafts; so they do under sampling parameters, in structured output,
after a prefix hit and a preemption, with the checkpoint's bytes; no step waits for the device.
If this breaks, the platform computes something else than the model, or the host reads what only the
device knows.

The device is tests/fake_npu's, over host memory: none of the vendor's operations is tried here.
"""

from __future__ import annotations

import re

import npu_engines
import npu_requests
import pytest
from in_process import engine


@pytest.fixture(scope="module")
def found(fake_npu_library, tiny_folder, tmp_path_factory):
    """What every scenario found, by name."""
    result = tmp_path_factory.mktemp("npu") / "found.json"
    return npu_engines.finish(
        npu_engines.start(tiny_folder, result, *npu_engines.SCENARIOS), result
    )


@pytest.fixture(scope="module")
def expected(tiny_folder):
    with engine(tiny_folder, **npu_engines.SETTINGS) as llm:
        return npu_engines.answers(llm) | npu_requests.asked_of_both(llm)


@pytest.mark.parametrize("scenario", ["eager", "replayed", "drafting"])
@pytest.mark.parametrize("kind", ["greedy", "logprobs", "drawn"])
def test_answers_are_the_cpus(scenario, kind, found, expected):
    assert found[scenario][kind] == expected[kind]


def test_every_weight_is_the_checkpoints_and_on_the_npu(found, expected):
    assert found["eager"]["weights"] == expected["weights"]
    assert len(expected["weights"]) > 100
    assert found["eager"]["places"] == ["npu"]


def test_sampling_parameters_choose_what_they_choose_on_the_cpu(found, expected):
    assert found["eager"]["parameters"] == expected["parameters"]
    answers = [answer["tokens"] for answer in found["eager"]["parameters"]]
    biased, allowed = answers[7], answers[8]
    assert set(biased) == {9} and set(allowed) <= {11, 12, 13}


def test_answers_stop_where_they_stop_on_the_cpu(found, expected):
    assert found["eager"]["stopped"] == expected["stopped"]
    whole, ended, put_off = (answer["tokens"] for answer in found["eager"]["stopped"])
    assert ended == whole[: len(ended)] and len(ended) <= 5 < 9 < len(put_off)


def test_structured_output_holds_its_constraint(found, expected):
    assert found["eager"]["constrained"] == expected["constrained"]
    chosen, matched = found["eager"]["constrained"][1:3], found["eager"]["constrained"][3:]
    assert all(answer["text"] in npu_requests.CHOICES for answer in chosen)
    assert all(re.fullmatch(npu_requests.PATTERN, answer["text"]) for answer in matched)


def test_prompts_in_chunks_are_those_of_the_cpu(found, expected):
    """The longest prompt has more than two steps' tokens."""
    number, prompt = max(enumerate(npu_engines.prompts()), key=lambda pair: len(pair[1]))
    assert len(prompt) > 2 * npu_engines.SETTINGS["max_num_batched_tokens"]
    for kind in ("greedy", "logprobs"):
        assert found["eager"][kind][number] == expected[kind][number]


def test_a_prefix_hit_changes_nothing(found, expected):
    reused = found["eager"]["reused"]
    assert reused == expected["reused"]
    assert reused["again"] == reused["first"] and reused["hits"] == 256


def test_a_preempted_request_resumes_where_it_was(found, expected):
    preempted = found["eager"]["preempted"]
    assert preempted == expected["preempted"]
    assert preempted["found"] == preempted["alone"] and preempted["times"] == 1


def test_only_eager_steps_replay_nothing(found):
    assert found["eager"]["replays"] == 0
    assert found["replayed"]["mode"] == "FULL_DECODE_ONLY"


def test_every_decode_step_is_a_replay(found):
    """The first token is the prompt's step, and each of the others takes one."""
    assert found["replayed"]["alone"] == npu_engines.ALONE_TOKENS - 1


def test_drafts_are_accepted_and_verified_in_replays(found):
    """Seven requests at once, 24 tokens each, then 12: fewer replays than tokens of one request."""
    assert found["drafting"]["accepted"] > 50
    assert 10 < found["drafting"]["replays"] < 24 + 12


@pytest.mark.parametrize("scenario", ["eager", "drafting"])
def test_a_hidden_wait_in_a_step_is_an_error(scenario, found):
    """One `.item()` in the model, and one in the sampler, behind the graph."""
    assert "synchronizing operation: Tensor.item" in found[scenario]["refusal"]


def test_a_hidden_wait_in_a_captured_step_ends_the_start(found):
    refusal = found["waiting_in_a_capture"]
    assert "Tensor.item is not allowed while a graph is captured" in refusal


def test_a_runner_that_is_not_led_to_the_npu_does_not_start(found):
    assert "torch.cuda.Stream requires CUDA support" in found["without_redirect"]


def test_other_models_are_refused_in_one_sentence(found):
    said = [line for line in found["another_model"].splitlines() if "Ascend 950" in line]
    assert len(said) == 1
    for part in ("DeepseekV41ForCausalLM only", "not LlamaForCausalLM", "vllm-ascend"):
        assert part in said[0]

"""What an engine on the npu and one on the CPU are both asked, beside plain answers."""

from __future__ import annotations

import hashlib
import random
from typing import Any

LONG_PROMPT = [random.Random(5).randrange(3, 500) for _ in range(300)]
SHORT_PROMPTS = [[20 + n, 7, 300 - n] for n in range(10)]
CHOICES = ("yes", "no", "perhaps")
PATTERN = "[a-z]{3,6}"


def asked_of_both(llm: Any) -> dict[str, Any]:
    """Whatever must be the same on both, by name."""
    return {
        "parameters": by_parameters(llm),
        "stopped": stopped(llm),
        "constrained": constrained(llm),
        "reused": reused(llm),
        "preempted": preempted(llm),
        "weights": weights(llm),
    }


def _generate(llm: Any, prompts: list[list[int]], params: list[Any]) -> list[dict[str, Any]]:
    from vllm import TokensPrompt

    asked = [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts]
    outputs = [output.outputs[0] for output in llm.generate(asked, params, use_tqdm=False)]
    return [{"tokens": list(o.token_ids), "text": o.text, "end": o.finish_reason} for o in outputs]


def by_parameters(llm: Any) -> list[dict[str, Any]]:
    """One request a parameter, all in one batch."""
    from vllm import SamplingParams

    kinds = [
        {"top_p": 0.7},
        {"top_k": 5},
        {"min_p": 0.1},
        {"temperature": 0.6},
        {"repetition_penalty": 1.5, "temperature": 0.0},
        {"presence_penalty": 1.5, "temperature": 0.0},
        {"frequency_penalty": 1.5, "temperature": 0.0},
        {"logit_bias": {9: 100.0}},
        {"allowed_token_ids": [11, 12, 13]},
        {"temperature": 0.0},
    ]
    params = [SamplingParams(seed=3, max_tokens=12, ignore_eos=True, **kind) for kind in kinds]
    return _generate(llm, SHORT_PROMPTS, params)


def stopped(llm: Any) -> list[dict[str, Any]]:
    """A greedy answer, its end at one of its tokens, and that end put off."""
    from vllm import SamplingParams

    def ask(**options: Any) -> dict[str, Any]:
        params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, **options)
        return _generate(llm, [LONG_PROMPT[:30]], [params])[0]

    whole = ask()
    end = whole["tokens"][4]
    return [whole, ask(stop_token_ids=[end]), ask(stop_token_ids=[end], min_tokens=9)]


def constrained(llm: Any) -> list[dict[str, Any]]:
    """Structured output beside free requests, greedy and seeded."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    params = [SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)]
    for rule in ({"choice": list(CHOICES)}, {"regex": PATTERN}):
        for temperature in (0.0, 1.0):
            params.append(
                SamplingParams(
                    temperature=temperature,
                    seed=4,
                    max_tokens=16,
                    structured_outputs=StructuredOutputsParams(**rule),
                )
            )
    return _generate(llm, SHORT_PROMPTS[: len(params)], params)


def reused(llm: Any) -> dict[str, Any]:
    """A prompt twice, and how many of its tokens the second time took from the cache."""
    from in_process import counter, forget_prefixes, run

    forget_prefixes(llm)
    first = run(llm, [LONG_PROMPT], 8)[0]
    before = counter(llm, "vllm:prefix_cache_hits")
    again = run(llm, [LONG_PROMPT], 8)[0]
    hits = counter(llm, "vllm:prefix_cache_hits") - before
    return {"first": _listed(first), "again": _listed(again), "hits": hits}


def preempted(llm: Any) -> dict[str, Any]:
    """A request thrown out in the middle of its answer, which it resumes by recomputing."""
    from unittest import mock

    from in_process import counter, forget_prefixes, run, scheduler

    forget_prefixes(llm)
    alone = run(llm, [LONG_PROMPT], 12)[0]
    forget_prefixes(llm)
    target = scheduler(llm)
    original, steps = target.schedule, []

    def schedule(*args: Any, **kwargs: Any) -> Any:
        steps.append(None)
        if len(steps) == 5:
            target._preempt_request(target.running.pop(), 0.0)
        return original(*args, **kwargs)

    before = counter(llm, "vllm:num_preemptions")
    with mock.patch.object(target, "schedule", schedule):
        found = run(llm, [LONG_PROMPT], 12)[0]
    times = counter(llm, "vllm:num_preemptions") - before
    return {"alone": _listed(alone), "found": _listed(found), "times": times}


def _listed(answer: tuple[tuple, tuple]) -> list[list]:
    return [list(part) for part in answer]


def weights(llm: Any) -> dict[str, str]:
    """A digest of every parameter's bytes, wherever it is."""
    [found] = llm.apply_model(_digests)
    return found


def places(llm: Any) -> list[str]:
    """The devices that hold the parameters."""
    [found] = llm.apply_model(lambda model: sorted({p.device.type for p in model.parameters()}))
    return found


def _digests(model: Any) -> dict[str, str]:
    import torch

    return {
        name: hashlib.sha256(
            parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
        ).hexdigest()
        for name, parameter in model.named_parameters()
    }

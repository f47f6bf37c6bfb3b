"""Built-in machines, each fitted to public numbers. None of them was measured by this project."""

from __future__ import annotations

import numpy as np

from vllm_deepinfer.simulator.acceptance import AcceptanceModel
from vllm_deepinfer.simulator.curves import MachineCurve, Points
from vllm_deepinfer.simulator.errors import SimulationError

# vllm#52362: output tokens/s of DeepSeek V4 on MI350X against the number of requests in flight.
CONCURRENCY = (4, 8, 16, 32, 64, 128, 256)
NO_DRAFTS_TOKENS_PER_S = (381, 729, 1343, 2393, 4095, 6341, 8879)
SEVEN_DRAFTS_TOKENS_PER_S = (970, 1763, 2910, 4756, 6712, 8779, 7852)
ADAPTIVE_TOKENS_PER_S = (902, 1617, 2774, 4501, 7144, 10356, 13325)
NUM_DRAFTS = 7

# Assumed, since the issue does not say: half of the fitted time per sequence is its context's.
CONCURRENCY_PROMPT_TOKENS, CONCURRENCY_OUTPUT_TOKENS = 512, 512
_CONTEXT_SHARE = 0.5


def mi350x() -> MachineCurve:
    """The machine on which "no drafts" and "seven drafts" of vllm#52362 come out as published.

    Step times follow from throughput: sequences x tokens per step / throughput. A request's steps
    are that of its prompt, its whole blocks and, on average, half a block too many. At 32, 64, 128
    and 256 tokens both rows tell the same forward pass, once with one row per sequence and once
    with eight; least squares over these four gives the time per sequence and the drafter's, and
    then the rest follows point by point. Between the published sizes the staircase has steps on the
    line.
    """
    sequences = np.array(CONCURRENCY, dtype=float)
    per_block = AcceptanceModel().tokens_per_block()
    blocks = (CONCURRENCY_OUTPUT_TOKENS - 1) / per_block + 0.5 * (1 - 1 / per_block)
    tokens_per_step = CONCURRENCY_OUTPUT_TOKENS / (1 + blocks)
    plain_ms = 1e3 * sequences / np.array(NO_DRAFTS_TOKENS_PER_S)
    drafting_ms = 1e3 * sequences * tokens_per_step / np.array(SEVEN_DRAFTS_TOKENS_PER_S)
    per_sequence_ms, draft_ms, draft_per_sequence_ms = _shared_sizes_fit(plain_ms, drafting_ms)

    forward: dict[int, list[float]] = {}
    for count, plain, drafting in zip(CONCURRENCY, plain_ms, drafting_ms, strict=True):
        added = per_sequence_ms * count
        forward.setdefault(count, []).append(plain - added)
        drafter = draft_ms + draft_per_sequence_ms * count
        forward.setdefault(count * (1 + NUM_DRAFTS), []).append(drafting - added - drafter)
    sizes = sorted(forward)
    times = np.maximum.accumulate([float(np.mean(forward[size])) for size in sizes])
    context_tokens = CONCURRENCY_PROMPT_TOKENS + CONCURRENCY_OUTPUT_TOKENS / 2
    return MachineCurve(
        name="mi350x-v4",
        provenance="fitted to the rows without drafts and with seven drafts of vllm#52362 "
        "(DeepSeek V4, MI350X) with the default acceptance model; "
        "prompts cost nothing, since the published throughput includes them",
        verify=_staircase(sizes, times),
        prefill=((0, 0.0),),
        sampler=((0, 0.0), (256, 256 * per_sequence_ms * (1 - _CONTEXT_SHARE))),
        drafter=((0, draft_ms), (256, draft_ms + 256 * draft_per_sequence_ms)),
        context_us_per_token=1e3 * per_sequence_ms * _CONTEXT_SHARE / context_tokens,
    )


def _shared_sizes_fit(plain_ms: np.ndarray, drafting_ms: np.ndarray) -> np.ndarray:
    """Time per sequence, drafter's base and time per sequence, all at least 0."""
    rows, gaps = [], []
    for index, count in enumerate(CONCURRENCY):
        tokens = count * (1 + NUM_DRAFTS)
        if tokens in CONCURRENCY:
            plain = plain_ms[CONCURRENCY.index(tokens)]
            rows.append([count - tokens, 1.0, float(count)])
            gaps.append(drafting_ms[index] - plain)
    rows, gaps = np.array(rows), np.array(gaps)
    for kept in ([0, 1, 2], [0, 1]):  # a drafter's time per sequence may not come out negative
        found = np.zeros(3)
        found[kept] = np.linalg.lstsq(rows[:, kept], gaps, rcond=None)[0]
        if (found >= 0).all():
            return found
    raise SimulationError(f"the published rows give negative times: {found.tolist()}.")


def _staircase(sizes: list[int], times: np.ndarray) -> Points:
    """Sizes as vLLM captures graphs, at the times on the line through the fitted points."""
    captured = [1, 2, 4, *range(8, 256, 8), *range(256, sizes[-1] + 1, 16)]
    return tuple((size, float(np.interp(size, sizes, times))) for size in captured)


def dp8_prefill() -> MachineCurve:
    """One rank of eight with prompts of 32 k tokens, as in vllm#44558.

    That report gives the median time between tokens, 274.9 ms where prompts join every step and
    32.1 ms where they join every second one. So a step with a prompt is taken to last 245 ms longer
    than one of decodes alone, and the latter 30 ms at a few dozen sequences. The rest is assumed.
    """
    return MachineCurve(
        name="dp8-prefill",
        provenance="assumed around vllm#44558 (DeepSeek R1, 8 data-parallel ranks): 245 ms per "
        "32 k prompt tokens in a step, 30 ms per decode step of a few dozen sequences",
        verify=tuple((size, 26.0 + 4.0 * size / 64) for size in (1, 2, 4, *range(8, 513, 8))),
        prefill=((0, 0.0), (1, 30.0), (32768, 271.0)),
        sampler=((0, 0.5), (256, 2.0)),
        drafter=((0, 2.0), (256, 6.0)),
        context_us_per_token=0.0005,
    )


BUILT_IN = {"mi350x-v4": mi350x, "dp8-prefill": dp8_prefill}


def built_in_curve(name: str) -> MachineCurve:
    if name not in BUILT_IN:
        raise SimulationError(f"there is no built-in curve {name!r}; there are {sorted(BUILT_IN)}.")
    return BUILT_IN[name]()

"""Loops over the requests of a step in Python: what ``csrc/scheduling`` computes, to the bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vllm_deepinfer.scheduler.mean_survival import survival_rates
from vllm_deepinfer.scheduler.recalibration import corrected_survival
from vllm_deepinfer.scheduler.survival import compatible_prior, planning_rates


def survey(running: list[Any]) -> tuple[list[Any], int]:
    """Requests whose prompt was begun and not finished, and context tokens of all.

    Args:
        running: vLLM's running requests.
    """
    started = [request for request in running if request.is_prefill_chunk]
    return started, sum([request.num_computed_tokens for request in running])


def collect(
    running: list[Any],
    is_async: bool,
    max_model_tokens: int,
    rows: dict[str, int],
    newest: np.ndarray,
    previous: np.ndarray,
    num_rounds: np.ndarray,
    survived: np.ndarray | None,
    reached: np.ndarray | None,
    limits: np.ndarray,
    budget: np.ndarray,
    ranking: np.ndarray,
) -> tuple[list[Any], list[Any], int]:
    """What a plan needs of the running requests that have drafts.

    Args:
        running: vLLM's running requests.
        is_async: a step may be in flight.
        max_model_tokens: longest a request may get.
        rows, newest, previous, num_rounds: of the ``DraftTable``.
        survived, reached: of ``MeanSurvival``, whose rates stand in for unknown rounds, float64
            [K]; None plans as DeepInfer does.
        limits: receives the most drafts each request may verify, int32 [at least n].
        budget, ranking: receive the rows of ``planning_rates``, float32 [at least n, K].

    Returns:
        the n requests with drafts, and ``survey``.

    Raises:
        ValueError: there is no room for n requests.
    """
    drafted = [request for request in running if request.spec_token_ids]
    n = len(drafted)
    if n > min(len(limits), len(budget), len(ranking)):
        raise ValueError(
            f"more requests have drafts than the {min(len(limits), len(budget), len(ranking))} "
            "there is room for"
        )
    in_flight = np.zeros(n, dtype=bool)
    if is_async:
        in_flight[:] = [request.num_in_flight_tokens > 0 for request in drafted]
    limits[:n] = [
        min(len(request.spec_token_ids), _drafts_left(request, flies, max_model_tokens))
        for request, flies in zip(drafted, in_flight, strict=True)
    ]
    places = np.array([rows.get(request.request_id, 0) for request in drafted], dtype=np.int64)
    rounds = num_rounds[places]
    if survived is None:
        prior = compatible_prior(rounds > 0, in_flight, newest.shape[1])
    else:
        prior = survival_rates(survived, reached)
    budget[:n], ranking[:n] = planning_rates(
        newest[places],
        previous[places],
        rounds > 0,
        rounds > 1,
        in_flight,
        prior.astype(np.float32),
    )
    return drafted, *survey(running)


def _drafts_left(request: Any, in_flight: bool, max_model_tokens: int) -> int:
    """Drafts that could still become output: one token of the step is the target's own, and a step
    in flight yields at least one."""
    end = min(request.num_prompt_tokens + request.max_tokens, max_model_tokens)
    return max(end - request.num_tokens - 1 - int(in_flight), 0)


def trim(requests: list[Any], num_drafts: np.ndarray) -> None:
    """Shorten requests' drafts to ``num_drafts``, int32 [n], where they are longer."""
    for request, length in zip(requests, num_drafts.tolist(), strict=True):
        if length < len(request.spec_token_ids):
            # A new list: vLLM's asynchronous scheduler shares one between requests.
            request.spec_token_ids = request.spec_token_ids[:length]


def verified(
    drafts: Mapping[str, Sequence[int]],
    invalid: Mapping[str, int] | None,
    requests: Mapping[str, Any],
    sampled: Sequence[Sequence[int]],
    places: Mapping[str, int],
    num_sampled: int,
    last_unfinished_status: int,
) -> tuple[list[str], list[int], list[int]]:
    """Blocks that a step verified, by the rules of vLLM's ``update_from_output``, before it runs.

    vLLM leaves out requests that ended since they were scheduled, those whose output a preemption
    made stale and to be dropped, and those that sampled nothing. (It leaves out those whose cache a
    connector failed to load, too; connectors are refused at start.)

    Args:
        drafts: scheduled, by request.
        invalid: how many of them the grammar forbids; those were not offered.
        requests: vLLM's, by id.
        sampled: sampled tokens of each place of the batch; empty where nothing was sampled.
        places: place in the batch by request.
        num_sampled: tokens of a step that are the target's own.
        last_unfinished_status: larger ones are of requests that ended.

    Returns:
        request, drafts offered and drafts accepted of each block.
    """
    request_ids, offered, accepted = [], [], []
    for request_id, block in drafts.items():
        request = requests.get(request_id)
        if request is None or request.status > last_unfinished_status:
            continue
        if request.num_stale_output_tokens > 0 and request.drop_stale_output:
            continue
        place = places[request_id]
        num_generated = len(sampled[place]) if sampled else 0
        if block and (num_generated or num_sampled == 0):
            request_ids.append(request_id)
            offered.append(len(block) - (invalid or {}).get(request_id, 0))
            accepted.append(max(num_generated - num_sampled, 0))
    return request_ids, offered, accepted


def settle(
    request_ids: list[str],
    offered: list[int],
    accepted: list[int],
    rows: dict[str, int],
    probabilities: np.ndarray,
    is_open: np.ndarray,
    num_offered: np.ndarray,
    num_accepted: np.ndarray,
    confidence: np.ndarray,
    reached: np.ndarray,
    survived: np.ndarray,
) -> tuple[int, int]:
    """Count verified blocks by position, and close them in the table.

    Args:
        request_ids, offered, accepted: request, drafts offered and drafts accepted of each block.
        rows, probabilities, is_open: of the ``DraftTable``.
        num_offered, num_accepted: totals of the ledger, float64 [K].
        confidence: the same of offered drafts in blocks that were open.
        reached, survived: of ``MeanSurvival``, float64 [K].

    Returns:
        first drafts offered and accepted.

    Raises:
        ValueError: more survived than were offered, or more were offered than there are.
    """
    num_drafts = probabilities.shape[1]
    for length, survivors in zip(offered, accepted, strict=True):
        if not 0 <= survivors <= length <= num_drafts:
            raise ValueError(
                f"{survivors} of {length} drafts survived; no more survive than were offered, and "
                f"no more are offered than {num_drafts}"
            )
    if not request_ids:
        return 0, 0
    places = np.array([rows.get(request_id, 0) for request_id in request_ids], dtype=np.int64)
    # A block is settled once: a request without a new one has said nothing of this.
    places[~is_open[places]] = 0
    position = np.arange(num_drafts)
    lengths, survivors = np.array(offered)[:, None], np.array(accepted)[:, None]
    is_offered = position < lengths
    is_accepted = position < survivors
    num_offered += is_offered.sum(0)
    num_accepted += is_accepted.sum(0)
    # Summed in order: the extension adds one block after the other.
    confidence += np.cumsum(probabilities[places].astype(np.float64) * is_offered, axis=0)[-1]
    reached += (is_offered & (position <= survivors)).sum(0)
    survived += is_accepted.sum(0)
    is_open[places] = False
    return int(is_offered[:, 0].sum()), int(is_accepted[:, 0].sum())


def receive(
    request_ids: list[str],
    is_kept: Sequence[Any],
    logits: np.ndarray,
    probabilities: np.ndarray,
    corrected: np.ndarray | None,
    rows: dict[str, int],
    free_rows: list[int],
    newest: np.ndarray,
    previous: np.ndarray,
    table_logits: np.ndarray,
    table_probabilities: np.ndarray,
    num_rounds: np.ndarray,
    is_open: np.ndarray,
) -> None:
    """Put newly drafted blocks into the table.

    Args:
        request_ids: of each block.
        is_kept: truth of each block; others are noise.
        logits, probabilities: of the blocks, float32 [n, K].
        corrected: of the ``Recalibration`` that rates go by, float32 [K, levels], if any.
        rows, free_rows, newest, previous, table_logits, table_probabilities, num_rounds, is_open:
            of the ``DraftTable``; new requests take the last free rows.

    Raises:
        ValueError: more requests are new than rows are free, or a probability to correct is not
            from 0 to 1.
    """
    kept = [index for index, keeps in zip(range(len(request_ids)), is_kept, strict=True) if keeps]
    if corrected is not None and not ((probabilities >= 0) & (probabilities <= 1)).all():
        raise ValueError("a probability to correct is not from 0 to 1")
    for index in kept:
        if request_ids[index] not in rows:
            if not free_rows:
                raise ValueError("the table has no free row")
            rows[request_ids[index]] = free_rows.pop()
    places = np.array([rows[request_ids[index]] for index in kept], dtype=np.int64)
    previous[places] = newest[places]
    newest[places] = corrected_survival(probabilities[kept], corrected)
    table_logits[places], table_probabilities[places] = logits[kept], probabilities[kept]
    num_rounds[places] = np.minimum(num_rounds[places] + 1, 2)
    is_open[places] = True

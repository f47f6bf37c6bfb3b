"""What a run is judged by."""

from __future__ import annotations

from typing import Any

import numpy as np

from vllm_deepinfer.simulator.ranks import Ranks
from vllm_deepinfer.simulator.scenario import Scenario

QUANTILES = {"p50": 50, "p90": 90, "p99": 99, "max": 100}


class Measures:
    """Collects steps and requests after the warm-up; `summary()` once the run is closed."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.end_ms: list[float] = []  # these four by step, warm-up included
        self.is_prefill: list[bool] = []
        self.tokens: list[int] = []
        self.verified_per_request: list[float] = []
        self.ttft_ms = np.empty(0)  # these three by request and by delivery, without warm-up
        self.wait_steps = np.empty(0, dtype=np.int64)
        self.itl_ms: tuple[np.ndarray, np.ndarray] = (np.empty(0), np.empty(0))  # gaps, counts
        self._last_step = np.zeros(scenario.ranks * scenario.sequences, dtype=np.int64)
        self._usual_last = 0
        self._gaps_ms: list[float] = []
        self._gap_counts: list[int] = []
        self._began: tuple[int, float] | None = None  # step and time of the warm-up's end
        self._totals = dict.fromkeys(
            ("decoded", "first", "prompt", "rows", "verified", "survived", "decodes", "paused"), 0
        )
        self._decoding_ms = 0.0
        self._offered = np.zeros(scenario.num_drafts + 1, dtype=np.int64)
        self._accepted = np.zeros(scenario.num_drafts + 1, dtype=np.int64)
        self._summary: dict[str, Any] = {}

    def stepped(
        self,
        step: int,
        now_ms: float,
        step_ms: float,
        computed: np.ndarray,
        ranks: Ranks,
        slots: np.ndarray,
        lengths: np.ndarray,
        survived: np.ndarray,
    ) -> None:
        """Take a step whose decodes have been settled and whose first tokens have not."""
        if self._began is None and self._is_warm(step, now_ms - step_ms):
            self._began = (step, now_ms - step_ms)
        self.end_ms.append(now_ms)
        self.is_prefill.append(bool(computed.any()))
        self.tokens.append(len(slots) + int(survived.sum()))
        self.verified_per_request.append(float(lengths.mean()) if slots.size else np.nan)
        if self._began is not None:
            self._count(computed, ranks, slots, lengths, survived, step_ms)
            self._count_gaps(now_ms, slots)
        if slots.size:
            self._last_step[slots] = step
            self._usual_last = step

    def first_tokens(self, step: int, now_ms: float, ranks: Ranks, slots: np.ndarray) -> None:
        """Take the requests whose prompts ended in the step just taken."""
        requests = ranks.request[slots]
        known = ranks.requests.first_token_ms
        known[requests] = np.where(np.isnan(known[requests]), now_ms, known[requests])
        self._last_step[slots] = step
        self.tokens[-1] += len(slots)
        self._totals["first"] += len(slots) if self._began is not None else 0

    def _is_warm(self, step: int, start_ms: float) -> bool:
        scenario = self.scenario
        if scenario.seconds is not None:
            return start_ms >= 1e3 * scenario.warmup * scenario.seconds
        return step >= scenario.warmup * (scenario.steps or 0)

    def _count(
        self,
        computed: np.ndarray,
        ranks: Ranks,
        slots: np.ndarray,
        lengths: np.ndarray,
        survived: np.ndarray,
        step_ms: float,
    ) -> None:
        totals = self._totals
        verified, accepted = int(lengths.sum()), int(survived.sum())
        totals["prompt"] += int(computed.sum())
        totals["decoded"] += len(slots) + accepted
        totals["rows"] += len(slots) + verified
        totals["verified"] += verified
        totals["survived"] += accepted
        totals["decodes"] += len(slots)
        running = max(len(slots), int(ranks.num_decoding.sum()))
        totals["paused"] += running - len(slots)
        self._decoding_ms += running * step_ms
        self._offered += np.bincount(lengths, minlength=len(self._offered))
        self._accepted += np.bincount(survived, minlength=len(self._accepted))

    def _count_gaps(self, now_ms: float, slots: np.ndarray) -> None:
        """Time since each request's last tokens; nearly all got them in the same earlier step."""
        last = self._last_step[slots]
        unusual = last[last != self._usual_last]
        if len(last) > len(unusual):
            self._gaps_ms.append(now_ms - self.end_ms[self._usual_last])
            self._gap_counts.append(len(last) - len(unusual))
        for step, count in zip(*np.unique(unusual, return_counts=True), strict=True):
            self._gaps_ms.append(now_ms - self.end_ms[step])
            self._gap_counts.append(int(count))

    def close(self, now_ms: float, ranks: Ranks) -> None:
        """Sum up at the end of the run."""
        first_step, began_ms = self._began or (len(self.end_ms), now_ms)
        steps, seconds = len(self.end_ms) - first_step, (now_ms - began_ms) / 1e3
        totals, requests = self._totals, ranks.requests
        arrived = slice(0, requests.num_arrived)
        counted = requests.arrival_ms[arrived] >= began_ms
        first_ms, finish_ms = requests.first_token_ms[arrived], requests.finish_ms[arrived]
        self.ttft_ms = (first_ms - requests.arrival_ms[arrived])[counted & ~np.isnan(first_ms)]
        self.wait_steps = self._wait_steps(ranks, counted)
        self.itl_ms = (np.array(self._gaps_ms), np.array(self._gap_counts, dtype=np.int64))
        output = requests.output_tokens[arrived]
        ended = counted & ~np.isnan(finish_ms) & (output > 1)
        unanswered = requests.arrival_ms[arrived][np.isnan(first_ms)]
        num_prefill = int(np.sum(self.is_prefill[first_step:]))
        self._summary = {
            "seconds": seconds,
            "steps": steps,
            "prefill_steps": num_prefill,
            "output_tokens_per_s": _ratio(totals["decoded"] + totals["first"], seconds),
            "prompt_tokens_per_s": _ratio(totals["prompt"], seconds),
            "tokens_per_s_per_user": _ratio(totals["decoded"], self._decoding_ms / 1e3),
            "ttft_ms": _spread(self.ttft_ms),
            "itl_ms": _spread(*self.itl_ms),
            "tpot_ms": _spread((finish_ms - first_ms)[ended] / (output[ended] - 1)),
            "wait_decode_steps": _spread(self.wait_steps),
            "drafting": self._drafting(),
            "requests": {
                "arrived": requests.num_arrived,
                "finished": int(np.sum(~np.isnan(finish_ms))),
                "running": int(np.sum(ranks.request >= 0)),
                "waiting": sum(len(queue) for queue in ranks.waiting),
                "preempted": ranks.num_preempted,
                "oldest_unanswered_ms": float(now_ms - unanswered.min()) if unanswered.size else 0,
            },
        }

    def _wait_steps(self, ranks: Ranks, counted: np.ndarray) -> np.ndarray:
        """Steps without any prompt between a request's arrival and its first token."""
        decode_ends = np.array(self.end_ms)[~np.array(self.is_prefill, dtype=bool)]
        requests = ranks.requests
        first_ms = requests.first_token_ms[: requests.num_arrived]
        known = counted & ~np.isnan(first_ms)
        arrival_ms = requests.arrival_ms[: requests.num_arrived][known]
        after = np.searchsorted(decode_ends, first_ms[known], side="right")
        return after - np.searchsorted(decode_ends, arrival_ms, side="right")

    def _drafting(self) -> dict[str, Any]:
        totals = self._totals
        offered = np.cumsum(self._offered[::-1])[::-1][1:]
        accepted = np.cumsum(self._accepted[::-1])[::-1][1:]
        return {
            "tokens_per_block": _ratio(totals["decodes"] + totals["survived"], totals["decodes"]),
            "verified_per_block": _ratio(totals["verified"], totals["decodes"]),
            "accepted_share": _ratio(totals["survived"], totals["verified"]),
            "rows_per_step": _ratio(totals["rows"], len(self.end_ms)),
            "offered": offered.tolist(),
            "accepted": accepted.tolist(),
        }

    def summary(self) -> dict[str, Any]:
        """All figures, ready for JSON; those of nothing are None.

        `tokens_per_s_per_user` is over the time that requests spend decoding, pauses included.
        `itl_ms` is the time between two deliveries of tokens to a request, `tpot_ms` the mean time
        per token of a finished one. `tokens_per_block` counts the token that follows the drafts.
        """
        return self._summary


def _ratio(value: float, divisor: float) -> float | None:
    return value / divisor if divisor else None


def _spread(values: np.ndarray, counts: np.ndarray | None = None) -> dict[str, float | None]:
    """Mean and quantiles, the value itself at each quantile; with counts, each value so often."""
    if not values.size:
        return dict.fromkeys(("mean", *QUANTILES))
    counts = np.ones(len(values), dtype=int) if counts is None else counts
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(counts[order])
    found = {"mean": float(values @ counts / reached[-1])}
    for name, share in QUANTILES.items():
        index = np.searchsorted(reached, np.ceil(reached[-1] * share / 100))
        found[name] = float(values[order[min(index, len(order) - 1)]])
    return found

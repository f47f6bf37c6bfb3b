"""The state of all ranks: slots with running requests as arrays, and queues of waiting ones."""

from __future__ import annotations

import heapq
import math
from collections import deque

import numpy as np

from vllm_deepinfer.simulator.scenario import Scenario
from vllm_deepinfer.simulator.traffic import Requests

EMPTY = -1
_WAITING_LOAD, _RUNNING_LOAD = 4, 1


class Ranks:
    """Slots [ranks * sequences], rank by rank, and a FIFO queue per rank.

    A request holds its whole prompt's KV room from its admission, and each has room to grow by one
    step. A preempted one gives up its slot and computes its prompt and its own tokens again.
    """

    def __init__(self, scenario: Scenario, requests: Requests) -> None:
        ranks, slots = scenario.ranks, scenario.sequences
        self.scenario, self.requests = scenario, requests
        self.request = np.full(ranks * slots, EMPTY, dtype=np.int64)
        self.prompt_left = np.zeros(ranks * slots, dtype=np.int64)
        self.context = np.zeros(ranks * slots, dtype=np.int64)
        self.emitted = np.zeros(ranks * slots, dtype=np.int64)
        self.output_left = np.zeros(ranks * slots, dtype=np.int64)
        self.is_decoding = np.zeros(ranks * slots, dtype=bool)
        self.num_decoding = np.zeros(ranks, dtype=np.int64)
        self.held_tokens = np.zeros(ranks, dtype=np.int64)
        self.waiting: list[deque[int]] = [deque() for _ in range(ranks)]
        self.started: list[list[int]] = [[] for _ in range(ranks)]  # slots, oldest first
        self.free = [list(range(rank * slots, (rank + 1) * slots)) for rank in range(ranks)]
        self._loads = [0] * ranks
        self.num_preempted = 0
        self._limit = math.inf if scenario.kv_tokens is None else scenario.kv_tokens
        self._admit_limit = self._limit * (1 - scenario.watermark)
        self._growth = 1 + scenario.num_drafts
        self._admitted = np.zeros(ranks * slots, dtype=np.int64)
        self._num_admitted = 0

    def enqueue(self, request: int) -> None:
        """Queue an arrived request on its rank, or on the one with the least load.

        The load is vLLM's: four times the waiting requests and the running ones; ties go to the
        lowest rank.
        """
        rank = int(self.requests.rank[request])
        if rank < 0:
            rank = self._loads.index(min(self._loads))
            self.requests.rank[request] = rank
        self.waiting[rank].append(request)
        self._loads[rank] += _WAITING_LOAD

    def is_idle(self) -> bool:
        return not (self.num_decoding.any() or any(self.started) or any(self.waiting))

    def prompt_of(self, request: int) -> int:
        """Tokens to compute before a request's next token: its prompt and what it has said."""
        requests = self.requests
        return int(requests.prompt_tokens[request] + requests.emitted[request])

    def can_admit(self, rank: int) -> bool:
        if not self.waiting[rank] or not self.free[rank]:
            return False
        return self.has_room(rank, 0, self.prompt_of(self.waiting[rank][0]))

    def has_room(self, rank: int, promised_tokens: int, prompt_tokens: int) -> bool:
        """Whether a prompt fits beside what runs and what is promised to others."""
        held = self._needed_tokens(rank) + promised_tokens
        limit = self._admit_limit if held else self._limit
        return held + prompt_tokens + self._growth <= limit

    def admit(self, rank: int) -> int:
        """Give the rank's first waiting request a slot."""
        request = self.waiting[rank].popleft()
        slot = heapq.heappop(self.free[rank])
        prompt, requests = self.prompt_of(request), self.requests
        self.request[slot] = request
        self.prompt_left[slot], self.context[slot] = prompt, 0
        self.emitted[slot] = requests.emitted[request]
        self.output_left[slot] = requests.output_tokens[request] - requests.emitted[request]
        self._admitted[slot] = self._num_admitted
        self._num_admitted += 1
        self.held_tokens[rank] += prompt
        self.started[rank].append(slot)
        self._loads[rank] += _RUNNING_LOAD - _WAITING_LOAD
        return slot

    def prefill(self, rank: int, budget: int) -> tuple[int, list[int]]:
        """Compute prompt tokens, oldest prompts first.

        Returns:
            the tokens computed, and the slots whose prompts are done.
        """
        done, computed = [], 0
        while computed < budget:
            if not self.started[rank]:
                if not self.can_admit(rank):
                    break
                self.admit(rank)
            slot = self.started[rank][0]
            tokens = min(budget - computed, int(self.prompt_left[slot]))
            self.prompt_left[slot] -= tokens
            self.context[slot] += tokens
            computed += tokens
            if self.prompt_left[slot]:
                break
            del self.started[rank][0]
            done.append(slot)
        return computed, done

    def begin_decoding(self, slot: int) -> None:
        self.is_decoding[slot] = True
        self.num_decoding[slot // self.scenario.sequences] += 1

    def emit(self, slots: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Add tokens to running requests and return the slots that are finished with it."""
        self.emitted[slots] += tokens
        self.context[slots] += tokens
        self.output_left[slots] -= tokens
        per_rank = np.bincount(
            slots // self.scenario.sequences, weights=tokens, minlength=self.scenario.ranks
        )
        self.held_tokens += per_rank.astype(np.int64)
        return slots[self.output_left[slots] == 0]

    def finish(self, slot: int, now_ms: float) -> None:
        request = int(self.request[slot])
        self.requests.emitted[request] = self.emitted[slot]
        self.requests.finish_ms[request] = now_ms
        self._release(slot)

    def make_room(self) -> None:
        """Preempt the youngest requests of ranks where the next step might not fit."""
        if self._limit == math.inf:
            return
        for rank in range(self.scenario.ranks):
            while self._needed_tokens(rank) > self._limit:
                self._preempt(rank)

    def _needed_tokens(self, rank: int) -> int:
        """What running requests hold and may grow by in a step."""
        running = self.scenario.sequences - len(self.free[rank])
        return int(self.held_tokens[rank]) + running * self._growth

    def _preempt(self, rank: int) -> None:
        first = rank * self.scenario.sequences
        slots = slice(first, first + self.scenario.sequences)
        ages = np.where(self.request[slots] == EMPTY, -1, self._admitted[slots])
        slot = first + int(np.argmax(ages))
        request = int(self.request[slot])
        self.requests.emitted[request] = self.emitted[slot]
        if not self.is_decoding[slot]:
            self.started[rank].remove(slot)
        self.waiting[rank].appendleft(request)
        self._loads[rank] += _WAITING_LOAD
        self._release(slot)
        self.num_preempted += 1

    def _release(self, slot: int) -> None:
        rank = slot // self.scenario.sequences
        self.held_tokens[rank] -= self.context[slot] + self.prompt_left[slot]
        self.num_decoding[rank] -= self.is_decoding[slot]
        self.is_decoding[slot] = False
        self.request[slot] = EMPTY
        self._loads[rank] -= _RUNNING_LOAD
        heapq.heappush(self.free[rank], slot)

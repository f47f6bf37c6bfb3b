"""Ranks that run vLLM's own data-parallel loop, with a model of scheduler and worker around it.

Each rank is a thread with its own end of a gloo group. The loop comes from the source of a release,
so that it also runs where there is no build of that release.
"""

from __future__ import annotations

import ast
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gloo_ranks import make_group
from lockstep_ranks import Prompt, Rank
from vllm.config import parallel
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.engine import EngineCoreRequestType, core

from vllm_deepinfer.patch.dp_vote import install_on
from vllm_deepinfer.scheduler.vote import Ballot, Phase, Verdict, Vote, VoteSettings

LIMIT_S = 60.0  # of any wait; a test that reaches it fails
SYNC_INTERVAL = 16


class Scheduler:
    """What the loop and the vote need of a scheduler, around a model rank."""

    def __init__(self, settings: VoteSettings, num_ranks: int) -> None:
        self.rank = Rank(deque(), capacity_tokens=10_000)
        self.prefill_vote = Vote(settings, num_ranks)
        self.pause_state = PauseState.UNPAUSED
        self.decisions: list[Verdict | None] = []  # one a step; None where the wave ended

    def has_unfinished_requests(self) -> bool:
        return self.pause_state is not PauseState.PAUSED_ALL and not self.rank.is_done()

    def set_pause_state(self, state: PauseState) -> None:
        self.pause_state = state

    def local_ballot(self) -> Ballot:
        if self.pause_state is PauseState.PAUSED_ALL:
            return Ballot(prefilled_tokens=self.rank.prefilled_tokens)
        return self.rank.ballot(0.0, 1000, 5000)

    def follow(self, verdict: Verdict) -> None:
        self.decisions.append(verdict)

    def end_wave(self) -> None:
        self.decisions.append(None)
        self.prefill_vote.reset()


class LoopParts:
    """Everything around the loop of one rank."""

    def __init__(self, scheduler: Any, rank: int, group: Any, parallel_config: Any) -> None:
        self.scheduler, self.dp_rank, self.engine_index, self.dp_group = (
            scheduler,
            rank,
            rank,
            group,
        )
        self.vllm_config = SimpleNamespace(parallel_config=parallel_config)
        self.dp_sync_interval, self.prefill_schedule_interval = SYNC_INTERVAL, 1
        self.engines_running = self.pending_pause = self.ignore_start_dp_wave = False
        self.enable_fault_tolerance, self.has_coordinator = False, True
        self.step_counter = self.current_wave = 0
        self.eep_scaling_state = None
        self.model_executor = SimpleNamespace(is_sleeping=False)
        self.inbox: queue.Queue = queue.Queue()
        self.output_queue: queue.Queue = queue.Queue()
        self.is_stopped = False
        self.steps: list[tuple[int, Phase, bool]] = []  # (number in the wave, phase, has executed)
        self.num_dummies = 0

    def _handle_shutdown(self) -> bool:
        return not self.is_stopped

    def _maybe_publish_request_counts(self) -> None:
        pass

    def _process_input_queue(self) -> None:
        while not self.is_stopped and not (
            self.engines_running or self.scheduler.has_unfinished_requests()
        ):
            self.inbox.get(timeout=LIMIT_S)(self)
        while not self.inbox.empty():
            self.inbox.get_nowait()(self)

    def _process_engine_step(self) -> bool:
        phase = self.scheduler.prefill_vote.phase
        assert self._should_throttle_prefills() == (phase is Phase.DECODE)
        rank, executed = self.scheduler.rank, False
        rank.prefilled_tokens = 0
        if self.scheduler.has_unfinished_requests():
            num_decodes = len(rank.decoding())
            rank.run(phase, self.step_counter)
            executed = bool(rank.prefilled_tokens or (phase is Phase.DECODE and num_decodes))
        if executed or self.engines_running:
            self.steps.append((self.step_counter, phase, executed))
        return executed

    def execute_dummy_batch(self) -> None:
        self.num_dummies += 1

    @contextmanager
    def capture_iteration_details(self, scheduler_output: Any):
        yield None


def loop_of(root: Path) -> type:
    """`DPEngineCoreProc` as the source of a release says, on the installed release's modules."""
    cls = _definition(root, "vllm.v1.engine.core", "DPEngineCoreProc")
    return _evaluated([cls], vars(core))["DPEngineCoreProc"]


def sync_dp_state_of(root: Path) -> Callable[..., tuple[bool, bool]] | None:
    """The release's collective about unfinished ranks, where it is a method of a configuration."""
    cls = _definition(root, "vllm.config.parallel", "ParallelConfig")
    (method,) = [node for node in cls.body if getattr(node, "name", "") == "sync_dp_state"]
    if method.decorator_list:
        return None  # static, and the loop finds it on the installed class
    helper = _definition(root, "vllm.distributed.utils", "cpu_all_reduce_")
    names = {"_CPU_ALL_REDUCE_TAG_BASE": 27100, "timedelta": timedelta}
    return _evaluated([helper, method], {**vars(parallel), **names})["sync_dp_state"]


def _definition(root: Path, module: str, name: str) -> Any:
    path = root.joinpath(*module.split(".")).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (found,) = [node for node in tree.body if getattr(node, "name", "") == name]
    return found


def _evaluated(definitions: list[Any], names: dict[str, Any]) -> dict[str, Any]:
    namespace = dict(names)
    exec(compile(ast.Module(definitions, []), "release", "exec"), namespace)
    return namespace


class RankThread(threading.Thread):
    """A rank in its loop. `error` is what ended it, None after a regular end."""

    def __init__(self, engine: Any) -> None:
        super().__init__(daemon=True)
        self.engine, self.error = engine, None

    def run(self) -> None:
        try:
            self.engine.run_busy_loop()
        except SystemExit:
            pass
        except Exception as error:
            self.error = error


class Ranks:
    """Running ranks, and the part of the coordinator between them."""

    def __init__(
        self, root: Path, folder: Path, num_ranks: int, settings: VoteSettings, timeout_s: int = 60
    ) -> None:
        loop = type("Loop", (LoopParts, loop_of(root)), {})
        install_on(loop)
        sync = sync_dp_state_of(root)
        limit = {"cpu_distributed_timeout_seconds": timeout_s, "cpu_distributed_timeout": None}

        def make(rank: int) -> None:
            group = make_group(str(folder / "store"), rank, num_ranks)
            config = SimpleNamespace(**limit)
            config.sync_dp_state = sync and partial(sync, config)
            engines[rank] = loop(Scheduler(settings, num_ranks), rank, group, config)

        engines: dict[int, Any] = {}
        makers = [threading.Thread(target=make, args=(rank,)) for rank in range(num_ranks)]
        for maker in makers:
            maker.start()
        for maker in makers:
            maker.join(LIMIT_S)
        self.engines = [engines[rank] for rank in range(num_ranks)]
        self.threads = [RankThread(engine) for engine in self.engines]
        for thread in self.threads:
            thread.start()

    def tell(self, rank: int, action: Callable[[Any], None]) -> None:
        """Has the rank's loop do `action(engine)` where it reads its input."""
        self.engines[rank].inbox.put(action)

    def add(self, rank: int, *prompts: Prompt) -> None:
        self.tell(rank, lambda engine: engine.scheduler.rank.waiting.extend(prompts))

    def start_wave(self, wave: int, started_by: int) -> None:
        """What the coordinator sends when one rank has begun alone."""
        message = (EngineCoreRequestType.START_DP_WAVE, (wave, started_by))
        for rank in range(len(self.engines)):
            self.tell(rank, lambda engine: engine._handle_client_request(*message))

    def wait_for_wave_end(self) -> int:
        """The number of the wave that ends next, as rank 0 reports it."""
        while True:
            _, outputs = self.engines[0].output_queue.get(timeout=LIMIT_S)
            if outputs.wave_complete is not None:
                return outputs.wave_complete

    def stop(self) -> None:
        """Ends idle loops and checks that they ended regularly."""
        for rank in range(len(self.engines)):
            self.tell(rank, lambda engine: setattr(engine, "is_stopped", True))
        self.join()
        assert [thread.error for thread in self.threads] == [None] * len(self.threads)

    def join(self) -> None:
        for thread in self.threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive(), f"rank {thread.engine.dp_rank} hangs"

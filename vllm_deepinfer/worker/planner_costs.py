"""Keeps the costs of vLLM's planner at what steps take, from its start-up profile on.

vLLM plans in every tensor-parallel rank, and its new costs come by a collective of them; so each
rank counts every step that it executes, and what it has measured by then decides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.parallel_state import get_tp_group

from vllm_deepinfer.scheduler import cost_store
from vllm_deepinfer.scheduler.parts import cost_file
from vllm_deepinfer.worker.adaptive_costs import AdaptiveCosts
from vllm_deepinfer.worker.step_clock import PendingSteps, TimedStep

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class PlannerCosts:
    """``AdaptiveCosts`` over a model runner's planner, fed by the steps it runs.

    Args:
        vllm_config: with the options.
        runner: vLLM's V2 model runner, after its profile.

    Raises:
        RuntimeError: vLLM did not make its planner, since the drafter has no confidences.
    """

    def __init__(self, vllm_config: VllmConfig, runner: Any) -> None:
        manager = runner.adaptive_verification
        if manager is None:
            raise RuntimeError(
                "verification adaptive: vLLM made no planner, since this checkpoint's draft stages "
                "have no confidence head; choose verification all"
            )
        self._pending = PendingSteps()
        self._file = cost_file(vllm_config)
        known = self._file.load() if self._file is not None else None
        sizes = runner.cudagraph_manager.captured_token_counts()
        self._costs = AdaptiveCosts(manager, sizes, cost=known)
        if self._file is not None:
            # A collective: by option, which all ranks have, and not by what each found in a file.
            self._costs.refresh()

    def step(self, step: TimedStep) -> None:
        """Count a step that has been launched, and learn from the oldest that has ended."""
        times = self._pending.take_finished()
        if step.shape.is_decode:
            self._pending.add(step)
        self._costs.step(times)

    def save(self) -> None:
        """Keep the costs for the next run, where the options name a file."""
        if self._file is not None and not get_tp_group().rank_in_group:
            cost_store.save(self._file.path, self._file.key, self._costs.cost)

"""Keeps the cost tables of vLLM's own adaptive verification at what steps really take.

Where CUDA graphs verify variable lengths, vLLM trims drafts in the worker, with costs it profiled
once at start. Here they follow the steps that ran. vLLM broadcasts new costs over tensor-parallel
ranks, whose budgets must be equal; so all ranks refresh at the same step, counted, never timed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_deepinfer.scheduler.step_cost import CostSettings, StepCost, StepTimes

if TYPE_CHECKING:
    from vllm.v1.worker.gpu.spec_decode.adaptive_verification import AdaptiveVerificationManager

Curve = list[tuple[int, float]]


class AdaptiveCosts:
    """Learns from a worker's steps and refreshes its manager.

    Args:
        manager: vLLM's, after it has profiled.
        sizes: token counts of the captured graphs, ascending.
        refresh_every_steps: executed steps between two refreshes; the same on all ranks.
        cost: learned in an earlier run; otherwise vLLM's profile is where learning starts.

    Raises:
        ValueError: the manager has not profiled, no graph is captured, or the number of steps is
            below 1.
    """

    def __init__(
        self,
        manager: AdaptiveVerificationManager,
        sizes: list[int],
        refresh_every_steps: int = 256,
        cost: StepCost | None = None,
    ) -> None:
        if manager.cost_tables is None:
            raise ValueError(
                "vLLM's adaptive verification has no costs yet; refresh them after its profile"
            )
        if not sizes:
            raise ValueError("no graph is captured, so vLLM cannot verify variable lengths")
        if refresh_every_steps < 1:
            raise ValueError(f"refresh_every_steps is {refresh_every_steps}; it must be >= 1")
        self._manager = manager
        self._refresh_every_steps = refresh_every_steps
        self._profiled_drafting_ms = manager.cost_tables[0].tolist()
        self.cost = cost or StepCost(profiled_curve(manager, sizes), CostSettings())
        self._num_steps = self._context_tokens = 0

    def step(self, times: StepTimes | None) -> None:
        """Count an executed step; learn from it where it was measured.

        Every rank calls this once for every step that it executes.
        """
        if times is not None:
            self.cost.observe(times)
            self._context_tokens = times.context_tokens
        self._num_steps += 1
        if self._num_steps % self._refresh_every_steps == 0:
            self.refresh()

    def refresh(self) -> None:
        """Give the manager new tables: a collective of its tensor-parallel ranks."""
        self._manager.set_cost_curves(self.drafting_curve(), self.verification_curve())

    def drafting_curve(self) -> Curve:
        """(sequences, ms) of sampling and drafting; the profile where nothing was measured."""
        return [
            (num_seqs, self.cost.sampler_ms(num_seqs) or profiled_ms)
            for num_seqs, profiled_ms in enumerate(self._profiled_drafting_ms)
            if num_seqs > 0
        ]

    def verification_curve(self) -> Curve:
        """(tokens, ms) of the forward pass at the newest measured step's context."""
        sizes, most = self.cost.sizes, self._manager.req_states.max_num_batched_tokens
        tail = [most] if most > sizes[-1] and self.cost.settings.extrapolate else []
        return [(size, self.cost.forward_ms(size, self._context_tokens)) for size in sizes + tail]


def profiled_curve(manager: AdaptiveVerificationManager, sizes: list[int]) -> Curve:
    """(tokens, ms) that vLLM profiled for the captured sizes, and for steps without a graph.

    Those it profiles at half as much again as the largest graph, then at its doubles, up to the
    largest step.
    """
    verification_ms, largest = manager.cost_tables[1], manager.req_states.max_num_batched_tokens
    beyond, size = [sizes[-1] * 3 // 2], 2 * sizes[-1]
    while size < largest:
        beyond.append(size)
        size *= 2
    known = [size for size in sizes + beyond if size < largest] + [largest]
    return [(size, float(verification_ms[size])) for size in known]

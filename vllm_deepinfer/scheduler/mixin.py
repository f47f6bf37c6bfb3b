"""What this package adds to vLLM's schedulers: the vote, the plan and the watch over drafts.

State is edited before and after vLLM's own ``schedule``, which is never copied. With vote, plan and
drafting off, nothing is edited.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from vllm_deepinfer.scheduler.parts import make_parts
from vllm_deepinfer.scheduler.readiness import pending_prompt_tokens
from vllm_deepinfer.scheduler.step_cost import StepTimes
from vllm_deepinfer.scheduler.step_report import StepReport, attached
from vllm_deepinfer.scheduler.vote import Ballot, Phase, Verdict, Vote


@dataclass(frozen=True)
class StepShape:
    """What was scheduled, kept until its output comes."""

    phase: Phase
    context_tokens: int


class DeepInferMixin:
    """vLLM's scheduler with this package's parts; each of them may be absent."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parts = make_parts(self.vllm_config, isinstance(self, AsyncScheduler))
        self._needs_shapes = bool(self.parts.voting or self.parts.verification)
        self._shapes: dict[int, StepShape] = {}
        self._settled: list[tuple[str, int, int]] = []

    # -- the vote, as vLLM's data-parallel engine loop drives it -----------------------------------

    @property
    def prefill_vote(self) -> Vote | None:
        """The vote this scheduler takes part in."""
        return None if self.parts.voting is None else self.parts.voting.vote

    def local_ballot(self) -> Ballot:
        return self.parts.voting.ballot(self)

    def follow(self, verdict: Verdict) -> None:
        self.parts.voting.follow(verdict)

    def end_wave(self) -> None:
        self.parts.voting.end_wave()

    # -- a step ------------------------------------------------------------------------------------

    def add_request(self, request: Any) -> None:
        super().add_request(request)
        if self.parts.voting is not None:
            self.parts.voting.add_request(request.request_id)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        if not self._needs_shapes:
            return super().schedule(throttle_prefills)
        voting, verification = self.parts.voting, self.parts.verification
        if voting is not None:
            voting.decide(self)
        context_tokens = sum([request.num_computed_tokens for request in self.running])
        if verification is not None and (voting is None or voting.runs_decodes):
            has_prompts = voting is None or voting.runs_prompts
            limit = self.max_num_scheduled_tokens if has_prompts else 0
            verification.trim(self, context_tokens, pending_prompt_tokens(self, limit))
        started = [r.request_id for r in self.running if r.is_prefill_chunk]
        if voting is None:
            output = super().schedule(throttle_prefills)
        else:
            output = voting.schedule(self, super().schedule)
        if output.total_num_scheduled_tokens:
            self._keep_shape(output, started, context_tokens)
        return output

    def _keep_shape(self, output: Any, started: list[str], context_tokens: int) -> None:
        tokens = output.num_scheduled_tokens
        prompt_tokens = sum(tokens.get(name, 0) for name in started)
        prompt_tokens += sum(tokens[request.req_id] for request in output.scheduled_new_reqs)
        phase = Phase.PREFILL if prompt_tokens else Phase.DECODE
        self._shapes[id(output)] = StepShape(phase, context_tokens)
        if self.parts.voting is not None:
            self.parts.voting.begin_step(output, prompt_tokens)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        report = attached(model_runner_output)
        if self.parts.ledger is not None:
            self._settle_drafts(scheduler_output, model_runner_output, report)
        if self.parts.voting is not None:
            self.parts.voting.settle(scheduler_output, model_runner_output)
        shape = self._shapes.pop(id(scheduler_output), None)
        if shape is not None and report is not None:
            self._learn(scheduler_output, shape, report)
        return outputs

    def _settle_drafts(self, scheduler_output: Any, output: Any, report: StepReport | None) -> None:
        """After vLLM's own update, which settles the blocks drafted before this step."""
        ledger = self.parts.ledger
        if self._settled:
            ledger.settle(*zip(*self._settled, strict=True))
            self._settled = []
        if report is not None and report.confidences is not None:
            ledger.table.receive(report.confidences, [bool(t) for t in output.sampled_token_ids])
        ledger.table.forget(scheduler_output.finished_req_ids)

    def _learn(self, scheduler_output: Any, shape: StepShape, report: StepReport) -> None:
        if self.parts.voting is not None:
            self.parts.voting.observe(shape.phase, report.forward_ms + report.sampler_ms)
        if self.parts.verification is None:
            return
        self.parts.verification.learn_profile(report.profile)
        if shape.phase is Phase.DECODE:
            self.parts.verification.observe(
                StepTimes(
                    num_seqs=len(scheduler_output.num_scheduled_tokens),
                    num_tokens=scheduler_output.total_num_scheduled_tokens,
                    context_tokens=shape.context_tokens,
                    forward_ms=report.forward_ms,
                    sampler_ms=report.sampler_ms,
                )
            )

    def make_spec_decoding_stats(
        self,
        spec_decoding_stats: Any,
        num_draft_tokens: int,
        num_accepted_tokens: int,
        num_invalid_spec_tokens: dict[str, int] | None,
        request_id: str,
    ) -> Any:
        if num_draft_tokens:
            invalid = (num_invalid_spec_tokens or {}).get(request_id, 0)
            self._settled.append((request_id, num_draft_tokens - invalid, num_accepted_tokens))
        return super().make_spec_decoding_stats(
            spec_decoding_stats,
            num_draft_tokens,
            num_accepted_tokens,
            num_invalid_spec_tokens,
            request_id,
        )

    def shutdown(self) -> None:
        self.parts.close()
        super().shutdown()


class DeepInferScheduler(DeepInferMixin, Scheduler):
    """The synchronous scheduler."""


class DeepInferAsyncScheduler(DeepInferMixin, AsyncScheduler):
    """The asynchronous scheduler."""

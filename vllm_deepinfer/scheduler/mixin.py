"""What this package adds to vLLM's schedulers: the vote, the plan and the watch over drafts.

State is edited before and after vLLM's own ``schedule``, which is never copied. With vote, plan and
drafting off, nothing is edited.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from vllm_deepinfer.scheduler import request_loops
from vllm_deepinfer.scheduler.parts import make_parts
from vllm_deepinfer.scheduler.readiness import RunningRequests, pending_prompt_tokens
from vllm_deepinfer.scheduler.step_cost import StepTimes
from vllm_deepinfer.scheduler.step_report import StepReport, attached
from vllm_deepinfer.scheduler.vote import Ballot, Phase, Verdict, Vote


class StepShape(NamedTuple):
    """What was scheduled, kept until its output comes."""

    round: int
    voted: str | None
    phase: Phase
    prompt_tokens: int
    context_tokens: int


class DeepInferMixin:
    """vLLM's scheduler with this package's parts; each of them may be absent."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parts = make_parts(self.vllm_config, isinstance(self, AsyncScheduler))
        self._needs_shapes = bool(self.parts.voting or self.parts.verification or self.parts.trace)
        self._shapes: dict[int, StepShape] = {}
        self._loops = request_loops.backend()

    # -- the vote, as vLLM's data-parallel engine loop drives it -----------------------------------

    @property
    def prefill_vote(self) -> Vote | None:
        """The vote this scheduler takes part in."""
        return None if self.parts.voting is None else self.parts.voting.vote

    def local_ballot(self) -> Ballot:
        return self.parts.voting.ballot(self, self._loops.survey(self.running)[0])

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
        if verification is None:
            requests = RunningRequests(*self._loops.survey(self.running))
        else:
            requests = verification.collect(self)
        if voting is not None:
            voting.decide(self, requests.started)
        if verification is not None and (voting is None or voting.runs_decodes):
            has_prompts = voting is None or voting.runs_prompts
            limit = self.max_num_scheduled_tokens if has_prompts else 0
            prompt_tokens = pending_prompt_tokens(self, requests.started, limit)
            verification.trim(requests, len(self.running), prompt_tokens)
        if voting is None:
            output = super().schedule(throttle_prefills)
        else:
            output = voting.schedule(self, super().schedule)
        if output.total_num_scheduled_tokens:
            self._keep_shape(output, requests)
        return output

    def _keep_shape(self, output: Any, requests: RunningRequests) -> None:
        tokens = output.num_scheduled_tokens
        prompt_tokens = sum([tokens.get(request.request_id, 0) for request in requests.started])
        prompt_tokens += sum([tokens[request.req_id] for request in output.scheduled_new_reqs])
        phase = Phase.PREFILL if prompt_tokens else Phase.DECODE
        voting, round_, voted = self.parts.voting, self.current_step, None
        if voting is not None:
            voting.begin_step(output, prompt_tokens)
            round_, voted = voting.round, voting.vote.phase.value
        shape = StepShape(round_, voted, phase, prompt_tokens, requests.context_tokens)
        self._shapes[id(output)] = shape

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        report = attached(model_runner_output)
        if self.parts.ledger is not None:
            self._settle_drafts(scheduler_output, model_runner_output, report)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self.parts.voting is not None:
            self.parts.voting.settle(scheduler_output, model_runner_output)
        shape = self._shapes.pop(id(scheduler_output), None)
        if shape is not None and report is not None:
            self._learn(scheduler_output, shape, report)
        return outputs

    def _settle_drafts(self, scheduler_output: Any, output: Any, report: StepReport | None) -> None:
        """The blocks drafted before this step are settled before those it drafted are received.

        Comes before vLLM's own update, which ends requests that this step finished.
        """
        ledger, sampled = self.parts.ledger, output.sampled_token_ids
        ledger.settle(
            *self._loops.verified(
                scheduler_output.scheduled_spec_decode_tokens,
                scheduler_output.num_invalid_spec_tokens,
                self.requests,
                sampled,
                output.req_id_to_index,
                self.num_sampled_tokens_per_step,
                RequestStatus.PREEMPTED,
            )
        )
        if report is not None and report.confidences is not None and sampled:
            ledger.receive(report.confidences, sampled)
        ledger.table.forget(scheduler_output.finished_req_ids)

    def _learn(self, scheduler_output: Any, shape: StepShape, report: StepReport) -> None:
        if self.parts.trace is not None:
            self._write_trace(scheduler_output, shape, report)
        if self.parts.voting is not None:
            self.parts.voting.observe(shape.phase, report.forward_ms + report.sampler_ms)
        if self.parts.verification is None:
            return
        self.parts.verification.learn_profile(report.profile)
        # From 0.33 vLLM drafts nothing where no request can use it: such a step costs less.
        drafted = not getattr(scheduler_output, "skip_drafts", False)
        if shape.phase is Phase.DECODE and drafted:
            self.parts.verification.observe(
                StepTimes(
                    num_seqs=len(scheduler_output.num_scheduled_tokens),
                    num_tokens=scheduler_output.total_num_scheduled_tokens,
                    context_tokens=shape.context_tokens,
                    forward_ms=report.forward_ms,
                    sampler_ms=report.sampler_ms,
                )
            )

    def _write_trace(self, scheduler_output: Any, shape: StepShape, report: StepReport) -> None:
        drafts = scheduler_output.scheduled_spec_decode_tokens.values()
        self.parts.trace.write(
            round=shape.round,
            voted=shape.voted,
            phase=shape.phase.value,
            sequences=len(scheduler_output.num_scheduled_tokens),
            tokens=scheduler_output.total_num_scheduled_tokens,
            prompt_tokens=shape.prompt_tokens,
            drafts=sum(map(len, drafts)),
            context_tokens=shape.context_tokens,
            forward_ms=round(report.forward_ms, 3),
            sampler_ms=round(report.sampler_ms, 3),
        )

    def shutdown(self) -> None:
        self.parts.close()
        super().shutdown()


class DeepInferScheduler(DeepInferMixin, Scheduler):
    """The synchronous scheduler."""


class DeepInferAsyncScheduler(DeepInferMixin, AsyncScheduler):
    """The asynchronous scheduler."""

"""What a worker on an accelerator does around vLLM's: time steps, report them, guard them.

Device-neutral, and apart from the platform's worker, which adds it to vLLM's by inheritance.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from vllm.distributed.parallel_state import get_tp_group

from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.platforms.our_model import vllm_trims_drafts
from vllm_deepinfer.worker import reports, sync_guard
from vllm_deepinfer.worker.planner_costs import PlannerCosts
from vllm_deepinfer.worker.reported_output import (
    PendingConfidences,
    ReportedOutput,
    send_confidences,
)
from vllm_deepinfer.worker.step_clock import StepClock, TimedStep, profile_decoding, shape_of
from vllm_deepinfer.worker.step_profile import profiled_sizes
from vllm_deepinfer.worker.sync_guard import SyncGuard


class AcceleratorSteps:
    """Mixed into a worker of vLLM whose model runner is the V2 one."""

    device_module: ModuleType = torch.cuda
    """The device's functions, as in ``torch.cuda``."""

    def init_device(self) -> None:
        super().init_device()
        options = DeepInferConfig.from_vllm(self.vllm_config)
        speculative = self.vllm_config.speculative_config
        self._vllm_plans = vllm_trims_drafts(self.vllm_config)
        self._we_plan = (
            speculative is not None and options.verification != "all" and not self._vllm_plans
        )
        # Only DSpark's drafts come with confidences, and only the scheduler has use for them.
        self._sends_confidences = (
            speculative is not None and speculative.method == "dspark" and not self._vllm_plans
        )
        self._sends_reports = (
            self._sends_confidences or options.prefill_vote != "off" or bool(options.step_trace)
        )
        self._profile: tuple[tuple[int, float], ...] = ()
        self._guard = SyncGuard("off", None)
        self._costs: PlannerCosts | None = None
        self._num_drafting = 0
        self._clock = self.model_runner.step_timing = StepClock(self._make_event)

    def _make_event(self) -> Any:
        return self.device_module.Event(enable_timing=True, blocking=True)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        if self._sends_confidences:
            reports.enable_confidences(self.model_runner.speculator)

    def compile_or_warm_up_model(self) -> Any:
        """As vLLM's. The guard begins behind it: start-up waits for the device all the time."""
        profile = ()
        if self._we_plan and self.model_runner.speculator is not None:
            # Before vLLM's own warm-up, which seeds the generators at its end.
            profile = self._profile_decoding()
        result = super().compile_or_warm_up_model()
        # Only now: warm-ups run steps whose reports nobody receives.
        self._profile, self._clock.is_serving = profile, True
        options = DeepInferConfig.from_vllm(self.vllm_config)
        if self._vllm_plans and options.verification == "adaptive":
            self._costs = PlannerCosts(self.vllm_config, self.model_runner)
        self._guard = SyncGuard.of(self.device_module, options.sync_guard)
        sync_guard.install(self._guard)
        return result

    def _profile_decoding(self) -> tuple[tuple[int, float], ...]:
        """Times of decode batches without context, up to the most that can be verified at once."""
        runner = self.model_runner
        rows = runner.max_num_reqs * runner.decode_query_len
        sizes = profiled_sizes(min(rows, runner.max_num_tokens))
        return profile_decoding(runner._dummy_run, self._clock, sizes)

    # -- steps ------------------------------------------------------------------------------------

    def execute_model(self, scheduler_output: Any) -> Any:
        with self._guard.forbid():
            output = super().execute_model(scheduler_output)
            state = self.model_runner.execute_model_state
            if state is not None:
                self._clock.end_forward(shape_of(state.input_batch))
                self._num_drafting = state.num_spec_tokens_to_schedule
        return output

    def sample_tokens(self, grammar_output: Any) -> Any:
        with self._guard.forbid():
            output = super().sample_tokens(grammar_output)
            step = self._clock.end_step()
            if step is not None and self._sends_reports:
                output = self._with_report(output, step)
        if step is not None and self._costs is not None:
            self._costs.step(step)
        return output

    def _with_report(self, output: Any, step: TimedStep) -> Any:
        """The output, made to bring the step's report where it is one that the scheduler sees."""
        runner_output = getattr(output, "model_runner_output", None)
        if runner_output is None or not runner_output.req_ids or get_tp_group().rank_in_group:
            return output
        confidences, copied = self._start_copies(runner_output.req_ids)
        profile, self._profile = self._profile, ()
        return ReportedOutput(output, step, confidences, copied, profile)

    def _start_copies(self, request_ids: list[str]) -> tuple[PendingConfidences | None, Any]:
        runner = self.model_runner
        if not self._sends_confidences or runner.speculator is None or not self._num_drafting:
            return None, None
        sent = send_confidences(
            request_ids, runner.speculator, runner.main_stream, runner.output_copy_stream
        )
        copied = self.device_module.Event(blocking=True)
        copied.record(runner.output_copy_stream)
        return sent, copied

    def shutdown(self) -> None:
        try:
            if self._costs is not None:
                self._costs.save()
            sync_guard.uninstall()
        finally:
            super().shutdown()

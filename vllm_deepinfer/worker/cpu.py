"""The worker of the CPU platform, used for DeepSeek-V4.1 only."""

from __future__ import annotations

import os
import time
from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from vllm_deepinfer import runner_kernels
from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.distributed.agreement import any_rank
from vllm_deepinfer.distributed.joining import joining
from vllm_deepinfer.platforms import message_rings
from vllm_deepinfer.worker import reports, threads
from vllm_deepinfer.worker.step_profile import (
    PROFILE_BUDGET_S,
    ForwardClock,
    profile_forward,
    profiled_sizes,
)


class DeepInferCpuWorker(CPUWorker):
    """vLLM's CPU worker, whose V2 model runner launches torch code in place of Triton kernels."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Here rather than in Platform.register_triton_kernel_overrides, which runs for every model
        # and without knowing which: other models keep exactly the kernels vLLM gives them.
        runner_kernels.register()
        # Before init_device, which forbids torch.set_num_threads.
        threads.apply_binding(threads.read_binding(os.environ))
        message_rings.shrink_results(os.environ)
        super().__init__(*args, **kwargs)
        self._execute_s = 0.0
        self._profile: tuple[tuple[int, float], ...] = ()

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        reports.enable_confidences(self.model_runner.speculator)
        self._clock = ForwardClock(self.model_runner.model)

    def compile_or_warm_up_model(self) -> Any:
        # Before vLLM's own warm-up, which seeds the generators at its end.
        profile: tuple[tuple[int, float], ...] = ()
        if DeepInferConfig.from_vllm(self.vllm_config).verification != "all":
            profile = self._profile_decoding()
        times = super().compile_or_warm_up_model()
        # After it: from 0.33 its steps sample too, and the first report takes the profile along.
        self._profile = profile
        return times

    def _profile_decoding(self) -> tuple[tuple[int, float], ...]:
        """Times of decode batches without context, up to the most that can be verified at once."""
        runner_ = self.model_runner
        rows = runner_.max_num_reqs * runner_.decode_query_len
        sizes = profiled_sizes(min(rows, runner_.max_num_tokens))
        return profile_forward(runner_._dummy_run, self._clock, sizes, PROFILE_BUDGET_S, any_rank)

    def execute_dummy_batch(self) -> None:
        """Take part in a step of other ranks. Nothing is computed but what they need of this one.

        ``model_runner._dummy_run`` by itself, as warm-ups call it, computes its whole batch.
        """
        with joining():
            super().execute_dummy_batch()

    def execute_model(self, scheduler_output: Any) -> Any:
        begin_s = time.perf_counter()
        self._clock.take_ms()
        output = super().execute_model(scheduler_output)
        self._execute_s = time.perf_counter() - begin_s
        return output

    def sample_tokens(self, grammar_output: Any) -> Any:
        speculator = self.model_runner.speculator
        reports.forget_block(speculator)
        begin_s = time.perf_counter()
        output = super().sample_tokens(grammar_output)
        forward_ms = self._clock.take_ms()
        step_ms = 1e3 * (self._execute_s + time.perf_counter() - begin_s)
        sent = reports.send_report(
            output, speculator, forward_ms, step_ms - forward_ms, self._profile
        )
        if sent:
            self._profile = ()
        return output

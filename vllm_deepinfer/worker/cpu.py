"""The worker of the CPU platform, used for DeepSeek-V4.1 only."""

from __future__ import annotations

import os
from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from vllm_deepinfer.distributed.joining import joining
from vllm_deepinfer.ops import runner
from vllm_deepinfer.worker import confidences, threads


class DeepInferCpuWorker(CPUWorker):
    """vLLM's CPU worker, whose V2 model runner launches torch code in place of Triton kernels."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Here rather than in Platform.register_triton_kernel_overrides, which runs for every model
        # and without knowing which: other models keep exactly the kernels vLLM gives them.
        runner.register()
        # Before init_device, which forbids torch.set_num_threads.
        threads.apply_binding(threads.read_binding(os.environ))
        super().__init__(*args, **kwargs)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        confidences.enable_confidences(self.model_runner.speculator)

    def execute_dummy_batch(self) -> None:
        """Take part in a step of other ranks. Nothing is computed but what they need of this one.

        ``model_runner._dummy_run`` by itself, as warm-ups call it, computes its whole batch.
        """
        with joining():
            super().execute_dummy_batch()

    def sample_tokens(self, grammar_output: Any) -> Any:
        output = super().sample_tokens(grammar_output)
        confidences.send_confidences(output, self.model_runner.speculator)
        return output

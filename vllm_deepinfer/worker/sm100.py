"""The worker of the SM100 platform, used for DeepSeek-V4.1 only."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from vllm.v1.worker.gpu_worker import Worker

from vllm_deepinfer import registration
from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.platforms import sm100_invariance
from vllm_deepinfer.platforms.sm100_model import check_built, chosen_model
from vllm_deepinfer.worker.accelerator import AcceleratorSteps
from vllm_deepinfer.worker.whole_step_profile import sized_by_whole_step

# For the whole process, as torch keeps them; None before any engine asked for them.
_registered_invariant: bool | None = None


class Sm100Model:
    """Builds the model of the class that the options choose, with its kernels."""

    def init_device(self) -> None:
        super().init_device()
        self._options = DeepInferConfig.from_vllm(self.vllm_config)
        self._chosen = chosen_model(self._options)
        if self._chosen == "deepinfer":
            self._register_kernels()

    def _register_kernels(self) -> None:
        register_kernels(self._options.batch_invariant)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        with registration.using(self._chosen):
            super().load_model(*args, **kwargs)
        runner = self.model_runner
        check_built(runner.model, self._chosen, "target")
        if runner.speculator is not None:
            check_built(runner.speculator.model, self._chosen, "drafter")

    def determine_available_memory(self) -> int:
        """As vLLM's; with this package's class, its activations are not the cache's."""
        ours = self._chosen == "deepinfer"
        with sized_by_whole_step(self) if ours else nullcontext():
            return super().determine_available_memory()

    def compile_or_warm_up_model(self) -> Any:
        if self._options.batch_invariant:
            sm100_invariance.check_switches(self.model_runner)
        return super().compile_or_warm_up_model()


class DeepInferSm100Worker(Sm100Model, AcceleratorSteps, Worker):
    """vLLM's GPU worker with this package's reports, planner costs, sync guard and model."""


def register_kernels(batch_invariant: bool) -> None:
    """Make the Triton kernels the operations' implementation on CUDA, once in a process.

    Raises:
        RuntimeError: an earlier engine of this process had them registered in the other way.
    """
    global _registered_invariant
    if _registered_invariant is None:
        from vllm_deepinfer.ops import triton

        triton.register(batch_invariant)
        _registered_invariant = batch_invariant
    elif _registered_invariant != batch_invariant:
        raise RuntimeError(
            f"batch_invariant is {batch_invariant}, but an earlier engine of this process "
            f"registered the kernels with {_registered_invariant}. Run them in processes of their "
            "own."
        )

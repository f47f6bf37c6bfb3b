"""The worker of the CPU platform."""

from __future__ import annotations

from vllm.v1.worker.cpu_worker import CPUWorker


class DeepInferCpuWorker(CPUWorker):
    """vLLM's CPU worker."""

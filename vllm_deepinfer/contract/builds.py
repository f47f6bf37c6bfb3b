"""What the CPU platform relies on to run every build of vLLM."""

from __future__ import annotations

from vllm_deepinfer.contract.symbols import Symbol, has_fields, overrides

BUILDS: tuple[Symbol, ...] = (
    overrides("vllm.platforms.cpu", "CpuPlatform.import_kernels", "cls"),
    overrides("vllm.v1.worker.cpu_worker", "CPUWorker.compile_or_warm_up_model", "self"),
    has_fields("vllm.v1.core.sched.output", "SchedulerOutput", "skip_drafts", since=(0, 33)),
    has_fields("vllm.config.vllm", "VllmConfig", "kernel_config"),
    has_fields("vllm.config.parallel", "ParallelConfig", "assigned_physical_gpu_ids"),
    has_fields("vllm.config.kernel", "KernelConfig", "enable_jit_warmup"),
)

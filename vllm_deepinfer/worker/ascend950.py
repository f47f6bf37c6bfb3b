"""The worker of the Ascend 950 platform: vLLM's GPU worker on an npu."""

from __future__ import annotations

import gc
import os
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import torch
from vllm.model_executor.model_loader import get_model_loader
from vllm.platforms import current_platform
from vllm.platforms.interface import set_assigned_physical_gpu_ids
from vllm.utils.mem_utils import MemorySnapshot
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.worker.gpu_worker import Worker, init_worker_distributed_environment
from vllm.v1.worker.utils import request_memory

from vllm_deepinfer import runner_kernels
from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.distributed import npu_exchange
from vllm_deepinfer.distributed.joining import joining
from vllm_deepinfer.log import get_logger
from vllm_deepinfer.worker import npu_device, npu_environment, npu_redirect
from vllm_deepinfer.worker.accelerator import AcceleratorSteps
from vllm_deepinfer.worker.whole_step_profile import sized_by_whole_step

logger = get_logger(__name__)


class NpuWorker(Worker):
    """vLLM's worker, whose V2 model runner launches torch code in place of Triton kernels."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if added := npu_environment.set_defaults(os.environ):
            logger.info("Set for the NPU: %s", " ".join(f"{k}={v}" for k, v in added.items()))
        npu_device.import_device_module()
        self._was_deterministic = torch.are_deterministic_algorithms_enabled()
        self._redirect = npu_redirect.Redirect()
        self._redirect.apply(torch.npu)
        runner_kernels.register()
        super().__init__(*args, **kwargs)

    # -- start ------------------------------------------------------------------------------------

    def init_device(self) -> None:
        """Take this rank's device, meet the other ranks and make the model runner.

        vLLM's own refuses every device type but CUDA; the order of steps is its.
        """
        self.device = torch.device(f"npu:{self._device_index()}")
        npu_device.check_device(self.device.index)
        torch.accelerator.set_device_index(self.device)
        # The vendor's operators choose their sums' order by it. New memory need not be filled.
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
        self._register_operations()
        init_worker_distributed_environment(
            self.vllm_config,
            self.rank,
            self.distributed_init_method,
            self.device.index,  # groups make their device of it
            current_platform.dist_backend,
        )
        set_random_seed(self.model_config.seed)
        gc.collect()
        torch.accelerator.empty_cache()
        external_bytes = get_model_loader(self.load_config).get_external_weight_memory(
            self.vllm_config
        )
        self.init_snapshot = MemorySnapshot(device=self.device)
        self.requested_memory = request_memory(
            self.init_snapshot, self.cache_config, external_bytes
        )
        self._init_workspace_and_model_runner()

    def _device_index(self) -> int:
        """The visible device of this rank; data-parallel ranks of a machine take one each."""
        parallel = self.parallel_config
        if parallel.assigned_physical_gpu_ids is not None:
            # Those of this data-parallel rank alone: vLLM divides them where it starts the ranks.
            set_assigned_physical_gpu_ids(parallel.assigned_physical_gpu_ids)
        else:
            rank = parallel.data_parallel_rank_local
            self.local_rank += parallel.data_parallel_index if rank is None else rank
        return current_platform.logical_device_id_to_visible_device_id(self.local_rank)

    def _register_operations(self) -> None:
        """The vendor's operations, each checked; a device in its place has none."""
        if npu_device.is_vendor_device():
            from vllm_deepinfer.ops import npu

            options = DeepInferConfig.from_vllm(self.vllm_config)
            computed_by = npu.register(self.device, torch_ops=options.npu_torch_ops)
            logger.info(
                "Operations: %s", "; ".join(f"{name}: {by}" for name, by in computed_by.items())
            )

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        parallel, text = self.parallel_config, self.model_config.hf_text_config
        if parallel.enable_expert_parallel and parallel.data_parallel_size > 1:
            steps = (
                self.model_runner.max_num_reqs * self.model_runner.decode_query_len,
                self.model_runner.max_num_tokens,
            )
            logger.info(
                npu_exchange.describe(steps, parallel.data_parallel_size, text.num_experts_per_tok)
            )

    def _maybe_get_memory_pool_context(self, tag: str) -> AbstractContextManager:
        """None: the pools that vLLM offers are CUDA's, for a sleep mode that is refused here."""
        return nullcontext()

    def determine_available_memory(self) -> int:
        """As vLLM's, with the activations of this model among what is not the cache's."""
        with sized_by_whole_step(self):
            return super().determine_available_memory()

    # -- steps ------------------------------------------------------------------------------------

    def execute_dummy_batch(self) -> None:
        """Take part in a step of other ranks. Nothing is computed but what they need of this one.

        Where the ranks replay a graph, this one replays it too, on padding.
        """
        with joining():
            super().execute_dummy_batch()

    def shutdown(self) -> None:
        try:
            super().shutdown()
        finally:
            self._redirect.undo()
            torch.use_deterministic_algorithms(self._was_deterministic)


class DeepInferAscend950Worker(AcceleratorSteps, NpuWorker):
    """The npu's worker with this package's reports and its guard against waits."""

    @property
    def device_module(self) -> ModuleType:
        return torch.npu

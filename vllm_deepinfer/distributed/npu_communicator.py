"""Collectives of the Ascend 950 over HCCL, and rows of unequal number among them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from vllm.distributed.device_communicators.all2all import AgRsAll2AllManager
from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase

from vllm_deepinfer.distributed.communicator import UnevenRows


class DeepInferNpuCommunicator(UnevenRows, DeviceCommunicatorBase):
    """vLLM's base communicator with ``all_gatherv`` and ``reduce_scatterv``.

    Host tensors go over the CPU group: ranks agree on small numbers without a wait for the device.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.use_all2all:
            # The model runner asks it whether peers may fail; nothing is sent through it.
            self.all2all_manager = AgRsAll2AllManager(self.cpu_group)

    def all_gather(self, input_: Tensor, dim: int = -1) -> Tensor:
        if input_.device.type != "cpu":
            return super().all_gather(input_, dim)
        parts = [torch.empty_like(input_) for _ in range(self.world_size)]
        dist.all_gather(parts, input_.contiguous(), group=self.cpu_group)
        return torch.cat(parts, dim)

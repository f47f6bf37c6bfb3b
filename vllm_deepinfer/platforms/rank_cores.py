"""Gives every data-parallel rank of a machine cores of its own, and memory that exists.

vLLM binds a rank's threads to a NUMA node. With fewer nodes than ranks they would all run on the
same cores, each waiting in a collective for one that cannot run. (Measured on two cores with two
ranks: both on the first, the second idle.)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from vllm_deepinfer.log import get_logger, info_once

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = get_logger(__name__)
BINDING = "VLLM_CPU_OMP_THREADS_BIND"
# What was written here, so that a user's choice can be told from that.
_written: str | None = None


class LogicalCpu(Protocol):
    """What is read of vLLM's ``LogicalCPUInfo``."""

    id: int
    physical_core: int
    numa_node: int


def divide_cores(cpus: Sequence[LogicalCpu], num_ranks: int) -> list[list[int]]:
    """Ids of the CPUs each rank computes on: one CPU of each core, neighbouring cores together.

    A rank with several cores leaves its last one to the engine and the server. With fewer cores
    than ranks, ranks share cores in turn.
    """
    ordered = sorted(cpus, key=lambda cpu: cpu.id)
    one_per_core = {(cpu.numa_node, cpu.physical_core): cpu.id for cpu in ordered}
    ids = [one_per_core[core] for core in sorted(one_per_core)]
    each, rest = divmod(len(ids), num_ranks)
    if each == 0:
        return [[ids[rank % len(ids)]] for rank in range(num_ranks)]
    divided, first = [], 0
    for rank in range(num_ranks):
        size = each + (rank < rest)
        divided.append(ids[first : first + max(size - 1, 1)])
        first += size
    return divided


def as_binding(divided: Sequence[Sequence[int]]) -> str:
    """The value of ``VLLM_CPU_OMP_THREADS_BIND``: "0,1|2,3" for two ranks with two CPUs each."""
    return "|".join(",".join(str(number) for number in ids) for ids in divided)


def bind_ranks(vllm_config: VllmConfig) -> None:
    """Sets the binding for the ranks of this machine, unless the user did or vLLM can do it."""
    global _written
    if os.environ.get(BINDING) != _written:
        return
    from vllm.utils.cpu_resource_utils import get_allowed_cpu_list, get_visible_memory_node

    num_ranks = vllm_config.parallel_config.data_parallel_size_local
    if num_ranks < 2 or len(get_visible_memory_node()) >= num_ranks:
        # Undo what an earlier engine of this process needed.
        os.environ.pop(BINDING, None)
        _written = None
        return
    _written = os.environ[BINDING] = as_binding(divide_cores(get_allowed_cpu_list(), num_ranks))
    info_once(
        logger,
        f"{num_ranks} data-parallel ranks compute on CPUs {_written}. Set {BINDING} to "
        f"choose others.",
    )


def share_memory_nodes(vllm_config: VllmConfig) -> None:
    """Deals memory nodes to the ranks of this machine in turn where it has fewer, once.

    From 0.33 vLLM gives rank i node i, and a worker whose node does not exist ends.
    """
    from vllm.utils.cpu_resource_utils import get_visible_memory_node

    parallel = vllm_config.parallel_config
    nodes, num_ranks = get_visible_memory_node(), parallel.data_parallel_size_local
    if parallel.assigned_physical_gpu_ids is None and 0 < len(nodes) < num_ranks:
        # vLLM's name; on CPUs it means memory nodes. Each rank is given its part of the list.
        parallel.assigned_physical_gpu_ids = [nodes[i % len(nodes)] for i in range(num_ranks)]

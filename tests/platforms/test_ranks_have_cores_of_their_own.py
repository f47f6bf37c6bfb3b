"""Data-parallel ranks of one machine never share a core while there is one for each.

Claim: cores are divided without overlap, one CPU of each, a rank with several leaves one free;
a user's binding stays, and a configuration without data parallelism removes what another set. The
memory node of every rank exists. If this breaks, ranks wait for each other in every collective, or
an engine starts with another's binding, which vLLM refuses, or a rank ends at its start.
"""

from __future__ import annotations

import os
from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_deepinfer.platforms import rank_cores
from vllm_deepinfer.platforms.rank_cores import BINDING, as_binding, bind_ranks, divide_cores


def machine(num_cores, threads_per_core=1, nodes=1):
    """CPUs numbered as Linux does: all first threads, then all second ones."""
    return [
        SimpleNamespace(
            id=thread * num_cores + core, physical_core=core, numa_node=core * nodes // num_cores
        )
        for thread in range(threads_per_core)
        for core in range(num_cores)
    ]


@pytest.mark.parametrize(
    ("cpus", "num_ranks", "binding"),
    [
        (machine(2), 2, "0|1"),
        (machine(4), 2, "0|2"),
        (machine(8), 2, "0,1,2|4,5,6"),
        (machine(5), 2, "0,1|3"),
        (machine(4, threads_per_core=2), 2, "4|6"),
        (machine(2), 3, "0|1|0"),
        (machine(1), 2, "0|0"),
    ],
)
def test_cores_are_divided(cpus, num_ranks, binding):
    assert as_binding(divide_cores(cpus, num_ranks)) == binding


@given(st.integers(1, 64), st.integers(1, 2), st.integers(1, 9), st.randoms())
def test_no_core_has_two_ranks(num_cores, threads_per_core, num_ranks, shuffle):
    cpus = machine(num_cores, threads_per_core)
    shuffle.shuffle(cpus)
    divided = divide_cores(cpus, num_ranks)
    assert len(divided) == num_ranks and all(divided)
    used = [number % num_cores for ids in divided for number in ids]
    if num_cores >= num_ranks:
        assert len(used) == len(set(used))


@pytest.fixture
def config(monkeypatch):
    """Makes a configuration; the machine has one NUMA node and four cores."""
    from vllm.utils import cpu_resource_utils

    monkeypatch.setattr(cpu_resource_utils, "get_allowed_cpu_list", lambda: machine(4))
    monkeypatch.setattr(cpu_resource_utils, "get_visible_memory_node", lambda: [0])
    monkeypatch.setattr(rank_cores, "_written", None)
    monkeypatch.setenv(BINDING, "overwritten")
    monkeypatch.delenv(BINDING)
    return lambda num_ranks: SimpleNamespace(
        parallel_config=SimpleNamespace(data_parallel_size_local=num_ranks)
    )


def test_the_newest_configuration_decides(config):
    for num_ranks, binding in [(2, "0|2"), (2, "0|2"), (4, "0|1|2|3"), (1, None), (2, "0|2")]:
        bind_ranks(config(num_ranks))
        assert os.environ.get(BINDING) == binding


def test_a_users_binding_stays(config, monkeypatch):
    monkeypatch.setenv(BINDING, "nobind")
    for num_ranks in (2, 1):
        bind_ranks(config(num_ranks))
        assert os.environ[BINDING] == "nobind"


def test_a_node_for_each_rank_is_left_to_vllm(config, monkeypatch):
    from vllm.utils import cpu_resource_utils

    monkeypatch.setattr(cpu_resource_utils, "get_visible_memory_node", lambda: [0, 1])
    bind_ranks(config(2))
    assert BINDING not in os.environ


def assigned_nodes(monkeypatch, nodes, num_ranks, given=None):
    """What each rank gets, as vLLM takes it from the list."""
    from vllm.platforms import current_platform
    from vllm.utils import cpu_resource_utils
    from vllm.v1.engine.utils import get_physical_gpu_ids_for_local_dp_rank

    monkeypatch.setattr(cpu_resource_utils, "get_visible_memory_node", lambda: nodes)
    parallel = SimpleNamespace(data_parallel_size_local=num_ranks, assigned_physical_gpu_ids=given)
    for _ in range(2):
        rank_cores.share_memory_nodes(SimpleNamespace(parallel_config=parallel))
    variable, ids = current_platform.device_control_env_var, parallel.assigned_physical_gpu_ids
    return [
        get_physical_gpu_ids_for_local_dp_rank(variable, rank, 1, user_assigned_gpu_ids=ids)
        for rank in range(num_ranks)
    ]


@pytest.mark.parametrize(("num_nodes", "num_ranks"), product((1, 2, 3, 4), (1, 2, 3, 5)))
def test_every_rank_has_a_memory_node_that_exists(monkeypatch, num_nodes, num_ranks):
    monkeypatch.delenv("CPU_VISIBLE_MEMORY_NODES", raising=False)
    found = assigned_nodes(monkeypatch, list(range(num_nodes)), num_ranks)
    assert found == [[rank % num_nodes] for rank in range(num_ranks)]


def test_nodes_that_a_user_chose_stay(monkeypatch):
    assert assigned_nodes(monkeypatch, [0], 2, given=[3, 2]) == [[3], [2]]

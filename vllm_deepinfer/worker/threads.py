"""Gives a forked worker the threads that vLLM meant for it.

vLLM binds a CPU worker by setting OpenMP's environment variables around its start. OpenMP reads
them when it is loaded, which in a forked worker was long ago, in the parent: the worker would run
as many threads as the machine has cores, anywhere, against the engine and the API server. (Measured
on two busy cores: 1 to 3 tokens/s instead of 40.)
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Binding:
    """What vLLM decided for one worker: None where it decided nothing.

    num_threads: OpenMP threads.
    cpu_ids: logical CPUs to run on.
    """

    num_threads: int | None
    cpu_ids: frozenset[int] | None


# The three forms in which vLLM writes a list of CPUs, one for each OpenMP library.
_CPU_LISTS = (
    ("GOMP_CPU_AFFINITY", re.compile(r"^(\d+(?: \d+)*)$")),
    ("KMP_AFFINITY", re.compile(r"^granularity=fine,explicit,proclist=\[(\d+(?:,\d+)*)\]$")),
    ("OMP_PLACES", re.compile(r"^\{(\d+(?:,\d+)*)\}$")),
)


def read_binding(environ: Mapping[str, str]) -> Binding:
    """The binding in a worker's environment.

    Lists of CPUs in other forms are a user's: OpenMP applied them in the parent already.
    """
    threads = environ.get("OMP_NUM_THREADS", "")
    for name, form in _CPU_LISTS:
        match = form.match(environ.get(name, ""))
        if match is not None:
            cpu_ids = frozenset(int(number) for number in re.findall(r"\d+", match[1]))
            break
    else:
        cpu_ids = None
    return Binding(int(threads) if threads.isdigit() else None, cpu_ids)


def apply_binding(binding: Binding) -> None:
    """Binds this process. In a spawned worker, where OpenMP has done so, it changes nothing.

    Raises:
        OSError: none of the CPUs may be used by this process.
    """
    if binding.cpu_ids is not None:
        os.sched_setaffinity(0, binding.cpu_ids)
    if binding.num_threads is not None:
        torch.set_num_threads(binding.num_threads)

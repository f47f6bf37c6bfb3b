"""A forked worker neither hangs nor runs on other threads than vLLM gave it.

Claim: a process that has run multi-threaded torch can fork a child that does the same (without our
handler it waits forever, which is shown too), and a forked worker takes thread count and CPUs from
the variables vLLM sets around its start. If this breaks, `LLM(...)` after any torch computation
never returns, or a server decodes at a tenth of its speed.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from vllm_deepinfer.platforms.fork_safety import loaded_openmp_libraries
from vllm_deepinfer.worker.threads import Binding, read_binding

FORK = """
import multiprocessing, sys, torch
from vllm_deepinfer.platforms import fork_safety

def work():
    torch.exp(torch.randn(2000, 2000))

torch.set_num_threads(2)
work()
if sys.argv[1] == "safe":
    fork_safety.install()
child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join(float(sys.argv[2]))
print("hangs" if child.is_alive() else f"ends {child.exitcode}")
child.kill()
child.join()
work()
"""

BIND = """
import multiprocessing, os, torch
from vllm_deepinfer.worker import threads

def child(queue):
    threads.apply_binding(threads.read_binding(os.environ))
    queue.put((torch.get_num_threads(), sorted(os.sched_getaffinity(0))))

torch.set_num_threads(2)
context = multiprocessing.get_context("fork")
queue = context.Queue()
os.environ.update(OMP_NUM_THREADS="1", GOMP_CPU_AFFINITY=str(min(os.sched_getaffinity(0))))
process = context.Process(target=child, args=(queue,))
process.start()
print(queue.get(timeout=60))
process.join()
"""


def run(code, *arguments):
    environ = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environ
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.skipif(os.cpu_count() == 1, reason="one core runs no parallel region")
@pytest.mark.parametrize(
    ("mode", "timeout_s", "outcome"), [("safe", "60", "ends 0"), ("unsafe", "3", "hangs")]
)
def test_a_fork_after_parallel_work_computes(mode, timeout_s, outcome):
    assert run(FORK, mode, timeout_s) == outcome


def test_a_forked_worker_takes_its_binding():
    assert run(BIND) == str((1, [min(os.sched_getaffinity(0))]))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Binding(None, None)),
        ({"OMP_NUM_THREADS": "3"}, Binding(3, None)),
        ({"OMP_NUM_THREADS": "4,2"}, Binding(None, None)),
        ({"GOMP_CPU_AFFINITY": "4 5 6"}, Binding(None, frozenset({4, 5, 6}))),
        ({"GOMP_CPU_AFFINITY": "0-3:2"}, Binding(None, None)),
        (
            {"KMP_AFFINITY": "granularity=fine,explicit,proclist=[0,2]"},
            Binding(None, frozenset({0, 2})),
        ),
        ({"OMP_PLACES": "{7}", "OMP_NUM_THREADS": "1"}, Binding(1, frozenset({7}))),
        ({"OMP_PLACES": "cores"}, Binding(None, None)),
    ],
    ids=str,
)
def test_binding_is_read_in_each_form_vllm_writes(environ, expected):
    assert read_binding(environ) == expected


def test_openmp_libraries_are_found_once():
    maps = (
        "7f00-7f10 r--p 0 fe:00 1   /v/torch/lib/libgomp.so.1\n"
        "7f10-7f20 r-xp 0 fe:00 1   /v/torch/lib/libgomp.so.1\n"
        "7f20-7f30 r-xp 0 fe:00 2   /v/other.libs/libgomp-a34b3233.so.1.0.0\n"
        "7f30-7f40 r-xp 0 fe:00 3   /v/libiomp5.so\n"
        "7f40-7f50 rw-p 0 00:00 0   [heap]\n"
    )
    assert loaded_openmp_libraries(maps) == [
        "/v/other.libs/libgomp-a34b3233.so.1.0.0",
        "/v/torch/lib/libgomp.so.1",
    ]

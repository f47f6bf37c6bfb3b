"""Kernels on two threads give the right answer from several callers at once, and after a fork.

If this fails, a forked worker hangs in its first step, or two Python threads spoil each other's
results.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from kernels.quantised_operands import activations, fp8_weight

from vllm_deepinfer.ops.linear import fp8_linear

FORK = """
import os, torch
from vllm_deepinfer.ops.linear import plain_linear
torch.set_num_threads(2)
x, weight = torch.randn(64, 512).bfloat16(), torch.randn(512, 512).bfloat16()
wanted = plain_linear(x, weight)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(plain_linear(x, weight), wanted) else 1)
assert os.waitpid(child, 0)[1] == 0
assert torch.equal(plain_linear(x, weight), wanted)
"""


def test_a_forked_process_has_threads_of_its_own():
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=60)


TIED = """
import os, torch, threading
from vllm_deepinfer.ops.linear import plain_linear
torch.set_num_threads(2)
x, weight = torch.randn(64, 512).bfloat16(), torch.randn(512, 512).bfloat16()
all_processors = sorted(os.sched_getaffinity(0))
waiting = threading.Event()
threading.Thread(target=waiting.wait, daemon=True).start()  # has all of the processors
os.sched_setaffinity(0, all_processors[:1])
known = set(os.listdir("/proc/self/task"))
plain_linear(x, weight)
(worker,) = set(os.listdir("/proc/self/task")) - known
assert sorted(os.sched_getaffinity(int(worker))) == all_processors
assert sorted(os.sched_getaffinity(0)) == all_processors[:1]
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="one processor")
def test_a_worker_is_not_crowded_onto_the_processor_of_a_tied_thread():
    """OpenMP ties the main thread to one processor; two threads there are slower than one."""
    subprocess.run([sys.executable, "-c", TIED], check=True, timeout=60)


def test_callers_do_not_disturb_each_other(two_threads):
    weight, scale = fp8_weight(768, 512)
    inputs = [activations(rows, 512, "codes") for rows in (3, 20, 64, 100)]
    wanted = [fp8_linear(*x, weight, scale, torch.float32) for x in inputs]

    def repeat(number):
        results = [fp8_linear(*inputs[number], weight, scale, torch.float32) for _ in range(40)]
        return all(torch.equal(result, wanted[number]) for result in results)

    with ThreadPoolExecutor(4) as callers:
        assert all(callers.map(repeat, range(4)))

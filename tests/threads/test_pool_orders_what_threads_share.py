"""The pool of threads has no data race by C++'s memory model, which is that of ARM's hardware, too.

Claim: every word that orders memory in the pool is needed, and they are enough, for several callers
at once, for workers that spin or sleep, for parts that throw, and after a fork. x86 orders memory
more strictly than asked, so that no test there shows a missing word; the sanitizer does. If this
fails, an ARM host computes with half-written rows now and then.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from threads.sanitizer import assert_no_race, assert_race, compiler, run

REPOSITORY = Path(__file__).resolve().parents[2]
KERNELS = REPOSITORY / "csrc" / "kernels"
# Orders that the pool asks for; each stands there once.
ORDERS = {
    "a job is published": "generation_.fetch_add(1, std::memory_order_release)",
    "a spinning worker reads a job": "if (generation_.load(std::memory_order_acquire) != seen) r",
    "results are published": "pending_.fetch_sub(1, std::memory_order_acq_rel)",
    "a spinning caller reads results": "if (pending_.load(std::memory_order_acquire) == 0) return;",
}


def compiled(pool: Path, folder: Path) -> Path:
    """The program over the pool in a file."""
    program = folder / "hammer"
    hammer = Path(__file__).with_name("hammer.cpp")
    flags = ("-std=c++17", "-O1", "-g", "-fsanitize=thread", f"-I{KERNELS}")
    subprocess.run([compiler(), *flags, hammer, pool, "-o", program, "-lpthread"], check=True)
    return program


@pytest.fixture(scope="module")
def hammer(tmp_path_factory) -> Path:
    return compiled(KERNELS / "thread_pool.cpp", tmp_path_factory.mktemp("pool"))


@pytest.mark.parametrize("what", ["callers", "sleepers", "failures", "forks"])
def test_nothing_is_reported(hammer, what):
    assert_no_race(run(hammer, what))


def test_memory_that_nothing_guards_is_reported(hammer):
    assert_race(run(hammer, "unguarded"))


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_left_out_is_reported(order, tmp_path):
    text, source = ORDERS[order], (KERNELS / "thread_pool.cpp").read_text()
    assert source.count(text) == 1, f"{text!r} stands in the pool {source.count(text)} times"
    pool = tmp_path / "thread_pool.cpp"
    relaxed = re.sub("memory_order_[a-z_]+", "memory_order_relaxed", text)
    pool.write_text(source.replace(text, relaxed))
    assert_race(run(compiled(pool, tmp_path), "callers"))

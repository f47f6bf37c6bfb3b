"""Kernels called from several Python threads at once share no memory that they write.

Claim: all calls recorded for ARM64, made by three threads at once over the pool, give what is
recorded, and the thread sanitizer reports no race: neither in the pool nor in the memory that a
thread keeps between calls. If this fails, two engines in one process spoil each other's results,
and on ARM sooner than on x86.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from threads.sanitizer import assert_no_race, compiler, run

TESTS = Path(__file__).resolve().parents[1]
EXTENSIONS = Path(os.environ["TSAN_EXTENSIONS"])
WATCHED = b"__tsan_write8"  # what instrumented stores call


def test_the_kernels_are_watched():
    (built,) = EXTENSIONS.glob("_kernels*.so")
    assert WATCHED in built.read_bytes()


@pytest.fixture(scope="module")
def replayed(tmp_path_factory):
    result = tmp_path_factory.mktemp("threads") / "result.json"
    library = subprocess.run(
        [compiler(), "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    ran = run(
        sys.executable, "-m", "aarch64.replay",
        "--extensions", EXTENSIONS,
        "--cases", os.environ["TSAN_CASES"],
        "--result", result,
        "--threads", "3",
        LD_PRELOAD=library,
        PYTHONPATH=str(TESTS),
        OPENBLAS_NUM_THREADS="1",
    )  # fmt: skip
    return ran, result


def test_no_race_is_reported(replayed):
    assert_no_race(replayed[0])


def test_every_call_gave_what_it_gives_alone(replayed):
    tally = json.loads(replayed[1].read_text())
    assert tally["calls"] and not tally["different"], tally["told"]

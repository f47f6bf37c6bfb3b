"""Kernels called from several Python threads at once share no memory that they write.

Claim: all calls recorded for ARM64, made by three threads at once over the pool, give what is
recorded, and the thread sanitizer reports no race: neither in the pool nor in the memory that a
thread keeps between calls. If this fails, two engines in one process spoil each other's results,
and on ARM sooner than on x86.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from aarch64.cross_build import extensions
from threads.sanitizer import assert_no_race, assert_race, compiler, run

REPOSITORY = Path(__file__).resolve().parents[2]
EXTENSIONS = Path(os.environ["TSAN_EXTENSIONS"])
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
WATCHED = b"__tsan_write8"  # what instrumented stores call
OWN_MEMORY = "static thread_local Workspace decoded, products;"


def replay(folder: Path, result: Path) -> subprocess.CompletedProcess[str]:
    """All recorded calls, from three threads, with the extensions of a folder."""
    library = subprocess.run(
        [compiler(), "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return run(
        sys.executable, "-m", "aarch64.replay",
        "--extensions", folder,
        "--cases", os.environ["TSAN_CASES"],
        "--result", result,
        "--threads", "3",
        LD_PRELOAD=library,
        PYTHONPATH=str(REPOSITORY / "tests"),
        OPENBLAS_NUM_THREADS="1",
    )  # fmt: skip


@pytest.fixture(scope="module")
def replayed(tmp_path_factory):
    result = tmp_path_factory.mktemp("threads") / "result.json"
    return replay(EXTENSIONS, result), result


def test_the_kernels_are_watched():
    assert WATCHED in (EXTENSIONS / f"_kernels{SUFFIX}").read_bytes()


def test_no_race_is_reported(replayed):
    assert_no_race(replayed[0])


def test_every_call_gave_what_it_gives_alone(replayed):
    tally = json.loads(replayed[1].read_text())
    assert tally["calls"] and not tally["different"], tally["told"]


def test_memory_that_threads_share_is_reported(tmp_path):
    """Linear layers decode into memory of their thread; here, into memory of all threads."""
    (kernels,) = (e for e in extensions() if e.name.endswith("._kernels"))
    shutil.copytree(REPOSITORY / "csrc", tmp_path / "csrc")
    source = tmp_path / "csrc" / "kernels" / "bind_linear.cpp"
    text = source.read_text()
    assert text.count(OWN_MEMORY) == 1
    source.write_text(text.replace(OWN_MEMORY, OWN_MEMORY.replace("thread_local ", "")))
    objects = [EXTENSIONS.parent / "objects" / Path(s).with_suffix(".o") for s in kernels.sources]
    others = [o for o in objects if o.stem != source.stem]
    include = f"-I{sysconfig.get_path('include')}"
    flags = [*kernels.extra_compile_args, "-fsanitize=thread", "-fPIC", "-g", include]
    target = tmp_path / "vllm_deepinfer"
    shutil.copytree(EXTENSIONS, target)
    subprocess.run(
        [compiler(), "-shared", *flags, source, *others, "-o", target / f"_kernels{SUFFIX}"],
        check=True,
    )
    ran = replay(target, tmp_path / "result.json")
    assert_race(ran)
    assert source.name in ran.stderr

"""Makes it safe to fork a process that has computed with torch.

GNU OpenMP keeps its threads between parallel regions. A forked child inherits the record of them
but not the threads, and waits for them forever in its first parallel region. OpenMP 5.0's
omp_pause_resource_all ends the threads; they start again where they are next needed.
"""

from __future__ import annotations

import ctypes
import os
import re
from functools import cache
from pathlib import Path

from vllm_deepinfer.log import get_logger, warn_once

logger = get_logger(__name__)
_PAUSE_HARD = 2
_MAPS = Path("/proc/self/maps")


def loaded_openmp_libraries(maps: str) -> list[str]:
    """Paths of the GNU OpenMP libraries in the text of a /proc/PID/maps, sorted, each once."""
    return sorted(set(re.findall(r"(/\S*/libgomp[^/\s]*\.so[.\d]*)$", maps, re.MULTILINE)))


def release_openmp_threads() -> None:
    """Ends the OpenMP threads that the calling thread keeps; does nothing where there are none."""
    for path in loaded_openmp_libraries(_MAPS.read_text()):
        status = ctypes.CDLL(path).omp_pause_resource_all(_PAUSE_HARD)
        if status != 0:
            warn_once(
                logger,
                f"omp_pause_resource_all of {path} returned {status}: a worker process forked now "
                f"may hang. Set VLLM_WORKER_MULTIPROC_METHOD=spawn.",
            )


@cache
def install() -> None:
    """Releases the threads before every fork from now on."""
    os.register_at_fork(before=release_openmp_threads)

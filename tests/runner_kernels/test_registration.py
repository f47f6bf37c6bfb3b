"""Without Triton the V2 runner's modules import, launch torch kernels and refuse the others.

Claim: in a process where Triton cannot be imported, every module of the runner imports, upstream's
own wrappers reach the torch forms (with launch options and with the launch grid), registering twice
is harmless, and a kernel without a torch form raises a sentence naming it. If this breaks, serving
on a CPU fails at start or with an obscure TypeError.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("without_triton.py")


def test_kernels_work_in_a_process_without_triton():
    # VLLM_PLUGINS empty: the stock CPU platform, whatever else is installed.
    environment = {**os.environ, "VLLM_PLUGINS": "", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    finished = subprocess.run(
        [sys.executable, SCRIPT], env=environment, capture_output=True, text=True, timeout=300
    )
    assert finished.returncode == 0, finished.stderr[-4000:]

"""Puts a released vLLM wheel into a folder without its binaries, to be read and to be run.

    python packaging/fetch_vllm_source.py 0.33.0 .cache/vllm-0.33.0-src
    PYTHONPATH=.cache/vllm-0.33.0-src DEEPINFER_PLATFORM=cpu vllm serve ...

The wheel (336 MB for 0.33.0) is downloaded by pip into a temporary folder. The Python files, the
data they read and the distribution's metadata are kept, about 60 MB. The binaries are for CUDA:
vLLM 0.33 has no CPU build. The CPU platform does without (`platforms/cpu_operations.py`).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# Python, tables of kernels and models, chat templates, the browser's pages, scripts.
DATA_SUFFIXES = (".py", ".json", ".jinja", ".js", ".css", ".sh", ".typed")


def is_kept(name: str) -> bool:
    """Whether a wheel's file is neither a binary nor source of one; metadata is kept whole."""
    return name.split("/")[0].endswith(".dist-info") or name.endswith(DATA_SUFFIXES)


def fetch(version: str, destination: Path) -> int:
    """Downloads and unpacks `vllm==version`; gives the number of files written.

    The destination appears only when it is complete.

    Raises:
        subprocess.CalledProcessError: pip could not download the wheel; its output says why.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent) as scratch_name:
        scratch = Path(scratch_name)
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
            + ["--no-cache-dir", "--dest", str(scratch), f"vllm=={version}"],
            check=True,
        )
        (wheel,) = scratch.glob("vllm-*.whl")
        unpacked = scratch / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if is_kept(name)]
            archive.extractall(unpacked, names)
        shutil.rmtree(destination, ignore_errors=True)
        unpacked.rename(destination)
    return len(names)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(f"{fetch(sys.argv[1], Path(sys.argv[2]))} files in {sys.argv[2]}")

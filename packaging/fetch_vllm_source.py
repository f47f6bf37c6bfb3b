"""Puts the Python files of a released vLLM wheel into a folder, for the contract test.

    python packaging/fetch_vllm_source.py 0.33.0 .cache/vllm-0.33.0-src

The wheel (336 MB for 0.33.0) is downloaded by pip into a temporary folder, of which about 40 MB of
Python files are kept. vLLM 0.33 itself has no CPU build, so its source is read, not run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


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
            names = [n for n in archive.namelist() if n.startswith("vllm/") and n.endswith(".py")]
            archive.extractall(unpacked, names)
        shutil.rmtree(destination, ignore_errors=True)
        unpacked.rename(destination)
    return len(names)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(f"{fetch(sys.argv[1], Path(sys.argv[2]))} files in {sys.argv[2]}")

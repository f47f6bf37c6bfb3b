"""``vllm-deepinfer doctor``: would this machine serve this model with these options?"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from typing import Any

from vllm_deepinfer.envs import PLATFORM_CHOICES

CANNOT_SERVE = 1

# What this parser does not know is for vLLM's, in the order it was given.
TAKES_UNKNOWN_ARGUMENTS = True


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "doctor",
        help="check this machine, and a model with the flags of `vllm serve`",
        usage="vllm-deepinfer doctor [MODEL] [flags of vllm serve] [--platform NAME] "
        "[--device-memory-gib N] [--json]",
        description="Print the platform, versions, other plugins and, for a model and the flags "
        "that `vllm serve` would be given, what is on, what is refused and where memory goes. "
        "MODEL is a folder (its config.json is enough), a name that vLLM takes, or one of the "
        "presets published and tiny. Exit code 1 if this cannot serve, or if "
        "the options could not be checked.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--platform",
        choices=[name for name in PLATFORM_CHOICES if name != "off"],
        help="check the options for this platform instead of this machine's",
    )
    parser.add_argument(
        "--device-memory-gib",
        type=float,
        metavar="N",
        help="memory of each accelerator, to see whether a rank fits",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    # vLLM would log to standard output, which belongs to the report; its warnings are part of that.
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
    with contextlib.redirect_stdout(sys.stderr):
        from vllm_deepinfer.doctor.diagnose import diagnose

        device_gib = args.device_memory_gib
        device_bytes = None if device_gib is None else int(device_gib * (1 << 30))
        document = diagnose(args.unknown_arguments, args.platform, device_bytes)
    if args.json:
        print(json.dumps(document, indent=2, default=str))
    else:
        from vllm_deepinfer.doctor.report import text

        print(text(document))
    return 0 if document["ok"] else CANNOT_SERVE

"""The command ``vllm-deepinfer``.

Each sub-command is a module here with ``add_parser(subparsers)`` and ``run(args) -> int``. Modules
import nothing heavy until they run, so that ``--help`` is immediate. One that sets
``TAKES_UNKNOWN_ARGUMENTS`` finds what its parser does not know in ``args.unknown_arguments``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from vllm_deepinfer import __version__
from vllm_deepinfer.cli.errors import CommandError

COMMANDS = (
    "calibrate",
    "doctor",
    "install_vllm",
    "make_checkpoint",
    "schema",
    "selfcheck",
    "simulate",
)

USAGE_ERROR = 2  # argparse's own
INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command and return its exit code; 2 means that it could not do its work."""
    parser = argparse.ArgumentParser(
        prog="vllm-deepinfer", description="Tools for serving DeepSeek-V4.1-Flash with vLLM."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        module = import_module(f"{__name__}.{command}")
        module.add_parser(subparsers).set_defaults(run=module.run)
    args, unknown = parser.parse_known_args(argv)
    if getattr(sys.modules[args.run.__module__], "TAKES_UNKNOWN_ARGUMENTS", False):
        args.unknown_arguments = unknown
    elif unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        return args.run(args)
    except CommandError as error:
        print(f"vllm-deepinfer: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("vllm-deepinfer: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0

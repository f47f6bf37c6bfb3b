"""``vllm-deepinfer schema``: what a checkpoint of a configuration contains."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from vllm_deepinfer.cli.errors import CommandError
from vllm_deepinfer.models.deepseek_v41.presets import PRESETS, preset


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "schema",
        help="print every tensor of a checkpoint",
        description="Print name, dtype, shape and bytes of every tensor, then the totals.",
    )
    parser.add_argument(
        "config",
        nargs="?",
        default="published",
        metavar="CONFIG",
        help=f"a preset ({', '.join(PRESETS)}), a config.json or its folder; default: published",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    content = read_config(args.config)

    from vllm_deepinfer.models.deepseek_v41.config import ConfigError, V41Config
    from vllm_deepinfer.models.deepseek_v41.schema import DTYPE_NAMES, schema, total_bytes

    try:
        tensors = schema(V41Config.from_dict(content))
    except ConfigError as error:
        raise CommandError(f"{args.config}: {error}") from error
    width = max(len(name) for name in tensors)
    for spec in tensors.values():
        shape = str(list(spec.shape))
        row = f"{spec.name:<{width}}  {DTYPE_NAMES[spec.dtype]:<7}  {shape:<16}  {spec.num_bytes}"
        sys.stdout.write(row + "\n")
    print(f"{len(tensors)} tensors, {total_bytes(tensors.values())} bytes")
    sys.stdout.flush()
    return 0


def read_config(argument: str) -> dict[str, Any]:
    """Return the content of the ``config.json`` that a preset name or a path stands for.

    Raises:
        CommandError: there is none, or it is not JSON.
    """
    if argument in PRESETS:
        return preset(argument)
    path = Path(argument)
    if path.is_dir():
        path /= "config.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CommandError(
            f"{path} does not exist; give a config.json, a folder with one, or a preset "
            f"({', '.join(PRESETS)})"
        ) from None
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CommandError(f"{path} is not JSON: {error}") from error

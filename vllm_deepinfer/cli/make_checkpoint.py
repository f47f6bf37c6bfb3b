"""``vllm-deepinfer make-checkpoint``: a small random model in the published layout."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from vllm_deepinfer.cli.errors import CommandError

if TYPE_CHECKING:
    from vllm_deepinfer.checkpoint_maker.maker import Progress

BYTES_PER_MB = 1_000_000


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "make-checkpoint",
        help="write a small random model",
        description="Write a model with random weights and every kind of layer, in the published "
        "on-disk format. The same seed gives the same bytes.",
    )
    parser.add_argument("folder", metavar="DIR", help="where to write; must be empty or absent")
    parser.add_argument("--preset", required=True, choices=["tiny"], help="which model")
    parser.add_argument("--seed", type=int, default=0, help="chooses the weights; default: 0")
    parser.add_argument(
        "--force",
        action="store_true",
        help="replace a checkpoint in DIR; files that are no part of a checkpoint stay",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    from safetensors import SafetensorError

    from vllm_deepinfer.checkpoint_maker.maker import FolderNotEmptyError, make_tiny_checkpoint

    try:
        made = make_tiny_checkpoint(args.folder, args.seed, args.force, _show)
    except FolderNotEmptyError as error:
        raise CommandError(str(error)) from error
    except (OSError, SafetensorError) as error:  # the latter for a full disk, too
        raise CommandError(f"{args.folder} cannot be written: {error}") from error
    print(
        f"{args.folder}: {made.num_tensors} tensors, {made.num_bytes} bytes in "
        f"{made.num_shards} shards, seed {args.seed}"
    )
    return 0


def _show(progress: Progress) -> None:
    print(
        f"shard {progress.shards} of {progress.num_shards}: "
        f"{progress.tensors} of {progress.num_tensors} tensors, "
        f"{progress.bytes / BYTES_PER_MB:.1f} of {progress.num_bytes / BYTES_PER_MB:.1f} MB",
        file=sys.stderr,
    )

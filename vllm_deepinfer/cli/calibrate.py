"""``vllm-deepinfer calibrate``: make draft confidences mean what they say."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_deepinfer.cli.errors import CommandError

if TYPE_CHECKING:
    from vllm_deepinfer.drafting.fit import CalibrationErrors, PositionFit
    from vllm_deepinfer.drafting.records import DraftRecords

# The standard error of a temperature is then about 7 % for logits of the usual spread.
DEFAULT_MIN_SAMPLES = 500


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "calibrate",
        help="fit draft confidences to recorded acceptances",
        description="Fit one temperature per position of the draft block, so that a confidence is "
        "the probability that the draft survives given that those before it did. ECE is the "
        "expected calibration error; noise is the ECE that exact probabilities would show on as "
        "many samples; survival is the product of the confidences up to a position.",
    )
    parser.add_argument(
        "records",
        type=Path,
        metavar="RECORDS.jsonl",
        help='one draft block a line: {"confidence_logits": [..], "offered": n, "accepted": m}',
    )
    parser.add_argument(
        "--checkpoint", type=Path, required=True, metavar="DIR", help="what the drafts came from"
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="the calibration to write"
    )
    parser.add_argument(
        "--min-samples",
        type=int,
        default=DEFAULT_MIN_SAMPLES,
        metavar="N",
        help="blocks a position needs; with fewer it stays at temperature 1 and is said to be not "
        f"fitted; default: {DEFAULT_MIN_SAMPLES}",
    )
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    return parser


def run(args: argparse.Namespace) -> int:
    _check_arguments(args)

    from vllm_deepinfer.drafting.calibration import save_calibration
    from vllm_deepinfer.drafting.fit import calibration_of, fit_positions

    identity, block_size = _read_checkpoint(args.checkpoint)
    records = _read(args.records)
    if records.block_size > block_size:
        raise CommandError(
            f"{args.records} has {records.block_size} confidence_logits a block; "
            f"{args.checkpoint} drafts at most {block_size}, so it is not where they came from"
        )
    fits = fit_positions(records, args.min_samples)
    print(f"{len(records)} blocks of {records.block_size} drafts")
    _print_table(fits)
    if not any(fit.fitted for fit in fits):
        raise CommandError(f"no position could be fitted; {args.output} was not written")
    rows = [fit.as_row(position) for position, fit in enumerate(fits)]
    try:
        save_calibration(args.output, calibration_of(fits), identity, rows)
    except OSError as error:
        raise CommandError(f"{args.output} cannot be written: {error.strerror}") from error
    for position, fit in enumerate(fits):
        if not fit.fitted:
            print(
                f"position {position} is not fitted and stays at temperature 1: {fit.problem}",
                file=sys.stderr,
            )
    print(f"{args.output}: written for checkpoint {identity}")
    return 0


def _check_arguments(args: argparse.Namespace) -> None:
    if args.min_samples < 1:
        raise CommandError(f"--min-samples {args.min_samples} is not allowed; give at least 1")
    if not args.records.is_file():
        raise CommandError(f"{args.records} does not exist; see --help for what to give")
    if not (args.checkpoint / "config.json").is_file():
        raise CommandError(f"{args.checkpoint / 'config.json'} does not exist; see --help")
    if args.output.is_dir():
        raise CommandError(f"{args.output} is a folder; give a file to write")
    if args.output.exists() and not args.force:
        raise CommandError(f"{args.output} exists; give --force to replace it")
    if args.output.exists() and args.output.samefile(args.records):
        raise CommandError(f"{args.output} holds the records; give another --output")
    if not args.output.parent.is_dir():
        raise CommandError(f"{args.output.parent} is not a folder; make it or give another")


def _read_checkpoint(folder: Path) -> tuple[str, int]:
    """Identity and largest draft block of a checkpoint."""
    from vllm_deepinfer.cli.schema import read_config
    from vllm_deepinfer.drafting.calibration import CalibrationError
    from vllm_deepinfer.drafting.checkpoint_identity import checkpoint_identity
    from vllm_deepinfer.models.deepseek_v41.checkpoint_files import CheckpointFilesError
    from vllm_deepinfer.models.deepseek_v41.config import ConfigError, V41Config

    try:
        config = V41Config.from_dict(read_config(str(folder / "config.json")))
        return checkpoint_identity(folder), config.dspark_block_size
    except (CalibrationError, CheckpointFilesError) as error:
        raise CommandError(str(error)) from error
    except ConfigError as error:
        raise CommandError(f"{folder}: {error}") from error


def _read(path: Path) -> DraftRecords:
    from vllm_deepinfer.drafting.records import RecordError, read_records

    try:
        with path.open("rb") as lines:
            return read_records(lines)
    except RecordError as error:
        raise CommandError(f"{path}: {error}") from error
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from error


def _print_table(fits: list[PositionFit]) -> None:
    print("position  samples  accepted  temperature  ECE before -> after (noise)  survival ECE")
    for position, fit in enumerate(fits):
        temperature = f"{fit.temperature:.4f}" if fit.fitted else "not fitted"
        print(
            f"{position:>8}  {fit.samples:>7}  {fit.accepted:>8}  {temperature:>11}  "
            f"{_show(fit.conditional):>27}  {_show(fit.survival)}"
        )


def _show(errors: CalibrationErrors) -> str:
    if errors.before is None or errors.after is None or errors.noise is None:
        return "no samples"
    return f"{errors.before:.2%} -> {errors.after:.2%} ({errors.noise:.2%})"

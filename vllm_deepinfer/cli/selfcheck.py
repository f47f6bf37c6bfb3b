"""``vllm-deepinfer selfcheck``: does the model compute here what it computed elsewhere?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vllm_deepinfer.cli.errors import CommandError

MISSED = 1


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "selfcheck",
        help="compare a checkpoint's outputs on this machine with recorded ones",
        description="Run a checkpoint in every mode of a recording and print one line per compared "
        "quantity: its value, the bound and the verdict. Exit code 1 if any bound is missed.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="checkpoint folder")
    parser.add_argument("golden", type=Path, metavar="GOLDEN.json", help="recorded outputs")
    return parser


def run(args: argparse.Namespace) -> int:
    for path in (args.folder / "config.json", args.golden):
        if not path.is_file():
            raise CommandError(f"{path} does not exist; see --help for what to give")

    import torch

    from vllm_deepinfer.models.deepseek_v41.checkpoint_files import CheckpointFilesError
    from vllm_deepinfer.models.deepseek_v41.config import ConfigError
    from vllm_deepinfer.models.deepseek_v41.weight_problems import WeightsError
    from vllm_deepinfer.selfcheck.compare import check
    from vllm_deepinfer.selfcheck.golden import Golden, GoldenError

    try:
        golden = Golden.read(args.golden, args.folder)
        print(f"platform: CPU reference, torch {torch.__version__}")
        print(f"prompt: {len(golden.prompt)} tokens")
        passed = True
        for report in check(args.folder, golden):
            print(f"\n{report.mode} ({report.num_ties} exact ties at the edge of a selection)")
            for finding in report.findings:
                print(f"  {finding}")
            passed &= report.passed
    except (GoldenError, ConfigError, CheckpointFilesError, WeightsError, ValueError) as error:
        raise CommandError(str(error)) from error
    print("\npassed" if passed else "\nFAILED")
    return 0 if passed else MISSED

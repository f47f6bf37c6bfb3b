"""How long the simulator takes for 64 ranks of 256 sequences and 10,000 steps.

    python benchmarks/simulator.py [--json] [--out FILE]

Closed load, so that every slot is taken at every step, with the vote on. CPU seconds of this
process count, the wall clock's are beside them. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from machine import describe_machine, load_average
from publish import publish

from vllm_deepinfer.simulator import Simulation, scenario_from

FORMAT_VERSION = 1
VERIFICATIONS = ("none", "fixed", "adaptive")
_ROW = "{:<14} {:>10} {:>10} {:>14} {:>18}"


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON to FILE as well")
    for name, value in {"ranks": 64, "sequences": 256, "steps": 10_000, "drafts": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default: {value}")
    args = parser.parse_args(argv)
    for name in ("ranks", "sequences", "steps", "drafts"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} is {getattr(args, name)}; it must be >= 1")
    return args


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run every kind of verification once and return the times."""
    began = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "benchmark": "simulator",
        "format": FORMAT_VERSION,
        "began": began,
        "machine": describe_machine(),
        "settings": {name: getattr(args, name) for name in ("ranks", "sequences", "steps")}
        | {"drafts": args.drafts},
        "runs": [measure(args, verification) for verification in VERIFICATIONS],
    }


def measure(args: argparse.Namespace, verification: str) -> dict[str, Any]:
    options = {
        "ranks": args.ranks,
        "sequences": args.sequences,
        "steps": args.steps,
        "vote": "cadence",
        "any_interval": 10,
        "all_interval": 10,
        "trace": "closed",
        "concurrency": args.ranks * args.sequences,
        "prompt_tokens": 512,
        "output_tokens": 1024,
        "length_spread": 0.5,
    }
    if verification != "none":
        options |= {"verification": verification, "drafts": args.drafts}
    simulation = Simulation(scenario_from(options))
    load, wall, cpu = load_average(), time.perf_counter(), time.process_time()
    summary = simulation.run().summary()
    return {
        "verification": verification,
        "cpu_seconds": time.process_time() - cpu,
        "wall_seconds": time.perf_counter() - wall,
        "load_average_before": load,
        "simulated_seconds": summary["seconds"],
        "requests_finished": summary["requests"]["finished"],
    }


def result_table(result: dict[str, Any]) -> str:
    settings = result["settings"]
    lines = [
        f"{settings['ranks']} ranks x {settings['sequences']} sequences x {settings['steps']} "
        f"steps, {settings['drafts']} drafts, {result['machine']['cpu_model']}",
        "",
        _ROW.format("verification", "CPU s", "wall s", "simulated s", "requests finished"),
    ]
    lines += [
        _ROW.format(
            run["verification"],
            f"{run['cpu_seconds']:.1f}",
            f"{run['wall_seconds']:.1f}",
            f"{run['simulated_seconds']:.0f}",
            run["requests_finished"],
        )
        for run in result["runs"]
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    options = arguments()
    publish(options, main(options), result_table)

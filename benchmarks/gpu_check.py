"""Checks on a GPU what was written without one: kernels, the tiny model, an engine, and speed.

    python benchmarks/gpu_check.py [--json] [--results DIR] [--part NAME ...] [--seconds 440]

Each part is a process of its own, since a kernel that goes astray leaves the GPU unusable to its
process, and ends in ``ok``, ``failed`` or ``not run`` with the reason. Without a GPU nothing runs.
The exit status is 1 if a part failed and 0 otherwise. Needs PyTorch and Triton of CUDA and this
repository; the part ``engine`` needs vLLM, too. ``gpu_parts.py`` says what the parts do.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

from publish import publish

PARTS = Path(__file__).with_name("gpu_parts.py")
NAMES = ("kernels", "model", "invariance", "engine", "speed")
# A share of the whole, so that one that hangs leaves time for the others.
LONGEST_SHARE = 0.4
MARK = "RESULT "


def no_gpu() -> str:
    """Why nothing can be run here, as a clause; empty if a GPU is there."""
    for module in ("torch", "triton"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed"
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no CUDA device"
    return ""


def describe_gpu() -> dict[str, Any]:
    import torch
    import triton

    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "capability": list(torch.cuda.get_device_capability(0)),
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
    }


def verdict(state: str, reason: str = "", **found: Any) -> dict[str, Any]:
    return {"state": state, "reason": reason, **found}


def run_part(name: str, timeout_s: float) -> dict[str, Any]:
    """What the part's process printed; ``failed`` if it ended otherwise."""
    begin_s = time.monotonic()
    try:
        process = subprocess.run(
            [sys.executable, str(PARTS), name],
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return verdict("failed", f"took more than {timeout_s:.0f} s")
    lines = [x for x in process.stdout.splitlines() if x.startswith(MARK)]
    if process.returncode or not lines:
        end = (process.stdout + process.stderr).splitlines()[-25:]
        found = verdict("failed", f"its process ended with {process.returncode}", log=end)
    else:
        found = json.loads(lines[-1].removeprefix(MARK))
    return {**found, "wall_s": round(time.monotonic() - begin_s, 1)}


def run(names: list[str], seconds: float) -> dict[str, Any]:
    """Every part in turn, within ``seconds`` together."""
    missing = no_gpu()
    if missing:
        return {"gpu": None, "parts": {name: verdict("not run", missing) for name in names}}
    end_s = time.monotonic() + seconds
    result: dict[str, Any] = {"gpu": describe_gpu(), "parts": {}}
    for name in names:
        left_s = end_s - time.monotonic()
        if left_s < 5:
            result["parts"][name] = verdict("not run", f"the {seconds:.0f} s were over")
        else:
            result["parts"][name] = run_part(name, min(left_s, LONGEST_SHARE * seconds))
    return result


def results_file(folder: Path | None, result: dict[str, Any]) -> Path | None:
    """A file in ``folder`` named for the GPU and the day; None where nothing ran."""
    if folder is None or result["gpu"] is None:
        return None
    name = result["gpu"]["name"].lower().replace("nvidia", "").strip().replace(" ", "-")
    return folder / f"gpu-check-{name}-{date.today().isoformat()}.json"


def table(result: dict[str, Any]) -> str:
    gpu = result["gpu"]
    lines = [
        "no GPU"
        if gpu is None
        else f"{gpu['name']} ({'.'.join(map(str, gpu['capability']))}), torch {gpu['torch']}, "
        f"Triton {gpu['triton']}"
    ]
    for name, part in result["parts"].items():
        lines.append(f"{name:<12} {part['state']:<8} {part['reason']}")
        lines += [f"    {line}" for line in part.get("log", part.get("lines", []))]
    return "\n".join(lines)


def exit_status(result: dict[str, Any]) -> int:
    return int(any(part["state"] == "failed" for part in result["parts"].values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--results", type=Path, help="keep the JSON here, where something ran")
    parser.add_argument("--part", action="append", choices=NAMES, help="only this; may be repeated")
    parser.add_argument("--seconds", type=float, default=440.0, help="time for all parts together")
    options = parser.parse_args()
    result = run(options.part or list(NAMES), options.seconds)
    options.out = results_file(options.results, result)
    publish(options, result, table)
    sys.exit(exit_status(result))


if __name__ == "__main__":
    main()

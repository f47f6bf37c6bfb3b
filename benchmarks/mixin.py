"""What the scheduler mixin adds to vLLM's scheduler: cases, the probe's settings and the table."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from child import run_probe
from mixin_probe import MEANING, MOST_PROMPT_TOKENS
from serving import show

NUM_DRAFTS = 5
MAX_MODEL_TOKENS = 1024
# Of four steps one is timed of either kind, and each may yield a whole block.
MOST_STEPS = (MAX_MODEL_TOKENS - MOST_PROMPT_TOKENS) // (4 * (NUM_DRAFTS + 1)) - 6
VOTE = {"prefill_vote": "cadence"}
ADAPTIVE = VOTE | {"verification": "adaptive"}
CASES = {
    # Every draft is right, and said to be: all are verified, so that both kinds of steps do the
    # same work.
    "adaptive_and_vote": {"drafter": {"acceptance": [1.0] * NUM_DRAFTS}, "options": ADAPTIVE},
    "adaptive_and_vote_shortening": {
        "drafter": {"acceptance": [0.9, 0.8, 0.7, 0.6, 0.5], "confidence_spread": 0.8},
        "options": ADAPTIVE,
    },
    "vote": {"drafter": None, "options": VOTE},
}
_PROBE = Path(__file__).with_name("mixin_probe.py")
_ROW = "{:<30} {:<9}" + " {:>24}" * 3 + " {:>12}"


def measure_mixin(args: argparse.Namespace) -> dict[str, Any]:
    """By case: async scheduling or not, microseconds, and shares of vLLM's ``schedule`` alone."""
    if not args.cases:
        return {}
    from vllm_deepinfer.testing.stand_in import make_stand_in

    show(f"scheduling {args.requests} requests: {', '.join(args.cases)}")
    with tempfile.TemporaryDirectory(prefix="vllm-deepinfer-benchmark-") as name:
        folder = Path(name)
        make_stand_in(folder / "model")
        settings = {
            "model": str(folder / "model"),
            "engine": {
                "max_model_len": MAX_MODEL_TOKENS,
                "max_num_seqs": args.requests,
                "max_num_batched_tokens": 4096,
                "kv_cache_memory_bytes": 256 << 20,
                "enforce_eager": True,
                "seed": args.seed,
            },
            "cases": {name: _engine_of(CASES[name]) for name in args.cases},
            "requests": args.requests,
            "steps": args.steps,
            "repeats": args.repeats,
        }
        found = run_probe(_PROBE, settings, folder, threads=1)
    return {name: _summary(case) for name, case in found.items()}


def _engine_of(case: dict[str, Any]) -> dict[str, Any]:
    engine: dict[str, Any] = {"additional_config": {"deepinfer": case["options"]}}
    if case["drafter"]:
        engine["speculative_config"] = {"method": "dspark", "num_speculative_tokens": NUM_DRAFTS}
    return {"engine": engine, "drafter": case["drafter"]}


def _summary(case: dict[str, Any]) -> dict[str, Any]:
    """Medians over the runs."""
    runs = case["runs"]
    upstream_us = [run["schedule"]["upstream_us"] for run in runs]
    shares = {
        share: [
            (run["schedule"][f"{share}_us"] + run["update"][f"{share}_us"]) / whole
            for run, whole in zip(runs, upstream_us, strict=True)
        ]
        for share in ("added", "around")
    }
    return {
        "async_scheduling": case["async_scheduling"],
        "microseconds": {
            call: {name: _spread([run[call][name] for run in runs]) for name in MEANING}
            for call in runs[0]
        },
        "share_of_schedule": {share: _spread(values) for share, values in shares.items()},
    }


def _spread(values: list[float]) -> dict[str, Any]:
    return {"median": statistics.median(values), "runs": values}


def mixin_table(measures: dict[str, Any], num_requests: int) -> list[str]:
    lines = [
        f"the scheduler mixin, {num_requests} requests, microseconds of a call, median (range of "
        "the runs' medians); both calls together as a share of upstream's schedule",
        _ROW.format("case", "call", *MEANING, "scheduling"),
    ]
    for name, entry in measures.items():
        for call, values in entry["microseconds"].items():
            lines.append(_ROW.format(name, call, *(cell(values[key]) for key in MEANING), ""))
        shares = (f"{share['median']:.1%}" for share in entry["share_of_schedule"].values())
        kind = "async" if entry["async_scheduling"] else "sync"
        lines.append(_ROW.format(name, "both", "", *shares, kind))
    return [*lines, "", *(f"{name}: {text}" for name, text in MEANING.items())]


def cell(value: dict[str, Any]) -> str:
    """A median and the range it comes from."""
    low, high = min(value["runs"]), max(value["runs"])
    return f"{value['median']:.1f} ({low:.1f}-{high:.1f})"

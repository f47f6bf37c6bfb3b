"""Measures engines in this process: `drafting_probe.py SETTINGS.json RESULT.json`.

drafting.py starts it; see `measure` for the settings.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine_probe import WARM_UP_TOKENS, Probe
from machine import load_average
from step_profile import Part, timing

STAND_IN_BLOCK = 5
DRAFT_PARTS = ("stages", "context", "confidence", "tokens and rest")


def main(engines: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Measure the engines one after the other, by name."""
    return {name: measure(settings) for name, settings in engines.items()}


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """Start an engine, measure it and shut it down.

    Args:
        settings: ``model`` (folder), ``stand_in`` (whether it is one), ``engine`` (arguments of
            ``LLM``), ``acceptances`` (to set in turn; one ``null`` leaves the drafter alone),
            ``batches``, ``repeats``, ``prompt_tokens``, ``new_tokens``, ``seed``, ``profile``
            (whether to time drafting).
    """
    from vllm import LLM

    from vllm_deepinfer.testing.stand_in import registered

    with registered() if settings["stand_in"] else nullcontext():
        llm = LLM(settings["model"], **settings["engine"])
    probe = Probe(llm, settings["seed"])
    probe.prefill(WARM_UP_TOKENS)
    load, found = load_average(), []
    for acceptance in settings["acceptances"]:
        if acceptance is not None:
            set_acceptance(llm, acceptance)
        for batch in settings["batches"]:
            arguments = {
                "batch": batch,
                "prompt_tokens": settings["prompt_tokens"],
                "new_tokens": settings["new_tokens"],
            }
            print(f"acceptance {acceptance}, batch {batch}", flush=True)
            drafted = draft_counts(llm)
            runs = [asdict(probe.decode(**arguments)) for _ in range(settings["repeats"])]
            entry = {"acceptance": acceptance, "batch": batch, "runs": runs}
            if drafted is not None:
                entry |= acceptance_found(drafted, draft_counts(llm))
            if settings["profile"]:
                entry["drafting"] = drafting_share(probe, arguments)
            found.append(entry)
    llm.llm_engine.engine_core.shutdown()
    return {"load_average_before": load, "measures": found}


def runner(llm: Any) -> Any:
    core = llm.llm_engine.engine_core.engine_core
    return core.model_executor.driver_worker.worker.model_runner


def set_acceptance(llm: Any, acceptance: float) -> None:
    """Let every draft of the stand-in be right with this chance, if those before it are."""
    from vllm_deepinfer.testing.stand_in import Settings

    runner(llm).speculator.model.settings = Settings(acceptance=(acceptance,) * STAND_IN_BLOCK)


def draft_counts(llm: Any) -> tuple[float, float, float] | None:
    """Blocks verified, drafts offered and accepted so far; ``None`` without drafting."""
    ledger = llm.llm_engine.engine_core.engine_core.scheduler.parts.ledger
    if ledger is None:
        return None
    return ledger.num_offered[0], ledger.num_offered.sum(), ledger.num_accepted.sum()


def acceptance_found(
    before: tuple[float, float, float], after: tuple[float, float, float]
) -> dict[str, float]:
    """Share of offered drafts that survived, and tokens a block yields, the bonus token counted."""
    blocks, offered, accepted = (b - a for a, b in zip(before, after, strict=True))
    return {"accepted_share": accepted / offered, "tokens_per_block": accepted / blocks + 1}


def drafting_share(probe: Probe, arguments: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds a step of drafting and of its parts, and its share of the step."""
    engine, speculator = probe.engine, runner(probe.llm).speculator
    draft = speculator.model
    wrapped = [
        Part("draft", "stages", draft, "forward"),
        Part("draft", "context", draft, "combine_hidden_states"),
        Part("draft", "context", draft, "precompute_and_store_context_kv"),
        Part("draft", "confidence", draft, "compute_confidence"),
        Part("draft", "tokens and rest", speculator, "propose"),
        Part("engine", "step", engine, "step"),
    ]
    with timing(wrapped) as timer:
        probe.on_measuring = timer.reset
        probe.decode(**arguments)
    steps = timer.calls["draft", "tokens and rest"]
    parts = {name: 1e3 * timer.seconds["draft", name] / steps for name in DRAFT_PARTS}
    step_ms = 1e3 * sum(timer.seconds.values()) / steps
    draft_ms = sum(parts.values())
    return {
        "steps": steps,
        "step_ms": step_ms,
        "draft_ms": draft_ms,
        "draft_share": draft_ms / step_ms,
        "parts_ms": parts,
    }


if __name__ == "__main__":
    source, destination = map(Path, sys.argv[1:])
    result = main(json.loads(source.read_text(encoding="utf-8")))
    destination.write_text(json.dumps(result), encoding="utf-8")

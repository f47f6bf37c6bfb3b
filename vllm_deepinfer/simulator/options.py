"""Scenarios from flat options, as a command line or a sweep names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from vllm_deepinfer.scheduler.vote import VoteError, VoteSettings
from vllm_deepinfer.simulator.acceptance import AcceptanceModel
from vllm_deepinfer.simulator.curves import MachineCurve, read_curve
from vllm_deepinfer.simulator.errors import SimulationError
from vllm_deepinfer.simulator.published import BUILT_IN, built_in_curve
from vllm_deepinfer.simulator.scenario import Scenario
from vllm_deepinfer.simulator.traffic import KINDS, Traffic, read_arrivals

VOTES = ("off", "cadence", "slo")
VOTE = tuple(field.name for field in fields(VoteSettings) if field.name != "mode")
ACCEPTANCE = tuple(field.name for field in fields(AcceptanceModel) if field.init)
_LENGTHS = ("prompt_tokens", "output_tokens", "length_spread")
_USED_BY = {
    "poisson": ("rate_per_s", *_LENGTHS),
    "bursts": ("rate_per_s", "burst_size", *_LENGTHS),
    "closed": ("concurrency", *_LENGTHS),
    "recorded": (),
}
TRAFFIC = ("rate_per_s", "burst_size", "concurrency", *_LENGTHS)
_SPECIAL = ("curve", "traffic", "acceptance", "vote")
SCENARIO = tuple(field.name for field in fields(Scenario) if field.name not in _SPECIAL)
OPTIONS = ("curve", "trace", "vote", *SCENARIO, *TRAFFIC, *VOTE, *ACCEPTANCE)


def scenario_from(options: Mapping[str, Any]) -> Scenario:
    """The scenario of flat options; what is not named keeps its default.

    Args:
        options: fields of `Scenario`, `Traffic`, `VoteSettings` and `AcceptanceModel`, and
            `curve`: a built-in machine's name or a file; `trace`: a kind of traffic or a JSONL
            file; `vote`: off, cadence or slo.

    Raises:
        SimulationError: an option is unknown, not allowed, or would change nothing.
    """
    if unknown := sorted(set(options) - set(OPTIONS)):
        raise SimulationError(f"unknown options {unknown}; allowed: {', '.join(OPTIONS)}.")
    given = dict(options)
    settings = {name: given[name] for name in SCENARIO if name in given}
    settings["traffic"] = _traffic(given)
    settings["vote"] = _vote(given)
    if "curve" in given:
        settings["curve"] = find_curve(given["curve"])
    if given.get("verification") != "adaptive":
        _refuse_idle(given, ("min_benefit",), "unless verification is adaptive")
    acceptance = {name: given[name] for name in ACCEPTANCE if name in given}
    if given.get("verification", "none") == "none":
        _refuse_idle(given, (*ACCEPTANCE, "drafts", "async_scheduling"), "without drafting")
    settings["acceptance"] = AcceptanceModel(**acceptance)
    return Scenario(**settings)


def find_curve(curve: str | Path | MachineCurve) -> MachineCurve:
    """A built-in machine by its name, or one from a file.

    Raises:
        SimulationError: there is neither.
    """
    if isinstance(curve, MachineCurve):
        return curve
    if str(curve) not in BUILT_IN and not Path(curve).exists():
        raise SimulationError(
            f"curve {str(curve)!r} is neither a file nor one of {', '.join(BUILT_IN)}."
        )
    return built_in_curve(str(curve)) if str(curve) in BUILT_IN else read_curve(Path(curve))


def _traffic(given: Mapping[str, Any]) -> Traffic:
    trace = str(given.get("trace", "poisson"))
    kind = trace if trace in KINDS and trace != "recorded" else "recorded"
    if kind == "recorded" and not Path(trace).exists():
        kinds = ", ".join(name for name in KINDS if name != "recorded")
        raise SimulationError(f"trace {trace!r} is neither a file nor one of {kinds}.")
    used = _USED_BY[kind]
    _refuse_idle(given, [name for name in TRAFFIC if name not in used], f"in trace {trace!r}")
    entries = {name: given[name] for name in used if name in given}
    if kind == "recorded":
        entries["recorded"] = read_arrivals(Path(trace))
    return Traffic(kind=kind, **entries)


def _vote(given: Mapping[str, Any]) -> VoteSettings | None:
    mode = given.get("vote", "off")
    if mode not in VOTES:
        raise SimulationError(f"vote is {mode!r}; allowed: {', '.join(VOTES)}.")
    if mode == "off":
        _refuse_idle(given, (*VOTE, "strict"), "without a vote")
        return None
    try:
        return VoteSettings(mode=mode, **{name: given[name] for name in VOTE if name in given})
    except VoteError as error:
        raise SimulationError(str(error)) from error


def _refuse_idle(given: Mapping[str, Any], names: Any, where: str) -> None:
    if idle := [name for name in names if name in given]:
        raise SimulationError(f"{', '.join(idle)} would change nothing {where}; leave it out.")

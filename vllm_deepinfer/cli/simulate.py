"""``vllm-deepinfer simulate``: what would the vote and the planner do on that machine?"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_deepinfer.cli.errors import CommandError

if TYPE_CHECKING:
    from vllm_deepinfer.simulator import Measures

_OWN = ("command", "run", "json", "plot", "sweep")
# Options of the vote, by the name of the setting: (type, help).
_VOTE = {
    "all_interval": (int, "cadence: decode steps between points where all ranks must want prompts"),
    "any_interval": (int, "decode steps between points where one rank's want is enough: the bound"),
    "resume_interval": (int, "cadence: decode steps between bursts of one prompt; 0 for none"),
    "idle_interval": (int, "decode steps between checks while nobody decodes; 0 for none"),
    "max_prefill_steps": (int, "most prefill steps that one grant gives"),
    "ballot_interval": (int, "slo: decode steps between ballots"),
    "ttft_target_ms": (float, "slo: time to first token to keep"),
    "itl_target_ms": (float, "slo: mean time between tokens to keep"),
}
_ACCEPTANCE = {
    "request_spread": "how much requests differ, in log-odds of a draft",
    "text_spread": "how much blocks of a request differ, in log-odds",
    "persistence": "correlation from one block to the next",
    "confidence_temperature": "below 1: the drafter is too sure of itself",
    "confidence_bias": "added to the drafter's log-odds",
    "confidence_noise": "the drafter's error, in log-odds",
}


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "simulate",
        help="simulate scheduling on a machine that is not here",
        description="Run the prefill/decode vote and the verification planner, the same code as in "
        "the server, on simulated data-parallel ranks. Options that would change nothing are "
        "refused. docs/scheduling.md says what is simulated and what is not.",
        argument_default=argparse.SUPPRESS,
    )
    _add_machine(parser)
    _add_traffic(parser)
    _add_vote(parser)
    _add_drafting(parser)
    _add_run(parser)
    return parser


def _add_machine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("machine")
    group.add_argument(
        "--curve",
        metavar="NAME|FILE",
        help="step times: dp8-prefill (default), mi350x-v4, a JSON file, or step costs that an "
        "engine saved",
    )
    group.add_argument("--ranks", type=int, metavar="N", help="data-parallel ranks; default: 8")
    group.add_argument("--sequences", type=int, metavar="N", help="most per rank; default: 64")
    group.add_argument(
        "--chunk-tokens", type=int, metavar="N", help="most per rank and step; default: 8192"
    )
    group.add_argument("--kv-tokens", type=int, metavar="N", help="KV cache per rank; default: any")
    group.add_argument("--watermark", type=float, metavar="SHARE", help="kept free at admission")
    group.add_argument("--noise", type=float, metavar="SHARE", help="of step times; default: 0.01")


def _add_traffic(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("load")
    group.add_argument(
        "--trace",
        metavar="KIND|FILE",
        help="poisson (default), bursts, closed, or a JSONL file with arrival_ms, prompt_tokens, "
        "output_tokens and optionally rank",
    )
    group.add_argument(
        "--rate", dest="rate_per_s", type=float, metavar="R", help="requests/s in all; default: 8"
    )
    group.add_argument("--burst-size", type=int, metavar="N", help="default: 16")
    group.add_argument("--concurrency", type=int, metavar="N", help="closed; default: 64")
    group.add_argument("--prompt-tokens", type=int, metavar="N", help="mean; default: 1024")
    group.add_argument("--output-tokens", type=int, metavar="N", help="mean; default: 256")
    group.add_argument("--length-spread", type=float, metavar="SHARE", help="of both lengths")


def _add_vote(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prefill or decode")
    group.add_argument(
        "--vote", choices=("off", "cadence", "slo"), help="off (default) is vLLM without a vote"
    )
    group.add_argument(
        "--prefill-interval", type=int, metavar="N", help="vLLM's own, without a vote; default: 1"
    )
    group.add_argument(
        "--mixed",
        dest="strict",
        action="store_false",
        help="decodes run beside the prompts of a voted prefill step, too",
    )
    for name, (kind, text) in _VOTE.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N", help=text)


def _add_drafting(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("drafting")
    group.add_argument(
        "--verification",
        choices=("none", "fixed", "adaptive", "compatible", "oracle"),
        help="none (default), all drafts, the planner's choice, that by DeepInfer's rules, or the "
        "best of one who knows all",
    )
    group.add_argument(
        "--min-benefit", type=float, metavar="SHARE", help="adaptive: least gain worth it"
    )
    group.add_argument("--drafts", type=int, metavar="K", help="per block; default: 5")
    group.add_argument("--async-scheduling", action="store_true", help="confidences come later")
    group.add_argument(
        "--survival", type=_chances, metavar="P,P,...", help="mean survival of each draft"
    )
    for name, text in _ACCEPTANCE.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=float, metavar="X", help=text)


def _add_run(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("run")
    group.add_argument("--steps", type=int, metavar="N", help="default: 2000")
    group.add_argument("--seconds", type=float, metavar="S", help="simulated; instead of steps")
    group.add_argument("--warmup", type=float, metavar="SHARE", help="not counted; default: 0.1")
    group.add_argument("--seed", type=int, metavar="N", help="default: 0")
    group.add_argument("--json", action="store_true", default=False, help="print JSON")
    group.add_argument("--plot", type=Path, default=None, metavar="FILE", help="PNG, SVG or PDF")
    group.add_argument(
        "--sweep",
        default=None,
        metavar="OPTION=V,V,...",
        help="one run per value of any option, such as any_interval=2,5,10",
    )


def _chances(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def run(args: argparse.Namespace) -> int:
    from vllm_deepinfer.simulator import SimulationError

    options = {name: value for name, value in vars(args).items() if name not in _OWN}
    if "seconds" in options:
        options.setdefault("steps", None)
    try:
        if args.plot is not None:
            _check_plot(args.plot)
        if args.sweep is None:
            _run_once(options, args)
        else:
            _run_sweep(options, args)
    except SimulationError as error:
        raise CommandError(str(error)) from error
    return 0


def _check_plot(path: Path) -> None:
    """Refuse before the simulation what would fail after it."""
    from vllm_deepinfer.simulator.plots import new_figure

    new_figure(1, 1)
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise CommandError(f"--plot {path} must end in .png, .svg or .pdf")
    if not path.parent.is_dir():
        raise CommandError(f"{path.parent} is not a folder; make it or give another --plot")


def _run_once(options: dict[str, Any], args: argparse.Namespace) -> None:
    from vllm_deepinfer.simulator.plots import run_plot
    from vllm_deepinfer.simulator.report import run_table

    measures = _simulate(options)
    if args.plot is not None:
        run_plot(measures, _title(options)).savefig(args.plot)
    summary = measures.summary()
    print(_document({"options": options, "result": summary}) if args.json else run_table(summary))


def _run_sweep(options: dict[str, Any], args: argparse.Namespace) -> None:
    from vllm_deepinfer.simulator.plots import sweep_plot
    from vllm_deepinfer.simulator.report import sweep_table

    name, values = _swept(args.sweep)
    if name in options:
        raise CommandError(f"{name} is both given and swept; leave one of them out")
    results = []
    for value in values:
        print(f"{name}={value}", file=sys.stderr)
        results.append((value, _simulate(options | {name: value}).summary()))
    if args.plot is not None:
        sweep_plot(name, results, _title(options)).savefig(args.plot)
    entries = [{name: value, "result": summary} for value, summary in results]
    document = {"options": options, "sweep": name, "results": entries}
    print(_document(document) if args.json else sweep_table(name, results))


def _simulate(options: dict[str, Any]) -> Measures:
    from vllm_deepinfer.simulator import Simulation, scenario_from

    return Simulation(scenario_from(options)).run()


def _swept(text: str) -> tuple[str, list[Any]]:
    """Name and values of a sweep; numbers become numbers."""
    name, _, values = text.partition("=")
    name = {"rate": "rate_per_s"}.get(name.replace("-", "_"), name.replace("-", "_"))
    if not values:
        raise CommandError(f"--sweep {text} is not of the form OPTION=V,V,...")
    return name, [_value(part) for part in values.split(",")]


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text, text)


def _document(entries: dict[str, Any]) -> str:
    return json.dumps(entries, indent=2, default=str)


def _title(options: dict[str, Any]) -> str:
    shown = [f"{name} {value}" for name, value in options.items() if value is not None]
    return ", ".join(shown) or "defaults"

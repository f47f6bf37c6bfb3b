"""Speed, start time and memory of the tiny V4.1 model beside a Llama of its size on stock vLLM.

    python benchmarks/serving.py [--json] [--out FILE] [--profile]

Each engine runs in processes of its own, in-process mode, one after the other in turns; the best
run counts, and all runs are in the JSON. Nothing is asserted: numbers depend on the machine and on
what else it does, so both are described beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from machine import PeakMemory, describe_machine, load_average
from peer import count_parameters, make_llama
from publish import publish
from tables import profile_tables, result_table

FORMAT_VERSION = 1
OURS, PEER = "deepseek_v41_tiny", "llama_peer"
KV_CACHE_BYTES = 512 << 20  # what our platform takes by default, for both
MAX_MODEL_TOKENS = 1024
MAX_STEP_TOKENS = 2048  # the prompts of the largest batch are computed in one step
_PROBE = Path(__file__).with_name("engine_probe.py")
_LOG_LINES = 30


@dataclass(frozen=True)
class Engine:
    """One of the compared engines. ``plugin``: whether this package may load in its processes."""

    name: str
    model: Path
    plugin: bool
    num_parameters: int
    peak_rss_bytes: int = 0


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON to FILE as well")
    parser.add_argument("--profile", action="store_true", help="time the parts of a step, too")
    parser.add_argument("--threads", type=int, default=1, help="OpenMP threads; default: 1")
    parser.add_argument("--starts", type=int, default=2, help="processes per engine; default: 2")
    parser.add_argument("--repeats", type=int, default=3, help="runs per process; default: 3")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32], help="default: 1 32")
    parser.add_argument("--prompt-tokens", type=int, default=32, help="before decoding; default 32")
    parser.add_argument("--new-tokens", type=int, default=128, help="per request; default: 128")
    parser.add_argument("--prefill-tokens", type=int, default=512, help="default: 512")
    args = parser.parse_args(argv)
    for name in ("threads", "starts", "repeats", "prompt_tokens", "prefill_tokens"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(args, name)}; it must be >= 1")
    if args.new_tokens < 2:
        parser.error(f"--new-tokens is {args.new_tokens}; decoding starts at the second: >= 2")
    if min(args.batches) < 1 or max(args.batches) * args.prompt_tokens > MAX_STEP_TOKENS:
        parser.error(
            f"--batches {args.batches} with --prompt-tokens {args.prompt_tokens}: a batch must be "
            f">= 1 and its prompts together <= {MAX_STEP_TOKENS} tokens"
        )
    longest = max(args.prompt_tokens + args.new_tokens, args.prefill_tokens + 1)
    if longest > MAX_MODEL_TOKENS:
        parser.error(f"a request of {longest} tokens is longer than {MAX_MODEL_TOKENS}")
    return args


def measures(args: argparse.Namespace) -> dict[str, tuple[str, dict[str, int]]]:
    """Name of each measure -> method of the probe and its arguments."""
    decode = {"prompt_tokens": args.prompt_tokens, "new_tokens": args.new_tokens}
    return {
        f"prefill_1x{args.prefill_tokens}": ("prefill", {"prompt_tokens": args.prefill_tokens})
    } | {f"decode_batch_{batch}": ("decode", {"batch": batch, **decode}) for batch in args.batches}


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Make both models, measure both engines and return the result (``--json`` prints it)."""
    began = datetime.now(UTC).isoformat(timespec="seconds")
    with tempfile.TemporaryDirectory(prefix="vllm-deepinfer-benchmark-") as name:
        folder = Path(name)
        engines = make_engines(folder)
        found: dict[str, list[dict[str, Any]]] = {engine.name: [] for engine in engines}
        for start in range(args.starts):
            for engine in engines:
                show(f"{engine.name}, process {start + 1} of {args.starts}")
                profile = args.profile and engine.plugin and start == 0
                found[engine.name].append(probe(engine, folder, start, profile, args))
    result = {
        "benchmark": "serving",
        "format": FORMAT_VERSION,
        "began": began,
        "machine": describe_machine(),
        "settings": {
            name: value for name, value in vars(args).items() if name not in ("json", "out")
        }
        | {"kv_cache_bytes": KV_CACHE_BYTES, "eager": True, "in_process": True},
        "engines": {engine.name: summary(engine, found[engine.name]) for engine in engines},
    }
    result["ratios_to_peer"] = ratios(result["engines"][OURS], result["engines"][PEER])
    return result


def make_engines(folder: Path) -> list[Engine]:
    """Write both models; the peer has the tiny model's number of parameters."""
    ours, peer = folder / OURS, folder / PEER
    show("making the models")
    command = Path(sys.executable).with_name("vllm-deepinfer")
    subprocess.run(
        [command, "make-checkpoint", ours, "--preset", "tiny"], check=True, capture_output=True
    )
    num_parameters = count_parameters(ours)
    return [
        Engine(OURS, ours, True, num_parameters),
        Engine(PEER, peer, False, make_llama(peer, ours, num_parameters)),
    ]


def probe(
    engine: Engine, folder: Path, seed: int, profile: bool, args: argparse.Namespace
) -> dict[str, Any]:
    """Measure an engine in a fresh process.

    Raises:
        SystemExit: the process failed; quotes the end of its log.
    """
    settings = {
        "model": str(engine.model),
        "engine": {
            "max_model_len": MAX_MODEL_TOKENS,
            "max_num_seqs": max(args.batches),
            "max_num_batched_tokens": MAX_STEP_TOKENS,
            "kv_cache_memory_bytes": KV_CACHE_BYTES,
            "enforce_eager": True,
            "seed": 0,
        },
        "seed": seed,
        "repeats": args.repeats,
        "measures": measures(args),
        "profile": profile,
        "process_start_s": time.monotonic(),
    }
    source, destination, log = (folder / f"probe.{suffix}" for suffix in ("in", "out", "log"))
    destination.unlink(missing_ok=True)
    source.write_text(json.dumps(settings), encoding="utf-8")
    load = load_average()
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, str(_PROBE), str(source), str(destination)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(engine.plugin, args.threads),
        )
        memory = PeakMemory(child.pid)
        try:
            code = child.wait()
        finally:
            child.kill()
            sampled_bytes = memory.stop()
    if code != 0 or not destination.is_file():
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
        sys.exit("\n".join([*lines, f"{engine.name}: the engine's process ended with {code}"]))
    result = json.loads(destination.read_text(encoding="utf-8"))
    # Samples miss a short peak of the one process there normally is; the kernel does not.
    peak = max(sampled_bytes, result.pop("own_peak_rss_bytes"))
    return {"load_average_before": load, "peak_rss_bytes": peak, **result}


def environment(plugin: bool, threads: int) -> dict[str, str]:
    """Environment of an engine's process; without the plugin, vLLM is as published."""
    variables = os.environ | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
    }
    variables.pop("VLLM_PLUGINS", None)
    return variables if plugin else variables | {"VLLM_PLUGINS": ""}


def summary(engine: Engine, processes: list[dict[str, Any]]) -> dict[str, Any]:
    """Best value and spread of each quantity over all processes of an engine."""
    speeds = {
        name: [run for process in processes for run in process["runs"][name]]
        for name in processes[0]["runs"]
    }
    result = {
        "platform": processes[0]["platform"],
        "plugin": engine.plugin,
        "num_parameters": engine.num_parameters,
        "load_average_before": [process["load_average_before"] for process in processes],
        "start": {
            name: best([process["start"][name] for process in processes], min)
            for name in processes[0]["start"]
        },
        "peak_rss_bytes": best([process["peak_rss_bytes"] for process in processes], min),
        "tokens_per_s": {
            name: best([run["tokens"] / run["seconds"] for run in runs], max)
            | {
                "ms_per_step": min(1e3 * run["seconds"] / run["steps"] for run in runs),
                # What the machine could do undisturbed: waiting for a core takes no CPU time.
                "best_per_cpu_s": max(run["tokens"] / run["cpu_seconds"] for run in runs),
                "cpu_share": [run["cpu_seconds"] / run["seconds"] for run in runs],
            }
            for name, runs in speeds.items()
        },
    }
    profiles = [process["profile"] for process in processes if "profile" in process]
    return result | ({"profile": profiles[0]} if profiles else {})


def best(values: list[float], choose: Any) -> dict[str, Any]:
    """The best value, all values, and their spread relative to the largest."""
    return {
        "best": choose(values),
        "spread": (max(values) - min(values)) / max(values),
        "values": values,
    }


def ratios(ours: dict[str, Any], peer: dict[str, Any]) -> dict[str, float]:
    """Ours over the peer's, best against best."""
    flat = [
        {"process_to_ready_s": engine["start"]["process_to_ready_s"]}
        | {"peak_rss_bytes": engine["peak_rss_bytes"]}
        | engine["tokens_per_s"]
        for engine in (ours, peer)
    ]
    return {name: flat[0][name]["best"] / flat[1][name]["best"] for name in flat[0]}


def show(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    options = arguments()
    publish(options, main(options), lambda result: result_table(result) + profile_tables(result))

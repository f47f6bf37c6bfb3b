"""Makes recorded calls again and compares what they give: run by the Python of another machine.

    python -m aarch64.replay --extensions FOLDER --cases kernels.pickle --result out.json

Needs numpy and no torch. With ``--threads`` the kernels are called from so many threads at once.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import threading
from pathlib import Path
from typing import Any

from aarch64 import memory
from aarch64.calls import Call, Failed, Recording, Tally, attempt, outcome_of
from aarch64.values import read

import vllm_deepinfer

EXTENSIONS = ("kernels", "planner", "scheduling")


def use_extensions(folder: Path) -> dict[str, Any]:
    """The extensions of a folder, by name, in place of those of the repository."""
    vllm_deepinfer.__path__.insert(0, str(folder.resolve()))
    return {name: importlib.import_module(f"vllm_deepinfer._{name}") for name in EXTENSIONS}


def exports(module: Any) -> list[str]:
    """What the module offers: functions, classes, and what those offer in turn."""
    names = []
    for name, value in vars(module).items():
        if name.startswith("_"):
            continue
        names.append(name)
        if isinstance(value, type):
            names += [f"{name}.{own}" for own in vars(value) if not own.startswith("_")]
    return sorted(names)


def replay_kernels(kernels: Any, recording: Recording, tally: Tally) -> None:
    for (call,) in recording.lives:
        tally.count(call.operation, memory.replay(kernels, call, recording.pieces))


def replay_kernels_at_once(
    kernels: Any, recording: Recording, tally: Tally, num_threads: int
) -> None:
    """Every thread makes every call, each beginning elsewhere."""
    lock = threading.Lock()

    def make_calls(thread: int) -> None:
        start = thread * len(recording.lives) // num_threads
        for (call,) in recording.lives[start:] + recording.lives[:start]:
            difference = memory.replay(kernels, call, recording.pieces)
            with lock:
                tally.count(call.operation, difference)

    threads = [threading.Thread(target=make_calls, args=(i,)) for i in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def replay_objects(module: Any, recording: Recording, tally: Tally) -> None:
    for life in recording.lives:
        made: dict[int, Any] = {}
        for call in life:
            tally.count(call.operation, difference_of(module, call, made))


def difference_of(module: Any, call: Call, made: dict[int, Any]) -> str | None:
    """Make one call of a life; what it makes joins ``made``."""
    name = call.operation.rpartition(".")[2]
    arguments = read(call.arguments, made)
    function = getattr(module if call.target is None else made[call.target], name)
    result = attempt(function, *arguments) if callable(function) else function
    if isinstance(function, type):
        made[len(made)] = result
        found = result.said if isinstance(result, Failed) else None
    else:
        found = outcome_of(arguments, result)
    return None if found == call.wanted else f"{shown(found)}, recorded {shown(call.wanted)}"


def shown(outcome: Any) -> str:
    text = repr(outcome)
    return text if len(text) < 300 else text[:300] + "…"


def replay_policies(recording: Recording, tally: Tally) -> None:
    from aarch64.lives import live_of

    for (call,) in recording.lives:
        found = live_of(call.operation, *call.arguments)
        same = found == call.wanted
        tally.count(call.operation, None if same else f"another course from seed {call.arguments}")


def machine_report(kernels: Any) -> dict[str, Any]:
    """What runs here, and how a version of another machine is refused."""
    refused = attempt(kernels.choose_isa, "avx2")
    kernels.choose_isa("portable")
    return {
        "machine": platform.machine(),
        "isa": kernels.isa(),
        "available_isas": kernels.available_isas(),
        "refused": refused.said if isinstance(refused, Failed) else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--extensions", type=Path, required=True, help="folder of built ones")
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lives", type=int, help="the first so many; default all")
    options = parser.parse_args()
    modules, tally = use_extensions(options.extensions), Tally()
    result = machine_report(modules["kernels"])
    recording, name = Recording.load(options.cases), options.cases.stem
    recording.lives = recording.lives[: options.lives]
    if name == "kernels" and options.threads > 1:
        replay_kernels_at_once(modules[name], recording, tally, options.threads)
    elif name == "kernels":
        replay_kernels(modules[name], recording, tally)
    elif name == "policies":
        replay_policies(recording, tally)
    else:
        replay_objects(modules[name], recording, tally)
    if name in modules:
        result["exports"] = exports(modules[name])
    options.result.write_text(json.dumps(result | tally.as_dict(), indent=1))


if __name__ == "__main__":
    main()

"""Records on x86 what the C++ core gives there, in the portable version: the cases of ARM64.

    PYTHONPATH=tests python -m aarch64.record .cache/aarch64/cases [kernels planner ...]

The calls are those that the tests of each extension make, so that an operation that has tests there
has cases here. One file an extension, and counts.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from aarch64.calls import Call, Recording
from aarch64.lives import LIVES, live_of
from aarch64.recorder import recorded_classes, recorded_functions, recording_kernels
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_deepinfer import _kernels, _planner, _scheduling

TESTS = Path(__file__).resolve().parents[1]
KERNEL_TESTS = (
    "kernels/test_quantisation_is_byte_exact.py",
    "kernels/test_linear_layers_match_the_reference.py",
    "kernels/test_model_operations_match_the_reference.py",
    "kernels/test_rows_do_not_depend_on_their_batch.py::test_two_threads_change_no_bit",
)
FUZZED_EXAMPLES = 150  # of each function of kernels/fuzz.py
PLANNER_LIVES = 1150  # of nine plans each
LIVES_OF_A_KIND = 40
STEPS_RESTORED = 40


def repeatable(examples: int) -> settings:
    """The same examples in every recording, which nothing is searched or shrunk for."""
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )


def run_tests(*names: str) -> None:
    """Those tests, in this process.

    Raises:
        SystemExit: one failed; what a wrong core gives is no case.
    """
    code = pytest.main(["-q", "-p", "no:cacheprovider", *(str(TESTS / name) for name in names)])
    if code != 0:
        raise SystemExit(f"{' '.join(names)}: pytest ended with {code!r}; nothing is recorded.")


def kernels() -> Recording:
    recording = Recording()
    with recording_kernels(_kernels, recording):
        run_tests(*KERNEL_TESTS)
        from kernels.fuzz import FUZZERS

        for check in FUZZERS:
            repeatable(FUZZED_EXAMPLES)(given(st.data())(check))()
        for num_words in (0, 5, 1000, 200_000):
            words = torch.randint(-(2**62), 2**62, (num_words,))
            for num_threads in (1, 3):
                _kernels.sum_words(words.data_ptr(), 8 * num_words, num_threads)
    return recording


def planner() -> Recording:
    from scheduler import test_planner_equals_its_reference as cases

    recording = Recording()

    @repeatable(PLANNER_LIVES)
    @given(
        seed=st.integers(0, 2**32 - 1),
        cost=cases.cost_settings(),
        plans=cases.planner_settings(),
        num_steps=st.sampled_from([0, 20, 260]),
        num_drafts=st.integers(1, 7),
    )
    def live(seed, cost, plans, num_steps, num_drafts):
        life: list[Call] = []
        recording.lives.append(life)
        classes = recorded_classes(_planner, life)
        rng = np.random.default_rng(seed)
        curve = cases.random_curve(rng)
        core, planner = cases.cores(classes, curve, cost, plans, num_drafts)
        largest = curve[0][-1]
        for step in cases.random_steps(rng, num_steps, largest):
            core.observe(*step)
        for n in (*rng.integers(0, 40, 8).tolist(), 130):
            cases.outcome(planner, random_step(cases, rng, n, num_drafts, largest))
        if seed % 16 == 0:
            price_and_restore(cases, rng, core, classes[0], curve, cost)

    live()
    return recording


def random_step(cases: Any, rng: Any, n: int, num_drafts: int, largest: int) -> tuple:
    """Arguments of a plan."""
    dtype = rng.choice([np.float32, np.float64])
    rates = [cases.random_rates(rng, (n, num_drafts), dtype) for _ in range(2)]
    limits = rng.integers(0 if rng.integers(2) else num_drafts, num_drafts + 1, n)
    other = int(rng.integers(0, 2) * rng.integers(0, largest + 1))
    return (*rates, limits.astype(np.int32), int(rng.integers(0, 10**5)), other)


def price_and_restore(cases: Any, rng: Any, core: Any, cost_core: Any, curve, cost) -> None:
    """Ask for everything learned; a second core takes it over and learns on."""
    sizes, largest = curve[0], curve[0][-1]
    cases.prices(core, largest)
    for bucket in range(-1, len(sizes) + 1):
        for ask in (core.is_measured, core.num_samples, core.bucket_index):
            try:
                ask(bucket)
            except ValueError:
                continue  # recorded as such: no bucket has this number
    restored = cost_core(*curve, *vars(cost).values())
    restored.restore(core.state())
    for step in cases.random_steps(rng, STEPS_RESTORED, largest):
        core.observe(*step)
        restored.observe(*step)
    assert restored.state() == core.state()


def scheduling() -> Recording:
    from vllm_deepinfer.scheduler import request_loops

    recording = Recording()
    recorded = recorded_functions(_scheduling, recording)
    own = request_loops.backend
    request_loops.backend = lambda: recorded
    try:
        run_tests("scheduler/test_request_loops.py")
    finally:
        request_loops.backend = own
    return recording


def policies() -> Recording:
    """What runs in Python around the core, from the same seeds on both sides."""
    recording = Recording()
    for kind in LIVES:
        for seed in range(LIVES_OF_A_KIND):
            recording.lives.append([Call(kind, None, (seed,), live_of(kind, seed))])
    return recording


RECORDED = (kernels, planner, scheduling, policies)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    names = [record.__name__ for record in RECORDED]
    parser.add_argument("names", nargs="*", default=names, help=f"some of {', '.join(names)}")
    options = parser.parse_args()
    if unknown := set(options.names) - set(names):
        parser.error(f"{', '.join(sorted(unknown))}: allowed are {', '.join(names)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    counts = {}
    for record in RECORDED:
        if record.__name__ in options.names:
            recording = record()
            recording.save(options.folder / f"{record.__name__}.pickle")
            counts[record.__name__] = recording.counts()
    (options.folder / "counts.json").write_text(json.dumps(counts, indent=1))
    for name, calls in counts.items():
        print(f"{name}: {calls.total()} calls of {len(calls)} operations", flush=True)


if __name__ == "__main__":
    main()

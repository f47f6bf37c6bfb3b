"""Does a fresh machine get from a clone to a chat and green tests? Writes a table into the docs.

    python packaging/fresh/check.py [--python PATH ...] [--wheels FOLDER] [--table docs/install.md]
                                                                        (make check-fresh)

For each Python, with and without the wheel folder: `make install`, `make demo` and a part of
`make test`, on a machine of `machine.py`. The demo's tokens must be the same everywhere. The first
and the third way to torch are taken (docs/install.md); no address but the registries that pip is
configured with, and loopback, is asked.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from machine import SHM_MIB, Machine, allowed

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "docs"))

from pages import rewrite, table  # noqa: E402

PYTHONS = ("python3.11", "python3.12", "python3.13")
# The part of the suite that covers most in five minutes: installation, options, kernels, the
# engine over HTTP.
TESTS = (
    "tests/installation tests/packaging tests/config tests/registration "
    "tests/kernels/test_linear_layers_match_the_reference.py "
    "tests/kernels/test_rows_do_not_depend_on_their_batch.py "
    "tests/serving/test_openai_endpoints.py tests/scheduler/test_planner_equals_its_reference.py "
    "tests/doctor/test_the_command_reports_what_it_can.py"
)
STEPS = (("install", ["install"]), ("demo", ["demo"]), ("test", ["test", f"TESTS={TESTS}"]))
STEP_LIMIT_S = 3600.0
COLUMNS = ("Python", "wheel folder", "torch", "install, s", "download, MB", "disk, MB",
           "demo, s", "tests, s", "result")  # fmt: skip


@dataclass
class Outcome:
    """What one machine gave."""

    python: str
    with_wheels: bool
    seconds: dict[str, float] = field(default_factory=dict)
    downloaded_mb: float = 0.0
    disk_mb: float = 0.0
    torch: str = "-"
    answer: str | None = None
    tests: str = "-"
    failed: str | None = None

    def row(self) -> list[str]:
        times = [f"{self.seconds[step]:.0f}" if step in self.seconds else "-" for step, _ in STEPS]
        return [
            self.python,
            "yes" if self.with_wheels else "no",
            self.torch,
            times[0],
            f"{self.downloaded_mb:.0f}",
            f"{self.disk_mb:.0f}",
            *times[1:],
            f"failed: {self.failed}" if self.failed else self.tests,
        ]


def check(machine: Machine, core: int, log: Path) -> Outcome:
    """Runs the steps; stops at the first that fails."""
    found = Outcome(machine.interpreter.name.removeprefix("python"), machine.wheels is not None)
    machine.prepare(REPOSITORY)
    for step, words in STEPS:
        began = time.monotonic()
        output, code = _run(machine, ["make", f"PYTHON={machine.interpreter}", "PARALLEL=", *words],
                            core, log)  # fmt: skip
        found.seconds[step] = time.monotonic() - began
        if step == "install":
            found.downloaded_mb = downloaded_mb(output)
            found.torch = _last(r"^torch (\S+): (?:found|installed)", output) or "-"
            found.disk_mb = _size_mb(machine.checkout / ".venv")
        elif step == "demo":
            found.answer = _last(r"(?s)^assistant: (.*?)\n\n\d+ prompt tokens", output)
        else:
            found.tests = _last(r"(\d+ passed.*) in ", output) or "-"
        if code or (step == "demo" and not found.answer):
            found.failed = f"make {step}"
            break
    return found


def _run(machine: Machine, words: list[str], core: int, log: Path) -> tuple[str, int]:
    """Output, which the log has while it comes, and exit code."""
    with log.open("a+", errors="replace") as file:
        file.write(f"\n==== {' '.join(words)}\n")
        file.flush()
        begin = file.tell()
        code = subprocess.run(
            machine.command(words, core),
            cwd=machine.checkout,
            env=machine.environment(),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=STEP_LIMIT_S,
        ).returncode
        file.seek(begin)
        return file.read(), code


def downloaded_mb(output: str) -> float:
    """What pip says it downloaded, in MB."""
    units = {"kB": 1e-3, "MB": 1.0, "GB": 1e3}
    found = re.findall(r"^\s*Downloading \S+ \(([\d.]+) (kB|MB|GB)\)", output, re.MULTILINE)
    return sum(float(number) * units[unit] for number, unit in found)


def _last(pattern: str, output: str) -> str | None:
    found = re.findall(pattern, output, re.MULTILINE)
    return found[-1] if found else None


def _size_mb(folder: Path) -> float:
    return sum(p.lstat().st_size for p in folder.rglob("*") if p.is_file()) / 1e6


def interpreters(named: list[Path]) -> list[Path]:
    """Those named, else every tested one on the path."""
    if named:
        return [path.absolute() for path in named]
    return [Path(found) for name in PYTHONS if (found := shutil.which(name))]


def conditions() -> str:
    said = {
        "mounts": f"{SHM_MIB} MiB of /dev/shm",
        "user": "another user than root",
        "one core": "one core",
    }
    kept = [words for name, words in said.items() if name in allowed()]
    left = [words for name, words in said.items() if name not in allowed()]
    return ("An empty environment and home, no cache, a path with a space, " + ", ".join(kept)
            + ("" if not left else f"; not {', '.join(left)}, which was not allowed there")
            + ".")  # fmt: skip


def report(outcomes: list[Outcome]) -> str:
    return f"{conditions()}\n\n{table(COLUMNS, [o.row() for o in outcomes], texts=3)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", type=Path, action="append", default=[])
    parser.add_argument(
        "--wheels", type=Path, help="a prepared folder; each Python runs with it, too"
    )
    parser.add_argument("--only", choices=("with", "without"), help="the wheel folder")
    parser.add_argument("--core", type=int, default=0, help="the core to run on")
    parser.add_argument("--table", type=Path, help="page to put the table into")
    parser.add_argument("--logs", type=Path, default=REPOSITORY / "build" / "fresh")
    args = parser.parse_args()
    args.logs.mkdir(parents=True, exist_ok=True)
    for interpreter in interpreters(args.python):
        for wheels in dict.fromkeys((args.wheels, None)):
            if args.only and (args.only == "with") != (wheels is not None):
                continue
            log = args.logs / f"{interpreter.name}-{'with' if wheels else 'without'}-wheels.log"
            log.unlink(missing_ok=True)
            result = log.with_suffix(".json")
            result.unlink(missing_ok=True)
            with tempfile.TemporaryDirectory(prefix="fresh machine ") as folder:
                Path(folder).chmod(0o755)
                machine = Machine(Path(folder), interpreter, wheels)
                outcome = check(machine, args.core, log)
            result.write_text(json.dumps(asdict(outcome)))
            print(" | ".join(outcome.row()), f"| {log}", flush=True)
    # Those of earlier calls too: machines may be tried apart, each on a core of its own.
    outcomes = [Outcome(**json.loads(p.read_text())) for p in sorted(args.logs.glob("*.json"))]
    if not outcomes:
        sys.exit(f"No Python was found; name one with --python. Looked for: {', '.join(PYTHONS)}.")
    if args.table:
        args.table.write_text(rewrite(args.table.read_text(), "check-fresh", report(outcomes)))
    answers = {outcome.answer for outcome in outcomes}
    if any(outcome.failed for outcome in outcomes) or len(answers) != 1:
        print(report(outcomes))
        sys.exit(f"Not every machine passed, or the demo's tokens differ: {len(answers)} answers.")


if __name__ == "__main__":
    main()

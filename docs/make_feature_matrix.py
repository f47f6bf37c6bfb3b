"""Writes docs/feature-matrix.md: every feature on every platform, with the evidence for it.

    python docs/make_feature_matrix.py build/results          (make feature-matrix)

The folder holds pytest's reports of whole runs: one a vLLM version, and that of ARM64. A cell whose
tests did not pass, or did not run, fails the script: nothing is called supported because it was
written.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

from evidence import COLUMNS, EVIDENCE, Cell, Feature
from features import FEATURES, SHARED
from pages import table

OUTPUT = Path(__file__).with_name("feature-matrix.md")
TEXT = """# Features, platforms and evidence

Written by `make feature-matrix` from the results of the tests; nothing here is typed by hand but
the list of features and of the tests that stand behind each (`docs/features.py`). A number is how
many tests passed for that cell; no two features of a platform rest on the same tests.

{legend}

**Nothing has run on an SM100 GPU or an Ascend 950.** The numerics of their kernels beyond what is
said here, their speed, their drivers and interconnects are unknown.

{matrix}

Runs: {runs}.

## The tests behind each cell

{tests}
"""

Passed = Mapping[str, int]
"""How often each test passed, by pytest's name for it, "tests/x/test_y.py::test_z[case]"."""


class UnprovenError(Exception):
    """A cell's tests did not run or did not pass."""


def read_report(path: Path) -> tuple[Counter[str], str]:
    """Passed tests of one of pytest's reports, and a sentence on the run.

    Raises:
        UnprovenError: a test of the run failed.
    """
    suite = ElementTree.parse(path).getroot().find("testsuite")
    passed: Counter[str] = Counter()
    for case in suite.iter("testcase"):
        outcome = {child.tag for child in case} & {"failure", "error", "skipped"}
        if outcome & {"failure", "error"}:
            raise UnprovenError(f"{path}: {case.get('classname')}.{case.get('name')} failed")
        if not outcome:
            passed[f"{case.get('file')}::{case.get('name')}"] += 1
    date = suite.get("timestamp", "")[:10]
    return passed, f"{run_name(path.stem)}, {sum(passed.values())} tests passed, {date}"


def run_name(report: str) -> str:
    """What ran, by the name of its report: "vllm-0.33.0" is a run on that vLLM."""
    program, _, version = report.partition("-")
    return f"vLLM {version}" if program == "vllm" else f"{report} (no vLLM)"


def count(test: str, passed: Passed) -> int:
    """Passed cases of a test, tests of a file, or tests of all files below a folder."""
    below = (test.rstrip("/") + "/", f"{test}::", f"{test}[")
    return sum(n for name, n in passed.items() if name == test or name.startswith(below))


def cell_text(feature: Feature, column: str, passed: Passed) -> str:
    cell: Cell = feature.cells[column]
    if not cell.tests:
        return cell.evidence + (f": {cell.note}" if cell.note else "")
    missing = [test for test in cell.tests if not count(test, passed)]
    if missing:
        raise UnprovenError(f"{feature.name}, {column}: no test passed in {', '.join(missing)}")
    number = sum(n for name, n in passed.items() if any(count(t, {name: n}) for t in cell.tests))
    return f"{cell.evidence} ({number})" + (f": {cell.note}" if cell.note else "")


def page(reports: Mapping[str, tuple[Passed, str]]) -> str:
    """The page from each report's passed tests and sentence, by report name.

    Raises:
        UnprovenError: see ``cell_text``; or features rest on the same tests, and nothing says why.
    """
    if unexplained := same_tests().keys() - SHARED.keys():
        raise UnprovenError(f"Features on the same tests: {unexplained}")
    rows = [
        (feature.name, *(cell_text(feature, c, reports[COLUMNS[c].report][0]) for c in COLUMNS))
        for feature in FEATURES
    ]
    header = ("feature", *(column.title for column in COLUMNS.values()))
    return TEXT.format(
        legend=table(("evidence", "meaning"), EVIDENCE.items(), texts=2),
        matrix=table(header, rows, texts=len(header)),
        runs="; ".join(run for _, run in reports.values()),
        tests="\n".join(line for feature in FEATURES for line in test_lines(feature)),
    )


def test_lines(feature: Feature) -> list[str]:
    behind: dict[tuple[str, ...], list[str]] = {}
    for column, cell in feature.cells.items():
        if cell.tests:
            behind.setdefault(cell.tests, []).append(COLUMNS[column].title)
    return [
        f"- {feature.name}, {', '.join(columns)}: {', '.join(f'`{test}`' for test in tests)}"
        for tests, columns in behind.items()
    ]


def same_tests() -> dict[tuple[str, str, str], Cell]:
    """Pairs of features in a column that rest on the very same tests, and one of the cells."""
    found = {}
    for column in COLUMNS:
        for first, second in combinations(FEATURES, 2):
            cell = first.cells[column]
            if cell.tests and set(cell.tests) == set(second.cells[column].tests):
                found[column, first.name, second.name] = cell
    return found


def without_numbers(text: str) -> str:
    """The page without what differs between two runs of the same code."""
    return re.sub(r" \(\d+\)", "", re.sub(r"Runs: .*", "", text))


def main() -> None:
    folder = Path(sys.argv[1])
    names = dict.fromkeys(column.report for column in COLUMNS.values())
    try:
        text = page({name: read_report(folder / f"{name}.xml") for name in names})
    except (UnprovenError, FileNotFoundError) as error:
        sys.exit(f"{error}. Run make test, make test-vllm033 and make test-aarch64 first.")
    OUTPUT.write_text(text)
    print(f"Wrote {OUTPUT}")


if __name__ == "__main__":
    main()

"""The feature matrix says what the tests' results say.

Claim: the page is what the list of features gives; a cell whose tests failed, were skipped or do
not exist stops its making; two features of a platform do not rest on the same tests. If this
breaks, something is called supported because it was written.
"""

from __future__ import annotations

import ast
import re
import runpy
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
REPORT = """<?xml version="1.0"?><testsuites><testsuite timestamp="2026-11-30T01:02:03">
<testcase file="tests/a/test_x.py" classname="x" name="test_1"/>
<testcase file="tests/a/test_x.py" classname="x" name="test_2">{}</testcase>
</testsuite></testsuites>"""


@pytest.fixture
def script(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(DOCS), *sys.path])
    return runpy.run_path(str(DOCS / "make_feature_matrix.py"))


def cells(script):
    return [cell for feature in script["FEATURES"] for cell in feature.cells.values()]


def passing(script):
    """A run in which every test that a cell names has passed."""
    passed = Counter(test for cell in cells(script) for test in cell.tests)
    return {column.report: (passed, "") for column in script["COLUMNS"].values()}


def functions(file):
    tree = ast.parse((REPOSITORY / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_page_is_what_the_list_of_features_gives(script):
    made, plain = script["page"](passing(script)), script["without_numbers"]
    assert plain((DOCS / "feature-matrix.md").read_text()) == plain(made), "make feature-matrix"


def test_tests_that_cells_name_exist(script):
    named = {test.partition("::")[::2] for cell in cells(script) for test in cell.tests}
    assert not [file for file, _ in named if not (REPOSITORY / file).exists()]
    assert not [
        (file, test) for file, test in named if test and test.split("[")[0] not in functions(file)
    ]


def test_no_two_features_of_a_platform_rest_on_the_same_tests(script, monkeypatch):
    """Unless the list says why; and what it says must be so."""
    assert script["same_tests"]().keys() == script["SHARED"].keys()
    assert all(script["SHARED"].values())
    twice = (*script["FEATURES"], replace(script["FEATURES"][0], name="the first again"))
    monkeypatch.setitem(script["same_tests"].__globals__, "FEATURES", twice)
    first = script["FEATURES"][0].name
    with pytest.raises(script["UnprovenError"], match=f"'cpu', '{first}', 'the first again'"):
        script["page"](passing(script))


def test_a_cell_without_one_of_its_tests_stops_the_page(script):
    for feature in script["FEATURES"]:
        for column, cell in feature.cells.items():
            for missing in cell.tests:
                passed = {test: 1 for test in cell.tests if not test.startswith(missing)}
                with pytest.raises(script["UnprovenError"], match=re.escape(missing)):
                    script["cell_text"](feature, column, passed)


def test_a_column_without_its_report_stops_the_page(script, monkeypatch, tmp_path):
    reports = {column.report for column in script["COLUMNS"].values()}
    assert "aarch64" in reports
    for missing in reports:
        for report in reports - {missing}:
            (tmp_path / f"{report}.xml").write_text(REPORT.format(""))
        (tmp_path / f"{missing}.xml").unlink(missing_ok=True)
        monkeypatch.setattr(sys, "argv", ["make_feature_matrix.py", str(tmp_path)])
        with pytest.raises(SystemExit, match=f"{missing}.xml"):
            script["main"]()


@pytest.mark.parametrize("outcome", ["failure", "error"])
def test_a_run_with_a_failure_is_no_evidence(script, outcome, tmp_path):
    report = tmp_path / "vllm-1.xml"
    report.write_text(REPORT.format(f"<{outcome}/>"))
    with pytest.raises(script["UnprovenError"], match="test_2"):
        script["read_report"](report)


@pytest.mark.parametrize(("outcome", "count"), [("", 2), ("<skipped/>", 1)])
def test_skipped_tests_do_not_count(script, outcome, count, tmp_path):
    report = tmp_path / "vllm-1.xml"
    report.write_text(REPORT.format(outcome))
    passed, run = script["read_report"](report)
    every = {"tests/a/test_x.py::test_1": 1, "tests/a/test_x.py::test_2": 1}
    assert passed == dict(list(every.items())[:count])
    assert run == f"vLLM 1, {count} tests passed, 2026-11-30"
    assert script["run_name"]("aarch64") == "aarch64 (no vLLM)"
    assert script["count"]("tests/a", passed) == script["count"]("tests/a/test_x.py", passed)
    assert not script["count"]("tests/a/test", passed)


def test_a_test_counts_by_its_own_name_and_once(script):
    """All cases of it, or one; and once where a cell names its file, too."""
    file = "tests/a/test_x.py"
    passed = Counter({f"{file}::test_a[1]": 1, f"{file}::test_a[2]": 1, f"{file}::test_ab": 1})
    counts = {f"{file}::test_a": 2, f"{file}::test_a[1]": 1, f"{file}::test_ab": 1, file: 3}
    for test, number in counts.items():
        assert script["count"](test, passed) == number
    assert not script["count"](f"{file}::test_a[3]", passed)
    feature = script["FEATURES"][0]
    cell = replace(feature.cells["cpu"], tests=(file, f"{file}::test_a"))
    feature = replace(feature, cells={"cpu": cell})
    assert script["cell_text"](feature, "cpu", passed).startswith("runs (3)")

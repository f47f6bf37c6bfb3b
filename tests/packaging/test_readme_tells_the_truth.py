"""The tables of the README are what the code accepts.

Claim: every option and environment variable, with its values and default, is in the README, and
nothing else is; the flags of the `vllm serve` line name parsers that vLLM has. If this breaks,
people copy lines that do not work.
"""

from __future__ import annotations

import re
from pathlib import Path

from vllm_deepinfer import envs
from vllm_deepinfer.config import option_docs
from vllm_deepinfer.platforms.detect import PLATFORM_CLASSES

README = (Path(__file__).parents[2] / "README.md").read_text()


def table(first_heading):
    """The rows of the table whose first column has this heading."""
    lines = README.splitlines()
    start = next(i for i, x in enumerate(lines) if x.startswith(f"| {first_heading} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_options():
    rows = {row[0].strip("`"): row for row in table("option")}
    docs = {doc.name: doc for doc in option_docs()}
    assert set(rows) == set(docs)
    for name, row in rows.items():
        default = docs[name].default
        text = str(default).lower() if isinstance(default, bool) else str(default)
        assert row[2].strip("`") == text
        for choice in re.findall(r"'([^']*)'", docs[name].allowed):
            assert f"`{choice}`" in row[1]


def test_variables():
    rows = {row[0].strip("`"): row for row in table("variable")}
    assert set(rows) == {
        "DEEPINFER_PLATFORM",
        "DEEPINFER_ALLOW_UNTESTED_VLLM",
        "DEEPINFER_REFERENCE_OPS",
    }
    platforms = re.findall(r"`([^`]+)`", rows["DEEPINFER_PLATFORM"][1])
    assert tuple(platforms) == envs.PLATFORM_CHOICES


def test_platforms_without_a_class_are_not_called_served():
    states = {row[0]: row[1] for row in table("platform")}
    served = [name for name, state in states.items() if "not here yet" not in state]
    assert len(states) == len(envs.PLATFORM_CHOICES) - 1
    assert len(served) == len(PLATFORM_CLASSES)


def test_parsers_of_the_serve_line_exist():
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    reasoning = re.search(r"--reasoning-parser (\w+)", README)[1]
    tools = re.search(r"--tool-call-parser (\w+)", README)[1]
    assert ReasoningParserManager.get_reasoning_parser(reasoning)
    assert ToolParserManager.get_tool_parser(tools)

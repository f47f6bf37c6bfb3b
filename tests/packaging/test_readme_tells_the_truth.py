"""The README and the pages beside it say what the code accepts.

Claim: the page of options is what `config.py` and `envs.py` declare; every command line that sets
options sets ones that are accepted; links between pages lead somewhere; the flags of the
`vllm serve` line name parsers that vLLM has. If this breaks, people copy lines that do not work.
"""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from vllm_deepinfer.config import KEY, DeepInferConfig

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
PAGES = [REPOSITORY / "README.md", *sorted(DOCS.glob("*.md"))]
README = PAGES[0].read_text()


def test_page_of_options_is_what_is_declared(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(DOCS), *sys.path])
    script = runpy.run_path(str(DOCS / "make_options.py"))
    assert (DOCS / "options.md").read_text() == script["page"](), "run docs/make_options.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_of_every_command_line_are_accepted(page):
    for text in re.findall(r"--additional-config '([^']*)'", page.read_text()):
        options = json.loads(text)
        assert list(options) == [KEY]
        DeepInferConfig.from_mapping(options[KEY])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert not [target for target in targets if not (page.parent / target).exists()]


def test_parsers_of_the_serve_line_exist():
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    reasoning = re.search(r"--reasoning-parser (\w+)", README)[1]
    tools = re.search(r"--tool-call-parser (\w+)", README)[1]
    assert ReasoningParserManager.get_reasoning_parser(reasoning)
    assert ToolParserManager.get_tool_parser(tools)

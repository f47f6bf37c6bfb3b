"""Writes docs/options.md from config.py and envs.py.

    python docs/make_options.py

A test compares the page with what this would write.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from types import FunctionType
from typing import Any

from pages import table

from vllm_deepinfer import envs
from vllm_deepinfer.config import KEY, option_docs

OUTPUT = Path(__file__).with_name("options.md")
TEXT = """# Options

Written by `docs/make_options.py` from `vllm_deepinfer/config.py` and `vllm_deepinfer/envs.py`.

## `--additional-config`

This package's options go under one key of vLLM's `--additional-config` (or of
`LLM(additional_config=...)`):

    vllm serve DIR --additional-config '{example}'

An unknown option, or a value that is not allowed, stops the start with a sentence that names it
and what is allowed. `vllm-deepinfer doctor DIR` with the same flags checks a whole configuration
without starting it.

{options}

## Environment

{variables}
"""
EXAMPLE = {KEY: {"prefill_vote": "slo", "ttft_target_ms": 1500}}


def option_rows() -> list[tuple[str, ...]]:
    return [
        (f"`{doc.name}`", code(doc.allowed), shown(doc.default), doc.help) for doc in option_docs()
    ]


def variable_rows() -> list[tuple[str, str]]:
    """The variables' functions document them: `NAME`: what it does. Default: what follows."""
    rows = []
    for function in vars(envs).values():
        if not isinstance(function, FunctionType) or function.__name__.startswith("_"):
            continue
        text = inspect.getdoc(function) or ""
        found = re.match(r"(`DEEPINFER_\w+`): (.*?)(?:\n\nRaises:|\Z)", text, re.DOTALL)
        if found is None:
            raise SystemExit(f"envs.{function.__name__} does not say which variable it reads")
        rows.append((found[1], sentence(" ".join(found[2].split()))))
    return rows


def code(allowed: str) -> str:
    return re.sub(r"'([^']*)'", r"`\1`", allowed)


def shown(default: Any) -> str:
    return "" if default == "" else f"`{json.dumps(default).strip(chr(34))}`"


def sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def page() -> str:
    return TEXT.format(
        example=json.dumps(EXAMPLE),
        options=table(("option", "allowed", "default", ""), option_rows(), texts=4),
        variables=table(("variable", ""), variable_rows(), texts=2),
    )


if __name__ == "__main__":
    OUTPUT.write_text(page())
    print(f"Wrote {OUTPUT}")

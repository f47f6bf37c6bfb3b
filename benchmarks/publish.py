"""Where a benchmark's result goes: a file, and the standard output as JSON or as a table."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any


def publish(
    options: argparse.Namespace, result: dict[str, Any], table: Callable[[dict[str, Any]], str]
) -> None:
    """Write ``result`` to ``options.out``, if given, and print it.

    Args:
        options: ``out``, a path or None, and ``json``: print JSON instead of the table.
        table: the result for people.
    """
    document = json.dumps(result, indent=2)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(document + "\n", encoding="utf-8")
    print(document if options.json else table(result))

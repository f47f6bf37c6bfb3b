"""Built-in configurations: the published model's and a tiny one with every kind of layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent
PRESETS = ("published", "tiny")
TINY_TOKENIZER = _FOLDER / "tiny_tokenizer.json"


def preset(name: str) -> dict[str, Any]:
    """Return the content of a preset's ``config.json``.

    Raises:
        ValueError: there is no preset of that name.
    """
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name!r}; presets are {', '.join(PRESETS)}")
    return json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))

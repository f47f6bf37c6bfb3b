"""Learned step costs between two runs of a server.

They hold for one machine, software, model, KV format and parallel layout. The key names all of
them; a file of another key is not used.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm_deepinfer.scheduler.step_cost import StepCost

KEY_PARTS = ("hardware", "versions", "model", "kv_format", "parallel_layout")


def store_key(parts: Mapping[str, Any]) -> str:
    """Hexadecimal digest of what step costs depend on.

    Args:
        parts: a JSON value for each of ``KEY_PARTS``.

    Raises:
        ValueError: a part is missing, empty or unknown.
    """
    if unknown := sorted(set(parts) - set(KEY_PARTS)):
        raise ValueError(f"unknown parts {unknown} of a key of step costs; allowed: {KEY_PARTS}")
    for name in KEY_PARTS:
        if parts.get(name) in (None, "", {}, []):
            raise ValueError(
                f"the key of step costs has no {name!r}; costs measured elsewhere would pass as "
                "this machine's"
            )
    canonical = json.dumps(dict(parts), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def save(path: Path, key: str, cost: StepCost) -> None:
    """Write the costs; a reader sees the file before or after, never a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = json.dumps({"key": key, "step_cost": cost.state()}, allow_nan=False)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(document)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def load(path: Path, key: str) -> StepCost | None:
    """The costs saved under ``key``; none where there is no file, or one of another key.

    Raises:
        ValueError: the file is damaged; names it.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
        if document["key"] != key:
            return None
        return StepCost.from_state(document["step_cost"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"the saved step costs in {path} are damaged ({error}); delete the file to measure anew"
        ) from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no time")

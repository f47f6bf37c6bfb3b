"""Which checkpoint is this? A hash that is cheap for any size and stable under resharding."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_deepinfer.drafting.calibration import CalibrationError

DRAFT_PREFIX = "mtp."
TARGET_NORM = "norm.weight"
# Norms, biases and the confidence head, a megabyte in all; the headers alone cannot tell one
# training run from the next.
MAX_HASHED_BYTES = 65536
_LENGTH_BYTES = 8


@dataclass(frozen=True)
class _Entry:
    """One tensor of a shard; ``start`` and ``end`` are offsets in the file, in bytes."""

    path: Path
    dtype: str
    shape: list[int]
    start: int
    end: int


def checkpoint_identity(folder: str | os.PathLike[str]) -> str:
    """SHA-256, in hexadecimal, of what a calibration depends on.

    That is the content of ``config.json``, the name, type and shape of every tensor of the draft
    stages and of the target's last norm, and the bytes of those of at most ``MAX_HASHED_BYTES``.
    How tensors are spread over shards does not matter, nor how the JSON is laid out.

    Raises:
        CalibrationError: the folder has no draft stages, or a file cannot be read.
        CheckpointFilesError: shards are absent.
    """
    from vllm_deepinfer.models.deepseek_v41.checkpoint_files import shard_paths

    entries: dict[str, _Entry] = {}
    try:
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        for path in shard_paths(folder):
            entries.update(_header(path))
        if not any(name.startswith(DRAFT_PREFIX) for name in entries):
            raise CalibrationError(
                f"{folder} has no tensors {DRAFT_PREFIX}*; a checkpoint without draft stages "
                f"drafts nothing that could be calibrated."
            )
        return _hash(config, entries)
    except OSError as error:
        raise CalibrationError(f"{folder} cannot be read: {error}.") from error
    except json.JSONDecodeError as error:
        raise CalibrationError(f"{folder}: config.json is not JSON: {error}.") from error


def _header(path: Path) -> dict[str, _Entry]:
    """The tensors of a shard that count for the identity."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        data_start = _LENGTH_BYTES + length
        if not 0 < length <= size - _LENGTH_BYTES:
            raise CalibrationError(f"{path} is cut short or not a safetensors file.")
        content = file.read(length)
    try:
        entries = {
            name: _Entry(
                path,
                entry["dtype"],
                entry["shape"],
                *(data_start + offset for offset in entry["data_offsets"]),
            )
            for name, entry in json.loads(content).items()
            if name == TARGET_NORM or name.startswith(DRAFT_PREFIX)
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CalibrationError(f"{path} has a damaged safetensors header: {error!r}.") from error
    for name, entry in entries.items():
        if not data_start <= entry.start <= entry.end <= size:
            raise CalibrationError(f"{path} is cut short: it ends before {name} does.")
    return entries


def _hash(config: Any, entries: dict[str, _Entry]) -> str:
    digest = hashlib.sha256(_canonical(config))
    for name in sorted(entries):
        entry = entries[name]
        digest.update(_canonical([name, entry.dtype, entry.shape]))
        if entry.end - entry.start <= MAX_HASHED_BYTES:
            with entry.path.open("rb") as file:
                file.seek(entry.start)
                digest.update(file.read(entry.end - entry.start))
    return digest.hexdigest()


def _canonical(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode() + b"\n"

"""Read a checkpoint folder one tensor at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


class CheckpointFilesError(ValueError):
    """A checkpoint folder lacks files or holds damaged ones."""


def shard_paths(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the shards of a checkpoint: those its index names, or the single file.

    Raises:
        CheckpointFilesError: there is neither, or shards named by the index are absent.
    """
    folder = Path(folder)
    index, single = folder / INDEX_NAME, folder / SINGLE_NAME
    if not index.is_file():
        if single.is_file():
            return [single]
        raise CheckpointFilesError(
            f"{folder} has neither {INDEX_NAME} nor {SINGLE_NAME}; it is not a checkpoint folder."
        )
    names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise CheckpointFilesError(
            f"{folder} lacks {len(absent)} of the {len(names)} shards its {INDEX_NAME} names: "
            f"{', '.join(absent[:8])}{', ...' if len(absent) > 8 else ''}; download it again."
        )
    return [folder / name for name in names]


def iterate_tensors(folder: str | os.PathLike[str]) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor of a whole checkpoint; one shard is mapped at a time.

    Raises:
        CheckpointFilesError: see :func:`shard_paths`; or a shard cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    for path in shard_paths(folder):
        try:
            with safe_open(path, framework="pt") as shard:
                for name in shard.keys():  # noqa: SIM118  (not a dict)
                    yield name, shard.get_tensor(name)
        except SafetensorError as error:
            raise CheckpointFilesError(
                f"{path} cannot be read ({error}); it was probably cut short, download it again."
            ) from error

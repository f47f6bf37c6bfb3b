"""A checkpoint's identity is that of its draft stages, however it is stored.

Claim: copies and resharded copies of a checkpoint have one identity; another configuration, another
training run of the draft stages or of the target, and other shapes have others. If this breaks, a
calibration is applied to a model it was not fitted for.
Run: python -m pytest tests/drafting/test_checkpoint_identity.py (about 5 s).
"""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from vllm_deepinfer.checkpoint_maker.maker import make_tiny_checkpoint
from vllm_deepinfer.drafting.calibration import CalibrationError
from vllm_deepinfer.drafting.checkpoint_identity import MAX_HASHED_BYTES, checkpoint_identity
from vllm_deepinfer.models.deepseek_v41.checkpoint_files import CheckpointFilesError

CONFIG = {"text_config": {"hidden_size": 4}, "name": "small"}
LARGE = MAX_HASHED_BYTES // 4 + 1


def tensors():
    return {
        "norm.weight": torch.ones(4),
        "layers.0.attn_norm.weight": torch.ones(4),
        "mtp.0.norm.weight": torch.arange(4.0),
        "mtp.0.confidence_head.proj.weight": torch.arange(8.0).reshape(1, 8),
        "mtp.0.large.weight": torch.zeros(LARGE),
    }


def write(folder, content, config=CONFIG, shards=1, indent=None):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=indent))
    if shards == 1:
        save_file(content, folder / "model.safetensors")
        return folder
    weight_map = {}
    for shard in range(shards):
        part = {name: content[name] for name in sorted(content)[shard::shards]}
        save_file(part, folder / f"part-{shard}.safetensors")
        weight_map |= dict.fromkeys(part, f"part-{shard}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_storage_does_not_matter(tmp_path):
    one = checkpoint_identity(write(tmp_path / "one", tensors()))
    reordered = dict(reversed(CONFIG.items()))
    three = write(tmp_path / "three", tensors(), reordered, shards=3, indent=4)
    assert checkpoint_identity(three) == one
    assert len(one) == 64 and int(one, 16)


@pytest.mark.parametrize(
    "changes",
    [
        {"mtp.0.confidence_head.proj.weight": torch.ones(1, 8)},
        {"mtp.0.confidence_head.proj.weight": torch.arange(8.0).reshape(8, 1)},
        {"mtp.0.norm.weight": torch.arange(4.0).to(torch.bfloat16)},
        {"mtp.0.large.weight": torch.zeros(LARGE + 1)},
        {"mtp.1.norm.weight": torch.ones(4)},
        {"norm.weight": torch.full((4,), 2.0)},
    ],
)
def test_other_weights_are_another_checkpoint(tmp_path, changes):
    one = checkpoint_identity(write(tmp_path / "one", tensors()))
    assert checkpoint_identity(write(tmp_path / "two", tensors() | changes)) != one


def test_another_configuration_is_another_checkpoint(tmp_path):
    one = checkpoint_identity(write(tmp_path / "one", tensors()))
    other = {**CONFIG, "name": "other"}
    assert checkpoint_identity(write(tmp_path / "two", tensors(), other)) != one


def test_what_is_not_hashed_is_large_or_no_matter_of_the_drafts(tmp_path):
    one = checkpoint_identity(write(tmp_path / "one", tensors()))
    changes = {
        "mtp.0.large.weight": torch.ones(LARGE),
        "layers.0.attn_norm.weight": torch.zeros(4),
    }
    assert checkpoint_identity(write(tmp_path / "two", tensors() | changes)) == one


def test_seeds_of_the_tiny_checkpoint_are_told_apart(tmp_path, tiny_folder):
    make_tiny_checkpoint(tmp_path / "other", seed=1)
    assert checkpoint_identity(tiny_folder) == checkpoint_identity(tiny_folder)
    assert checkpoint_identity(tiny_folder) != checkpoint_identity(tmp_path / "other")


def test_a_checkpoint_without_draft_stages_is_refused(tmp_path):
    target = {name: value for name, value in tensors().items() if not name.startswith("mtp.")}
    with pytest.raises(CalibrationError, match=r"no tensors mtp\.\*"):
        checkpoint_identity(write(tmp_path / "one", target))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:-100], "it ends before"),
        (lambda data: data[:50], "cut short or not a safetensors file"),
        (lambda data: b"", "cut short or not a safetensors file"),
        (lambda data: data[:8] + b"x" + data[9:], "damaged safetensors header"),
        (lambda data: data.replace(b'"dtype"', b'"dtipe"'), "damaged safetensors header"),
    ],
)
def test_damaged_shards_are_named(tmp_path, damage, words):
    folder = write(tmp_path / "one", tensors())
    path = folder / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CalibrationError, match=words) as error:
        checkpoint_identity(folder)
    assert str(path) in str(error.value)


def test_missing_or_damaged_files_are_named(tmp_path):
    folder = write(tmp_path / "one", tensors(), shards=2)
    (folder / "part-1.safetensors").unlink()
    with pytest.raises(CheckpointFilesError, match="lacks 1 of the 2 shards"):
        checkpoint_identity(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(CalibrationError, match=r"config\.json is not JSON"):
        checkpoint_identity(folder)
    (folder / "config.json").unlink()
    with pytest.raises(CalibrationError, match=r"config\.json"):
        checkpoint_identity(folder)

"""Loading needs the model and one shard, not the model twice.

Measured in a process of its own as growth of the peak resident size (which counts mapped files)
over the resident size of the empty model. The checkpoint is four times its largest shard.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vllm_deepinfer.checkpoint_maker.shards import plan_shards, shard_name, units
from vllm_deepinfer.models.deepseek_v41.checkpoint_files import (
    INDEX_NAME,
    CheckpointFilesError,
    iterate_tensors,
    shard_paths,
)
from vllm_deepinfer.models.deepseek_v41.config import V41Config
from vllm_deepinfer.models.deepseek_v41.presets import preset
from vllm_deepinfer.models.deepseek_v41.schema import schema

BYTES_PER_MIB = 2**20
WIDE = {"num_attention_heads": 64, "n_routed_experts": 32, "moe_intermediate_size": 512}
SHARD_BYTES = 32 * BYTES_PER_MIB

PROBE = """
import dataclasses, sys
sys.path.insert(0, {tests!r})
from parameter_modules import module_of
from vllm_deepinfer.models.deepseek_v41.checkpoint_files import iterate_tensors
from vllm_deepinfer.models.deepseek_v41.config import V41Config
from vllm_deepinfer.models.deepseek_v41.presets import preset
from vllm_deepinfer.models.deepseek_v41.weights import expected_parameters, load_weights

def kib(field):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))

config = dataclasses.replace(V41Config.from_dict(preset("tiny")), **{wide!r})
model = module_of(expected_parameters(config, "target"))
open("/proc/self/clear_refs", "w").write("5")  # reset the peak
before = kib("VmRSS")
weights = iterate_tensors({folder!r})
load_weights(model, {stream}, config, "target")
print(kib("VmHWM") - before)
"""


@pytest.fixture(scope="module")
def wide_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wide")
    config = dataclasses.replace(V41Config.from_dict(preset("tiny")), **WIDE)
    shards = plan_shards(units(schema(config).values()), SHARD_BYTES)
    for number, shard in enumerate(shards):
        tensors = {
            spec.name: torch.zeros(spec.shape, dtype=spec.dtype) for unit in shard for spec in unit
        }
        save_file(tensors, folder / shard_name(number, len(shards)))
    index = {
        name: shard_name(number, len(shards))
        for number, shard in enumerate(shards)
        for unit in shard
        for name in (spec.name for spec in unit)
    }
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": index}))
    return folder


def peak_growth_bytes(folder: Path, stream: str) -> int:
    code = PROBE.format(
        tests=str(Path(__file__).parents[1]), wide=WIDE, folder=str(folder), stream=stream
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(run.stdout) * 1024


def test_peak_stays_below_one_shard(wide_folder):
    sizes = [path.stat().st_size for path in shard_paths(wide_folder)]
    assert sum(sizes) > 3 * max(sizes)
    slack = 16 * BYTES_PER_MIB
    assert peak_growth_bytes(wide_folder, "weights") < max(sizes) + slack
    # the measurement sees a loader that keeps what it has read
    assert peak_growth_bytes(wide_folder, "list(weights)") > max(sizes) + slack


def test_absent_and_cut_shards_are_named(tiny_folder, tmp_path):
    for path in tiny_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    cut = tmp_path / "model-00003-of-00003.safetensors"
    cut.write_bytes(cut.read_bytes()[:-1000])
    with pytest.raises(CheckpointFilesError, match="00003-of-00003.* cannot be read"):
        list(iterate_tensors(tmp_path))
    cut.unlink()
    with pytest.raises(CheckpointFilesError, match="lacks 1 of the 3 shards.*model-00003-of-00003"):
        list(iterate_tensors(tmp_path))
    (tmp_path / INDEX_NAME).unlink()
    with pytest.raises(CheckpointFilesError, match="neither"):
        list(iterate_tensors(tmp_path))

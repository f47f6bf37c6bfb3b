"""``vllm-deepinfer selfcheck`` passes on the recorded checkpoint and fails when something is off.

If this breaks, a user on other hardware is told that a wrong model is right, or the reverse.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from vllm_deepinfer.cli import main

RECORDED = Path(__file__).parents[1] / "data" / "v41_tiny"
GOLDEN = RECORDED / "golden.json"


def test_recorded_checkpoint_passes_in_every_mode(capsys):
    assert main(["selfcheck", str(RECORDED), str(GOLDEN)]) == 0
    printed = capsys.readouterr().out
    for mode in json.loads(GOLDEN.read_text())["modes"]:
        assert mode in printed
    assert "MISS" not in printed and printed.rstrip().endswith("passed")


def altered(tmp_path: Path, change) -> Path:
    content = json.loads(GOLDEN.read_text())
    change(content)
    path = tmp_path / "golden.json"
    path.write_text(json.dumps(content))
    return path


def shift_a_logit(content):
    content["modes"]["structural_fp32_no_quantisers"]["top5_logits"]["259"][0][1] *= 1.001


def swap_an_expert(content):
    sets = content["modes"]["structural_fp32_no_quantisers"]["experts"]["3"]
    sets["127"] = [expert ^ 1 for expert in sets["127"]]


def move_an_engram_row(content):
    content["engram_rows"]["rows"]["128"][0] += 1


@pytest.mark.parametrize("change", [shift_a_logit, swap_an_expert, move_an_engram_row])
def test_any_recorded_quantity_that_differs_is_a_miss(change, tmp_path, capsys):
    content_only_strict = altered(tmp_path, lambda c: (change(c), c["modes"].pop(
        "reference_bf16_quantised")))  # fmt: skip
    assert main(["selfcheck", str(RECORDED), str(content_only_strict)]) == 1
    assert "MISS" in capsys.readouterr().out


def test_recording_of_other_weights_is_refused(tiny_folder, tmp_path, capsys):
    other = tmp_path / "other"
    shutil.copytree(tiny_folder, other)
    config = json.loads((RECORDED / "config.json").read_text())
    path = altered(tmp_path, lambda c: c["config"].update(
        json.loads((other / "config.json").read_text())))  # fmt: skip
    assert main(["selfcheck", str(other), str(path)]) == 2
    assert "SHA-256" in capsys.readouterr().err
    assert config["text_config"]["vocab_size"] == 512


def test_recording_of_another_configuration_is_refused(tiny_folder, capsys):
    assert main(["selfcheck", str(tiny_folder), str(GOLDEN)]) == 2
    assert "configuration other than" in capsys.readouterr().err


def test_unknown_mode_is_refused_with_the_known_ones(tmp_path, capsys):
    path = altered(tmp_path, lambda c: c["modes"].update(other={}))
    assert main(["selfcheck", str(RECORDED), str(path)]) == 2
    assert "structural_fp32_no_quantisers" in capsys.readouterr().err


def test_missing_files_are_named(tmp_path, capsys):
    assert main(["selfcheck", str(tmp_path), str(GOLDEN)]) == 2
    assert "config.json does not exist" in capsys.readouterr().err

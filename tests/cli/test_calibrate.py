"""`vllm-deepinfer calibrate` turns records into a calibration this checkpoint can load.

Claim: the command fits what was recorded, shows it, and writes a file that `load_calibration`
accepts for this checkpoint only; it refuses in one sentence and then writes nothing. If this
breaks, people serve with temperatures they did not fit.
Run: python -m pytest tests/cli/test_calibrate.py (about 5 s).
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from vllm_deepinfer.cli import main
from vllm_deepinfer.drafting.calibration import load_calibration
from vllm_deepinfer.drafting.checkpoint_identity import checkpoint_identity

TRUE = (1.4, 0.7)


def write_records(path, blocks=20_000, size=2, offered=2):
    rng = np.random.default_rng(11)
    logits = rng.normal(1.0, 1.5, (blocks, size)).round(4)
    true = np.resize(TRUE, size)
    survives = rng.random((blocks, size)) < 1 / (1 + np.exp(-logits / true))
    accepted = np.minimum(np.cumprod(survives, axis=1).sum(axis=1), offered)
    with path.open("w") as file:
        for z, m in zip(logits.tolist(), accepted.tolist(), strict=True):
            record = {"confidence_logits": z, "offered": offered, "accepted": m, "request_id": "r"}
            file.write(json.dumps(record) + "\n")
    return path


@pytest.fixture
def calibrate(tiny_folder, tmp_path):
    def run(records, *more, output=tmp_path / "calibration.json", checkpoint=tiny_folder):
        arguments = [str(records), "--checkpoint", str(checkpoint), "--output", str(output), *more]
        return main(["calibrate", *arguments])

    return run


def test_records_become_a_calibration(calibrate, tmp_path, tiny_folder, capsys):
    output = tmp_path / "calibration.json"
    records = write_records(tmp_path / "records.jsonl")
    assert calibrate(records) == 0
    identity = checkpoint_identity(tiny_folder)
    calibration = load_calibration(output, identity, 2)
    np.testing.assert_allclose(calibration.temperatures, TRUE, rtol=0.1)
    assert calibration.fitted == (True, True)

    shown = capsys.readouterr()
    assert shown.err == ""
    lines = shown.out.splitlines()
    assert lines[0] == "20000 blocks of 2 drafts"
    assert lines[-1] == f"{output}: written for checkpoint {identity}"
    report = json.loads(output.read_text())["report"]
    for position, (line, row) in enumerate(zip(lines[2:4], report, strict=True)):
        errors = row["conditional"]
        assert line.split()[:4] == [
            str(position),
            str(row["samples"]),
            str(row["accepted"]),
            f"{calibration.temperatures[position]:.4f}",
        ]
        assert f"{errors['before']:.2%} -> {errors['after']:.2%} ({errors['noise']:.2%})" in line
        assert errors["before"] > 0.03 and errors["after"] < 0.012

    first = output.read_bytes()
    assert calibrate(records) == 2
    assert "exists; give --force" in capsys.readouterr().err
    assert calibrate(records, "--force") == 0
    assert output.read_bytes() == first


def test_positions_with_few_samples_are_named(calibrate, tmp_path, tiny_folder, capsys):
    records = write_records(tmp_path / "records.jsonl", blocks=600, size=3)
    assert calibrate(records) == 0
    shown = capsys.readouterr()
    assert shown.out.count("not fitted") == 2
    assert "position 1 is not fitted and stays at temperature 1: " in shown.err
    assert "position 2 is not fitted and stays at temperature 1: 0 samples, 500 n" in shown.err
    output = tmp_path / "calibration.json"
    calibration = load_calibration(output, checkpoint_identity(tiny_folder), 3)
    assert calibration.fitted == (True, False, False)
    assert calibration.temperatures[1:] == (1.0, 1.0)
    assert calibrate(records, "--force", "--min-samples", "100") == 0
    assert capsys.readouterr().out.count("not fitted") == 1


def test_nothing_fitted_writes_nothing(calibrate, tmp_path, capsys):
    assert calibrate(write_records(tmp_path / "records.jsonl", blocks=50)) == 2
    shown = capsys.readouterr()
    assert "50 blocks of 2 drafts" in shown.out
    assert "no position could be fitted" in shown.err
    assert not (tmp_path / "calibration.json").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"records": "absent"}, "absent does not exist"),
        ({"checkpoint": "absent"}, "config.json does not exist"),
        ({"output": "absent/file"}, "absent is not a folder"),
        ({"output": "."}, "is a folder; give a file"),
        ({"output": "records.jsonl", "more": ["--force"]}, "holds the records"),
        ({"more": ["--min-samples", "0"]}, "--min-samples 0 is not allowed"),
        ({"append": b'{"confidence_logits": [1, 2], "offered": 2}\n'}, "line 101: missing ['acc"),
        ({"size": 6}, "drafts at most 5"),
    ],
)
def test_refusals_are_one_sentence_and_write_nothing(
    calibrate, tmp_path, tiny_folder, capsys, options, words
):
    records = write_records(tmp_path / "records.jsonl", blocks=100, size=options.get("size", 2))
    with records.open("ab") as file:
        file.write(options.get("append", b""))
    before = records.read_bytes()
    code = calibrate(
        tmp_path / options.get("records", "records.jsonl"),
        *options.get("more", []),
        output=tmp_path / options.get("output", "calibration.json"),
        checkpoint=tmp_path / options["checkpoint"] if "checkpoint" in options else tiny_folder,
    )
    assert code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("vllm-deepinfer: ") and shown.err.count("\n") == 1
    assert words in shown.err
    assert [path.name for path in tmp_path.iterdir()] == ["records.jsonl"]
    assert records.read_bytes() == before

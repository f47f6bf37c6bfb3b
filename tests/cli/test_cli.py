"""The command line answers at once, prints what it promises and refuses in one sentence."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from vllm_deepinfer.cli import main
from vllm_deepinfer.models.deepseek_v41.presets import preset

RUN = "import sys; from vllm_deepinfer.cli import main; sys.exit(main())"


def test_schema_of_the_published_model(capsys):
    assert main(["schema"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "96085 tensors, 510286023000 bytes"
    assert len(lines) == 96086
    assert lines[0].split(maxsplit=2) == ["embed.weight", "BF16", "[129280, 5120]    1323827200"]
    assert sum(int(line.split()[-1]) for line in lines[:-1]) == 510286023000


def test_schema_takes_a_preset_a_file_or_a_folder(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(preset("tiny")))
    outputs = set()
    for argument in ("tiny", str(tmp_path), str(tmp_path / "config.json")):
        assert main(["schema", argument]) == 0
        outputs.add(capsys.readouterr().out)
    assert len(outputs) == 1
    assert outputs.pop().endswith("668 tensors, 20469336 bytes\n")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist; give a config.json, a folder with one, or a preset"),
        ("{", "is not JSON"),
        ("{}", "has no 'text_config'"),
    ],
)
def test_schema_refuses(capsys, tmp_path, content, message):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    assert main(["schema", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("vllm-deepinfer: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_make_checkpoint_shows_progress_and_refuses_a_second_time(capsys, tmp_path):
    folder = tmp_path / "deep" / "model"
    assert main(["make-checkpoint", str(folder), "--preset", "tiny", "--seed", "3"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{folder}: 668 tensors, 20469336 bytes in 3 shards, seed 3\n"
    shown = captured.err.splitlines()
    assert [line.split(":")[0] for line in shown] == [f"shard {n} of 3" for n in (1, 2, 3)]
    assert shown[-1].endswith("668 of 668 tensors, 20.5 of 20.5 MB")
    assert main(["make-checkpoint", str(folder), "--preset", "tiny"]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main(["make-checkpoint", str(folder), "--preset", "tiny", "--force"]) == 0


@pytest.mark.parametrize(
    "arguments",
    [[], ["bogus"], ["make-checkpoint", "x"], ["schema", "tiny", "--max-num-seqs", "3"]],
)
def test_wrong_usage_exits_with_two(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage: vllm-deepinfer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "shown"), [(["--help"], "make-checkpoint"), (["doctor", "--help"], "--json")]
)
def test_help_imports_nothing_heavy(arguments, shown):
    code = (
        "import sys\nfrom vllm_deepinfer.cli import main\n"
        f"try: main({arguments})\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'numpy', 'vllm', 'tokenizers', 'safetensors'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"
    assert shown in run.stdout


def test_a_reader_that_stops_early_is_no_error():
    command = subprocess.Popen(
        [sys.executable, "-c", RUN, "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert command.stdout.readline().startswith(b"embed.weight")
    command.stdout.close()
    assert command.stderr.read() == b""
    assert command.wait() == 0

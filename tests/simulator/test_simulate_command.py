"""`vllm-deepinfer simulate` prints, plots and sweeps, and refuses in one sentence."""

from __future__ import annotations

import builtins
import json
import subprocess
import sys

import pytest

from vllm_deepinfer.cli import main

SHORT = ["simulate", "--steps", "60", "--ranks", "2", "--sequences", "8", "--warmup", "0"]


def test_one_run_prints_its_figures(capsys):
    assert main(SHORT) == 0
    printed = capsys.readouterr().out
    assert "60 steps" in printed
    assert [line[:21] for line in printed.splitlines()[-4:]] == [
        "time to first token, ",
        "time between deliveri",
        "time per output token",
        "decode steps until th",
    ]


def test_json_has_everything_and_repeats(capsys):
    arguments = [*SHORT, "--json", "--vote", "slo", "--verification", "adaptive", "--drafts", "3"]
    documents = []
    for _ in range(2):
        assert main(arguments) == 0
        documents.append(json.loads(capsys.readouterr().out))
    assert documents[0] == documents[1]
    assert documents[0]["options"]["vote"] == "slo"
    result = documents[0]["result"]
    assert result["steps"] == 60
    assert set(result["itl_ms"]) == {"mean", "p50", "p90", "p99", "max"}
    assert 0 < result["drafting"]["verified_per_block"] <= 3


def test_a_sweep_has_a_row_per_value_and_a_plot(capsys, tmp_path):
    plot = tmp_path / "sweep.png"
    sweep = [*SHORT, "--vote", "cadence", "--sweep", "any_interval=2,10", "--plot", str(plot)]
    assert main(sweep) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["any_interval", "2", "10"]
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_run_has_a_plot(tmp_path):
    plot = tmp_path / "run.svg"
    assert main([*SHORT, "--verification", "fixed", "--plot", str(plot)]) == 0
    assert "<svg" in plot.read_text()


def test_a_recorded_trace_is_run_to_its_end(capsys, tmp_path):
    trace = tmp_path / "trace.jsonl"
    lines = [
        json.dumps({"arrival_ms": 10 * i, "prompt_tokens": 50, "output_tokens": 4, "rank": i % 2})
        for i in range(7)
    ]
    trace.write_text("\n".join(lines))
    assert main([*SHORT, "--trace", str(trace), "--steps", "9999", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["requests"]["finished"] == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--any-interval", "3"], "any_interval would change nothing without a vote"),
        (["--drafts", "3"], "drafts would change nothing without drafting"),
        (["--concurrency", "3"], "concurrency would change nothing in trace 'poisson'"),
        (["--verification", "fixed", "--drafts", "9"], "survival is given for 0 to 7 drafts"),
        (["--vote", "slo", "--itl-target-ms", "-1"], "itl_target_ms is -1.0"),
        (["--vote", "slo", "--prefill-interval", "2"], "prefill_interval is 2 beside a vote"),
        (["--trace", "nowhere.jsonl"], "trace 'nowhere.jsonl' is neither a file nor one of"),
        (["--curve", "h100"], "curve 'h100' is neither a file nor one of mi350x-v4, dp8-prefill"),
        (["--ranks", "0"], "ranks is 0; it must be an integer of at least 1"),
        (["--rate", "nan"], "rate_per_s is nan"),
        (["--kv-tokens", "100"], "kv_tokens is 100"),
        (["--chunk-tokens", "4"], "do not fit into chunk_tokens, which is 4"),
        (["--sweep", "speed=1,2"], "unknown options ['speed']"),
        (["--sweep", "ranks"], "not of the form OPTION=V,V"),
        (["--sweep", "ranks=1,2"], "ranks is both given and swept"),
        (["--plot", "x.jpg"], "must end in .png, .svg or .pdf"),
        (["--plot", "nowhere/x.png"], "nowhere is not a folder"),
    ],
)
def test_it_refuses_in_one_sentence(capsys, arguments, message):
    assert main([*SHORT, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err.splitlines()[-1]


def test_without_matplotlib_a_plot_is_refused_and_all_else_works(capsys, tmp_path, monkeypatch):
    original = builtins.__import__

    def blocked(name, *args, **kwargs):
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", blocked)
    assert main(SHORT) == 0
    capsys.readouterr()
    assert main([*SHORT, "--plot", str(tmp_path / "x.png")]) == 2
    assert "pip install 'vllm-deepinfer[plot]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_it_needs_neither_torch_nor_vllm_nor_matplotlib():
    code = (
        "import sys\nfrom vllm_deepinfer.cli import main\n"
        f"main({[*SHORT, '--verification', 'adaptive', '--vote', 'cadence']!r})\n"
        "print(sorted({'torch', 'vllm', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"

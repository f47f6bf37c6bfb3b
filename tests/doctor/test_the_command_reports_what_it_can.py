"""The command prints one document, as text or JSON, exits by what it found, and never dies of it.

Claim: the JSON has the documented layout and nothing else on standard output; where torch or vLLM
cannot be imported, the report still names platform, versions, the reason and the fix; options can
be checked for a platform that is not here; what cannot be checked is said. If this breaks, scripts
that read the report do, and the people with the worst installations get no report at all.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest

import vllm_deepinfer.doctor
from vllm_deepinfer.doctor import serving
from vllm_deepinfer.doctor.diagnose import diagnose
from vllm_deepinfer.doctor.report import text
from vllm_deepinfer.doctor.state import look
from vllm_deepinfer.platforms.detect import Detection
from vllm_deepinfer.platforms.probes import VllmBuild

LENGTH = ("--max-model-len", "2048")
RUN = "import sys; from vllm_deepinfer.cli import main; sys.exit(main())"
LAYOUT = {
    "": "format ok package platform vllm_build versions platform_plugins extensions kernels "
    "findings vllm_warnings model",
    "platform": "name class reason in_force checked",
    "model": "model architectures checkpoint features limits graphs engram memory",
    "model.graphs": "mode with_drafts_tokens without_drafts_tokens largest_decode_tokens "
    "covers_largest_decode",
    "model.memory": "ranks kv_caches kv_pool",
    "model.engram": "tables_bytes place",
    "model.memory.ranks.0": "experts_bytes engram_bytes drafts_bytes other_bytes total_bytes",
    "model.memory.kv_caches.0": "kind num_layers row_bytes tokens_per_row bytes_per_token "
    "kept_tokens",
    "model.memory.kv_pool": "size_bytes block_bytes num_groups full_request_bytes num_blocks "
    "num_tokens num_full_requests problem",
    "model.features.0": "name is_on detail",
    "model.limits.0": "flag allowed why",
    "findings.0": "check level message fix",
    "versions.torch": "found tested",
}


def run(*arguments, **environ):
    return subprocess.run(
        [sys.executable, "-c", RUN, "doctor", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
    )


def part(document, path):
    for name in filter(None, path.split(".")):
        document = document[int(name) if name.isdigit() else name]
    return document


@pytest.fixture(scope="module")
def printed():
    return run("tiny", *LENGTH, "--json", "--platform", "cpu", DEEPINFER_REFERENCE_OPS="1")


def test_json_is_all_of_the_output_and_has_the_documented_layout(printed):
    document = json.loads(printed.stdout)
    assert printed.returncode == 0 and document["format"] == 1
    for path, names in LAYOUT.items():
        assert set(part(document, path)) == set(names.split()), path
    documented = set(re.findall(r"\w+", vllm_deepinfer.doctor.__doc__))
    for names in LAYOUT.values():
        assert set(names.split()) <= documented
    assert "reference_operations" in {finding["check"] for finding in document["findings"]}


def test_the_flags_of_vllm_are_those_of_its_parser():
    args = serving.parse(["tiny", "--max-num-seqs=3", "--port", "81", "--enable-expert-parallel"])
    assert (args.model, args.max_num_seqs, args.port) == ("tiny", 3, 81)
    assert args.enable_expert_parallel
    assert serving.parse(["--max-num-seqs", "3", "tiny"]).model == "tiny"


@pytest.mark.parametrize("arguments", [("tiny", "--no-such-flag"), ("--max-num-seqs", "3")])
def test_wrong_usage_exits_with_two(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        diagnose(arguments)
    assert stopped.value.code == 2
    assert capsys.readouterr().err.count("\n") == 2


def test_options_for_a_platform_that_is_not_here():
    result = run(
        *("published", "--platform", "ascend950", "--device-memory-gib", "128", "--json"),
        *("--data-parallel-size", "4", "--enable-expert-parallel", "--max-model-len", "8192"),
        *("--speculative-config", '{"method": "dspark", "num_speculative_tokens": 5}'),
    )
    document = json.loads(result.stdout)
    found = {finding["check"]: finding for finding in document["findings"]}
    assert document["platform"]["name"] == "cpu"
    assert document["platform"]["checked"] == "ascend950"
    assert found["device"]["level"] == "not_checked"
    graphs = document["model"]["graphs"]
    # Every size with drafts is a whole number of requests of six tokens.
    assert graphs["with_drafts_tokens"] and graphs["without_drafts_tokens"]
    assert all(size % 6 == 0 for size in graphs["with_drafts_tokens"])
    assert graphs["covers_largest_decode"]
    # A rank that does not fit its device is an error, by the plan's own figures.
    rank = document["model"]["memory"]["ranks"][0]["total_bytes"]
    is_too_much = rank > 0.92 * 128 * (1 << 30)
    assert (found.get("memory_fits", {}).get("level") == "error") == is_too_much
    assert result.returncode == (1 if is_too_much else 0)


@pytest.mark.parametrize(
    ("package", "raised", "fix"),
    [
        ("torch", "RuntimeError('backend extension: torch_npu')", "AUTOLOAD=0"),
        ("torch", "ImportError('libnuma.so.1: cannot open')", "libnuma1"),
    ],
)
def test_a_torch_that_cannot_be_imported_is_reported(tmp_path, package, raised, fix):
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(f"raise {raised}")
    result = run("tiny", "--json", PYTHONPATH=str(tmp_path))
    document = json.loads(result.stdout)
    assert result.returncode == 1 and not document["ok"]
    assert document["platform"]["name"] == "cpu"
    assert document["versions"]["torch"]["found"]
    found = {finding["check"]: finding for finding in document["findings"]}
    assert raised.split("'")[1] in found["import_torch"]["message"]
    assert fix in found["import_torch"]["fix"]
    assert found["model"]["level"] == "not_checked"


@pytest.fixture(scope="module")
def state():
    return replace(look({}), shm_free_bytes=None)  # whatever container the tests run in


def test_without_vllm_the_checkpoint_is_still_described(state):
    document = diagnose(("tiny", *LENGTH), state=replace(state, build=VllmBuild.ABSENT))
    found = {finding["check"]: finding for finding in document["findings"]}
    assert not document["ok"] and "install-vllm" in found["import_vllm"]["fix"]
    assert document["model"]["checkpoint"]["total_bytes"] == 20469336
    assert "checkpoint of tiny" in text(document)


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("operator torchvision::nms does not exist", "install-vllm"),
        ("Could not load this library: libtorchcodec_image.so torchcodec", "install-vllm"),
        ("No package metadata was found for vllm", "install-vllm"),
        ("Only one platform plugin can be activated", "VLLM_PLUGINS=deepinfer"),
        ("libhccl.so: cannot open shared object file", "set_env.sh"),
        ("No module named 'orjson'", "pip check"),
        ("No module named 'vllm'", "install-vllm"),
    ],
)
def test_known_failures_of_the_import_have_their_fix(state, monkeypatch, words, fix):
    def fail(name):
        if name.startswith("vllm"):
            raise OSError(words)

    monkeypatch.setattr(serving.importlib, "import_module", fail)
    document = diagnose((), state=state)
    (finding,) = document["findings"]
    assert (finding["check"], finding["level"]) == ("import_vllm", "error")
    assert words in finding["message"] and fix in finding["fix"]


def test_a_platform_that_cannot_be_used_here_is_not_checked(state, monkeypatch):
    classes = {"sm100": "vllm_deepinfer.no_such_module.Platform"}
    monkeypatch.setattr(serving, "PLATFORM_CLASSES", classes)
    document = diagnose(("tiny", *LENGTH), platform="sm100", state=state)
    levels = [finding["level"] for finding in document["findings"]]
    # Whoever asks by exit code whether these options serve must not be told yes by silence.
    assert levels == ["not_checked", "not_checked"] and not document["ok"]
    assert "no_such_module" in document["findings"][0]["message"]
    assert text(document).endswith(
        "no error found, but the options were not checked: whether this serves is not known"
    )


def test_options_for_elsewhere_need_no_platform_here(state):
    nothing = replace(state, detection=Detection(None, None, "no GPU"))
    assert not diagnose((), state=nothing)["ok"]
    document = diagnose((), platform="cpu", state=nothing)
    found = {finding["check"]: finding["level"] for finding in document["findings"]}
    assert document["ok"] and found == {"platform": "note", "device": "not_checked"}


def test_a_platform_that_vllm_does_not_use_is_an_error(state, monkeypatch):
    monkeypatch.setattr(serving, "platform_in_force", lambda: "vllm.platforms.cpu.CpuPlatform")
    document = diagnose((), state=state)
    (finding,) = document["findings"]
    assert finding["check"] == "platform_in_force" and finding["level"] == "error"


def test_a_broken_contract_is_an_error_per_symbol(state, monkeypatch):
    import vllm_deepinfer.contract as contract
    from vllm_deepinfer.contract.symbols import uses

    monkeypatch.setattr(contract, "CONTRACT", (uses("vllm.logger", "no_such_function"),))
    document = diagnose((), state=state)
    (finding,) = document["findings"]
    assert finding["check"] == "contract" and "no_such_function" in finding["message"]


def test_the_text_has_every_finding_and_the_verdict(state):
    warned = replace(state, environ={"TRITON_INTERPRET": "1"})
    shown = text(diagnose(("tiny", *LENGTH, "--enable-lora"), state=warned))
    assert "warning: triton_interpreter: TRITON_INTERPRET is set" in shown
    assert "ERROR: configuration: DeepSeek-V4.1 on the CPU platform refuses: --enable-lora" in shown
    assert shown.endswith("1 error(s): this cannot serve")
    shown = text(diagnose(("tiny", *LENGTH), state=state))
    for words in ("platform: cpu (vLLM is a CPU build)", "2.13.0", "weights", "KV pool", "window"):
        assert words in shown
    assert shown.endswith("no error found; not checked: 0")

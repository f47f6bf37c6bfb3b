"""Doctor refuses what a server would refuse, by the same sentence, and warns of what surprises.

Claim: refusals of vLLM and of the platform reach the document as errors; a sound configuration has
none; options without effect, uncovered graphs, too little memory and missing files are named; every
check of a model has a case here. If this breaks, doctor and server disagree.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from vllm_deepinfer.doctor import features, serving
from vllm_deepinfer.doctor.diagnose import diagnose
from vllm_deepinfer.doctor.features import Graphs
from vllm_deepinfer.doctor.model_checks import CHECKS
from vllm_deepinfer.doctor.state import look

LENGTH = ("--max-model-len", "2048")
DRAFTING = ("--speculative-config", '{"method": "dspark", "num_speculative_tokens": 5}')


@pytest.fixture(scope="module")
def state():
    return look({})


@pytest.fixture
def judge(state):
    def run(*arguments, **changes):
        document = diagnose(arguments, state=replace(state, **changes))
        return document, {finding["check"]: finding for finding in document["findings"]}

    return run


def options(**values):
    return ("--additional-config", json.dumps({"deepinfer": values}))


def test_a_sound_configuration_has_no_finding(judge, tiny_folder):
    document, found = judge(str(tiny_folder), *LENGTH, *DRAFTING)
    assert document["ok"] and found == {}
    features = {row["name"]: row for row in document["model"]["features"]}
    assert features["drafting"]["is_on"] and "5 drafts" in features["drafting"]["detail"]
    assert not features["batch invariance"]["is_on"]
    assert features["worker"]["detail"].endswith("DeepInferCpuWorker")


def test_features_follow_the_options(judge):
    extra = options(batch_invariant=True, prefill_vote="cadence", verification="adaptive")
    document, _ = judge("tiny", *LENGTH, *DRAFTING, *extra, "--no-enable-prefix-caching")
    on = {row["name"]: row["is_on"] for row in document["model"]["features"]}
    assert on["batch invariance"] and on["prefill vote"] and on["adaptive verification"]
    assert not on["prefix caching"] and not on["expert parallel"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--tensor-parallel-size", "2"), ["--tensor-parallel-size is 2", "allowed: 1"]),
        (("--enable-lora", "--block-size", "96"), ["--enable-lora is True", "--block-size is 96"]),
        (options(prefill_vote="never"), ["'prefill_vote'", "'never'", "cadence"]),
        (options(no_such=1), ["unknown option(s) no_such"]),
        (("--max-model-len", "999999999"), ["max_model_len"]),
        (("--quantization", "awq"), ["awq"]),
    ],
    ids=str,
)
def test_what_a_server_refuses_is_an_error(judge, arguments, words):
    document, found = judge("tiny", *arguments)
    assert not document["ok"] and set(found) == {"configuration"}
    for word in words:
        assert word in found["configuration"]["message"]
    message = found["configuration"]["message"]
    assert "validation error" not in message and "Value error" not in message
    # What the checkpoint holds does not depend on the options.
    assert document["model"]["checkpoint"]["total_bytes"] == 20469336


def test_too_many_drafts(judge):
    config = '{"method": "dspark", "num_speculative_tokens": 6}'
    document, found = judge("tiny", *LENGTH, "--speculative-config", config)
    assert not document["ok"]
    assert "1 to 5 are allowed" in found["draft_length"]["message"]


def test_a_broken_config_json(judge, tmp_path):
    (tmp_path / "config.json").write_text("{")
    document, found = judge(str(tmp_path), *LENGTH)
    assert not document["ok"]
    assert {"configuration", "model_config"} >= set(found) != set()


def test_weights_and_tokenizer_that_are_not_there(judge, tiny_folder, tmp_path):
    config = (tiny_folder / "config.json").read_text()
    (tmp_path / "config.json").write_text(config)
    document, found = judge(str(tmp_path), *LENGTH)
    assert document["ok"] and set(found) == {"weights_present", "tokenizer_fits"}
    assert all(finding["level"] == "warning" for finding in found.values())
    _, found = judge(str(tmp_path), *LENGTH, "--load-format", "dummy")
    assert set(found) == {"tokenizer_fits"}
    tokenizer = json.loads((tiny_folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary.pop(next(reversed(vocabulary)))
    tokenizer["model"]["merges"] = []
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    document, found = judge(str(tmp_path), *LENGTH)
    assert found["tokenizer_fits"]["level"] == "error"


def test_a_calibration_that_is_not_there(judge, tiny_folder):
    extra = options(confidence_calibration="/no/such/file.json")
    document, found = judge(str(tiny_folder), *LENGTH, *DRAFTING, *extra)
    assert not document["ok"] and "/no/such/file.json" in found["calibration_fits"]["message"]


def test_less_memory_than_the_weights(judge):
    needed = 17_813_824 + (1 << 29)
    assert judge("tiny", *LENGTH, memory_bytes=needed)[0]["ok"]
    document, found = judge("tiny", *LENGTH, memory_bytes=needed - 1)
    assert not document["ok"] and "0.52 GiB" in found["memory_fits"]["message"]
    two = ("--data-parallel-size", "2")
    assert not judge("tiny", *LENGTH, *two, memory_bytes=2 * needed - 1)[0]["ok"]
    assert judge("tiny", *LENGTH, *two, memory_bytes=2 * needed)[0]["ok"]
    unknown = judge("tiny", *LENGTH, memory_bytes=None)[1]["memory_fits"]
    assert unknown["level"] == "not_checked"


def test_a_cache_for_less_than_one_request(judge):
    document, found = judge("tiny", *LENGTH, "--kv-cache-memory-bytes", "4000000")
    assert not document["ok"]
    text = found["cache_fits"]["message"]
    assert "2048 tokens" in text and "--max-model-len" in found["cache_fits"]["fix"]
    assert document["model"]["memory"]["kv_pool"]["num_tokens"] is None


@pytest.mark.parametrize(
    ("values", "drafts", "need"),
    [
        ({"verification": "adaptive"}, False, "--speculative-config"),
        ({"draft_records": "x"}, False, "--speculative-config"),
        ({"step_cost_file": "x"}, True, "verification adaptive"),
        ({"verification_min_benefit": 0.5}, True, "verification adaptive"),
        ({"ttft_target_ms": 5.0}, False, "prefill_vote slo"),
        ({"itl_target_ms": 5.0, "prefill_vote": "cadence"}, False, "prefill_vote slo"),
        ({"prefill_all_interval": 9, "prefill_vote": "slo"}, False, "prefill_vote cadence"),
        ({"prefill_max_steps": 9}, False, "prefill_vote cadence or slo"),
        ({"prefill_max_steps": 9, "prefill_vote": "slo"}, False, None),
        ({"itl_target_ms": 5.0, "prefill_vote": "slo"}, False, None),
        ({"verification": "adaptive", "step_cost_file": "x"}, True, None),
        ({"quantization": "off", "step_trace": "x"}, False, None),
        ({"sync_guard": "warn"}, False, "an accelerator"),
        ({"npu_torch_ops": "x"}, False, "the platform ascend950"),
    ],
)
def test_options_without_effect(judge, values, drafts, need):
    extra = DRAFTING if drafts else ()
    document, found = judge("tiny", *LENGTH, *extra, *options(**values))
    assert document["ok"]
    assert ("idle_options" in found) == (need is not None)
    if need is not None:
        name = next(iter(values))
        assert f"{name} needs {need}" in found["idle_options"]["message"]


def test_engram_tables_lie_where_the_class_puts_them(monkeypatch):
    config = serving.make_config(serving.parse(["tiny", *LENGTH])).config
    own = features.engram_tables(config, "cpu")
    assert own.tables_bytes == 60984
    assert own.place == "memory of the machine, one copy for each data-parallel rank"
    assert "memory of the device" in features.engram_tables(config, "ascend950").place
    ranks = ("--data-parallel-size", "2", "--enable-expert-parallel")
    spread = serving.make_config(serving.parse(["tiny", *LENGTH, *ranks])).config
    assert features.engram_tables(spread, "cpu").place.endswith("split over all ranks")
    alone = serving.make_config(serving.parse(["tiny", *LENGTH, ranks[-1]])).config
    assert features.engram_tables(alone, "cpu").place == own.place

    monkeypatch.setattr(features, "runs_own_class", lambda *_: False)
    for settings, memory, copies in (
        ((True, False, True), "pinned memory of the host", "of a node that can share it"),
        ((True, False, None), "pinned memory of the host", "of a node that can share it"),
        ((True, False, False), "pinned memory of the host", "each data-parallel rank"),
        ((False, False, None), "memory of the device", "each data-parallel rank"),
        ((True, True, False), "pinned memory of the host", "split over all ranks"),
    ):
        engram = config.engram_config
        engram.cpu_offload, engram.embedding_across_dp, engram.dp_shared_memory = settings
        place = features.engram_tables(config, "sm100").place
        assert place.startswith(memory) and place.endswith(copies)


@pytest.mark.parametrize(
    ("sizes", "largest", "is_covered"),
    [((), 768, True), ((1, 2, 4, 768), 768, True), ((1, 2, 4, 512), 768, False)],
)
def test_graphs_count_tokens_not_requests(judge, monkeypatch, sizes, largest, is_covered):
    graphs = Graphs("FULL_DECODE_ONLY", sizes, None, largest)
    monkeypatch.setattr("vllm_deepinfer.doctor.features.graphs", lambda *_: graphs)
    document, found = judge("tiny", *LENGTH)
    assert document["model"]["graphs"]["covers_largest_decode"] == is_covered
    assert ("graph_coverage" in found) != is_covered


def test_largest_decode_step_counts_drafts(judge):
    arguments = ("tiny", *LENGTH, "--max-num-seqs", "7")
    steps = [
        judge(*arguments, *extra)[0]["model"]["graphs"]["largest_decode_tokens"]
        for extra in ((), DRAFTING)
    ]
    assert steps == [7, 42]


def test_another_model_is_left_to_vllm(judge, tmp_path):
    text = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128}
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps({**text, **sizes, "intermediate_size": 64}))
    document, found = judge(str(tmp_path), "--max-model-len", "128")
    assert document["ok"] and set(found) == {"model"}
    assert set(document["model"]) == {"model", "architectures"}


def test_every_check_of_a_model_has_a_case():
    cases = {
        "draft_length": test_too_many_drafts,
        "graph_coverage": test_graphs_count_tokens_not_requests,
        "cache_fits": test_a_cache_for_less_than_one_request,
        "memory_fits": test_less_memory_than_the_weights,
        "weights_present": test_weights_and_tokenizer_that_are_not_there,
        "tokenizer_fits": test_weights_and_tokenizer_that_are_not_there,
        "calibration_fits": test_a_calibration_that_is_not_there,
        "idle_options": test_options_without_effect,
    }
    assert set(cases) == {check.__name__ for check in CHECKS}

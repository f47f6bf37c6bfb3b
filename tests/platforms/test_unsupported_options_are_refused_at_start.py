"""What cannot hold for DeepSeek-V4.1 on the CPU platform stops the start, by name.

Claim: every rule in platforms/refusals.py fires on a configuration that breaks it and on no other;
the error names the flag, the value and what is allowed, for all broken rules at once. If this
breaks, an option is accepted and then ignored, or fails later inside the engine.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from platforms.configurations import allowed as good
from platforms.configurations import with_value

from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.platforms import batch_invariance
from vllm_deepinfer.platforms.batch_invariance import refuse_broken_promise
from vllm_deepinfer.platforms.refusals import (
    CPU_RULES,
    UnsupportedOptionError,
    refuse_unsupported,
)


def changed(path, value):
    return with_value(good(), path, value)


def block_size(tokens):
    config = changed("cache_config.user_specified_block_size", True)
    config.cache_config.block_size = tokens
    return config


def drafting(**settings):
    """A speculative configuration that is served, but for ``settings``."""
    served = {
        "method": "dspark",
        "draft_sample_method": "greedy",
        "rejection_sample_method": "standard",
    }
    return SimpleNamespace(**{**served, **settings})


BROKEN = [
    ("--tensor-parallel-size", "2", changed("parallel_config.tensor_parallel_size", 2)),
    ("--pipeline-parallel-size", "2", changed("parallel_config.pipeline_parallel_size", 2)),
    (
        "--distributed-executor-backend",
        "ray",
        changed("parallel_config.distributed_executor_backend", "ray"),
    ),
    ("--nnodes", "2", changed("parallel_config.nnodes", 2)),
    ("--data-parallel-backend", "ray", changed("parallel_config.data_parallel_backend", "ray")),
    ("--data-parallel-size-local", "1", changed("parallel_config.data_parallel_size_local", 1)),
    (
        "--data-parallel-external-lb (also set by --data-parallel-rank)",
        "True",
        changed("parallel_config.data_parallel_external_lb", True),
    ),
    (
        "--data-parallel-hybrid-lb",
        "True",
        changed("parallel_config.data_parallel_hybrid_lb", True),
    ),
    ("--enable-elastic-ep", "True", changed("parallel_config.enable_elastic_ep", True)),
    ("--enable-fault-tolerance", "True", changed("parallel_config.enable_fault_tolerance", True)),
    ("--all2all-backend", "nixl_ep", changed("parallel_config.all2all_backend", "nixl_ep")),
    (
        "--expert-placement-strategy",
        "round_robin",
        changed("parallel_config.expert_placement_strategy", "round_robin"),
    ),
    ("--enable-ep-weight-filter", "True", changed("parallel_config.enable_ep_weight_filter", True)),
    ("--enable-dbo", "True", changed("parallel_config.enable_dbo", True)),
    ("--ubatch-size", "2", changed("parallel_config.ubatch_size", 2)),
    (
        "--prefill-context-parallel-size",
        "2",
        changed("parallel_config.prefill_context_parallel_size", 2),
    ),
    (
        "--decode-context-parallel-size",
        "2",
        changed("parallel_config.decode_context_parallel_size", 2),
    ),
    ("--enable-eplb", "True", changed("parallel_config.enable_eplb", True)),
    ("--enable-lora", "True", changed("lora_config", SimpleNamespace())),
    (
        "--speculative-config method",
        "ngram",
        changed("speculative_config", drafting(method="ngram")),
    ),
    (
        "--speculative-config draft_sample_method",
        "probabilistic",
        changed("speculative_config", drafting(draft_sample_method="probabilistic")),
    ),
    (
        "--speculative-config rejection_sample_method",
        "synthetic",
        changed("speculative_config", drafting(rejection_sample_method="synthetic")),
    ),
    (
        "--kv-transfer-config",
        "NixlConnector",
        changed("kv_transfer_config", SimpleNamespace(kv_connector="NixlConnector")),
    ),
    ("--dtype", "float16", changed("model_config.dtype", "torch.float16")),
    ("--kv-cache-dtype", "fp8", changed("cache_config.cache_dtype", "fp8")),
    ("--block-size", "16", block_size(16)),
    (
        "--disable-hybrid-kv-cache-manager",
        "True",
        changed("scheduler_config.disable_hybrid_kv_cache_manager", True),
    ),
    ("--runner", "pooling", changed("model_config.runner_type", "pooling")),
    ("--enable-prompt-embeds", "True", changed("model_config.enable_prompt_embeds", True)),
    ("--watermark-config", "True", changed("watermark_config", SimpleNamespace())),
]


def test_what_is_allowed_passes():
    refuse_unsupported(good())
    refuse_unsupported(changed("model_config.dtype", "torch.float32"))
    refuse_unsupported(block_size(64))
    refuse_unsupported(changed("speculative_config", drafting()))


def test_every_rule_has_a_case_here():
    assert {flag for flag, _, _ in BROKEN} == {rule.flag for rule in CPU_RULES}


@pytest.mark.parametrize(("flag", "value", "config"), BROKEN, ids=[case[0] for case in BROKEN])
def test_refusal_names_flag_value_and_choices(flag, value, config):
    with pytest.raises(UnsupportedOptionError) as error:
        refuse_unsupported(config)
    text = str(error.value)
    assert f"{flag} is {value} (allowed: " in text
    assert text.count("(allowed:") == 1


def test_all_refusals_come_at_once():
    config = changed("lora_config", SimpleNamespace())
    config.parallel_config.tensor_parallel_size = 8
    with pytest.raises(UnsupportedOptionError) as error:
        refuse_unsupported(config)
    assert "--tensor-parallel-size" in str(error.value)
    assert "--enable-lora" in str(error.value)


def test_a_promise_the_reference_would_break_is_refused(monkeypatch):
    promised = DeepInferConfig(batch_invariant=True)
    refuse_broken_promise(promised, good())
    refuse_broken_promise(DeepInferConfig(), good())
    debugging = DeepInferConfig(batch_invariant=True, quantization="off")
    refuse_broken_promise(debugging, good())
    with pytest.raises(UnsupportedOptionError, match="--dtype float32 .allowed: --dtype bfloat16"):
        refuse_broken_promise(debugging, changed("model_config.dtype", "torch.float32"))
    monkeypatch.setattr(batch_invariance, "cpu_kernels", lambda: None)
    refuse_broken_promise(DeepInferConfig(), good())
    with pytest.raises(UnsupportedOptionError, match="batch_invariant is true .allowed: false"):
        refuse_broken_promise(promised, good())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"enable_lora": True}, ["--enable-lora"]),
        ({"tensor_parallel_size": 2}, ["--tensor-parallel-size is 2 (allowed: 1"]),
        ({"kv_cache_dtype": "fp8"}, ["fp8"]),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
            ["--speculative-config method is ngram (allowed: "],
        ),
        ({"dtype": "float16"}, ["float16"]),
        (
            {"data_parallel_size": 2, "all2all_backend": "nixl_ep"},
            ["--all2all-backend is nixl_ep (allowed: allgather_reducescatter"],
        ),
        (
            {"data_parallel_size": 2, "data_parallel_rank": 1},
            ["--data-parallel-external-lb (also set by --data-parallel-rank) is True"],
        ),
        (
            {"data_parallel_size": 4, "data_parallel_size_local": 2},
            ["--data-parallel-size-local is 2 (allowed: unset"],
        ),
    ],
    ids=str,
)
def test_vllm_stops_on_them(v41_config, arguments, words):
    with pytest.raises(Exception) as error:
        v41_config(**arguments)
    for word in words:
        assert word in str(error.value)

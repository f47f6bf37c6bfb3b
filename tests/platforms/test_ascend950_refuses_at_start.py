"""What cannot hold for DeepSeek-V4.1 on an Ascend 950 stops the start, by name.

Claim: every rule of the platform, and every check of variables, versions and experts, fires on what
breaks it and on nothing else, with the name, the value and what is allowed. If this breaks, an
option is ignored, or fails late inside the device's operators.
"""

from __future__ import annotations

import importlib.metadata
from types import SimpleNamespace

import pytest
from platforms.configurations import allowed, with_value

from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.platforms import ascend950_checks as checks
from vllm_deepinfer.platforms.ascend950_graphs import capture_sizes
from vllm_deepinfer.platforms.refusals import CPU_RULES, UnsupportedOptionError, refuse_unsupported
from vllm_deepinfer.registration import ARCHITECTURE

VERSIONS = {"torch": "2.13.0+cpu", "torch-npu": "2.13.0rc1"}


def good():
    """The parts of a VllmConfig that the checks read, with allowed values."""
    config = allowed()
    parallel, model = config.parallel_config, config.model_config
    parallel.data_parallel_size = parallel.data_parallel_size_local = 4
    parallel.enable_expert_parallel = True
    model.architectures = [ARCHITECTURE]
    model.enable_sleep_mode = model.enable_cumem_allocator = False
    model.hf_text_config = SimpleNamespace(n_routed_experts=256, dspark_n_routed_experts=64)
    config.compilation_config = SimpleNamespace(
        cudagraph_mode=SimpleNamespace(name="FULL_DECODE_ONLY"), mode=SimpleNamespace(name="NONE")
    )
    return config


def changed(path, value):
    return with_value(good(), path, value)


def ranks_of(number):
    config = changed("parallel_config.data_parallel_size", number)
    config.parallel_config.data_parallel_size_local = number
    return config


def check(config=None, environ=None, versions=VERSIONS, **options):
    def version_of(name):
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    checks.refuse_what_cannot_hold(
        config or good(), DeepInferConfig(**options), environ or {}, version_of
    )


def refusal(*args, **kwargs):
    with pytest.raises(UnsupportedOptionError) as error:
        check(*args, **kwargs)
    return str(error.value)


def test_what_holds_is_not_refused():
    check()
    for mode in ("NONE", "FULL_DECODE_ONLY"):
        check(changed("compilation_config.cudagraph_mode", SimpleNamespace(name=mode)))
    for ranks in (1, 2, 8, 64):
        check(ranks_of(ranks))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("parallel_config.tensor_parallel_size", 2, "64 query heads in one rank"),
        ("model_config.dtype", "torch.float32", "--dtype is float32 (allowed: bfloat16"),
        (
            "compilation_config.cudagraph_mode",
            SimpleNamespace(name="FULL_AND_PIECEWISE"),
            "cudagraph_mode is FULL_AND_PIECEWISE (allowed: NONE, FULL_DECODE_ONLY",
        ),
        ("compilation_config.mode", SimpleNamespace(name="VLLM_COMPILE"), "mode is VLLM_COMPILE"),
        ("parallel_config.enable_dbo", True, "--enable-dbo is True"),
        ("parallel_config.ubatch_size", 2, "--ubatch-size is 2"),
        ("model_config.enable_sleep_mode", True, "--enable-sleep-mode is True"),
        ("model_config.enable_cumem_allocator", True, "--enable-cumem-allocator is True"),
    ],
)
def test_each_option_is_refused_by_name(path, value, words):
    assert words in refusal(changed(path, value))


def test_ranks_hold_equally_many_experts():
    assert "n_routed_experts is 256 (allowed: 1, 2, 4, 8" in refusal(ranks_of(3))
    assert "dspark_n_routed_experts is 64 (allowed: 1, 2, 4" in refusal(ranks_of(128))
    alone = ranks_of(3)
    alone.parallel_config.enable_expert_parallel = False
    check(alone)


def test_adaptive_verification_in_the_worker_is_led_to_the_schedulers():
    speculative = SimpleNamespace(
        method="dspark",
        draft_sample_method="greedy",
        rejection_sample_method="standard",
        enable_adaptive_verification=True,
    )
    text = refusal(changed("speculative_config", speculative))
    assert "enable_adaptive_verification is True" in text and "verification" in text
    speculative.enable_adaptive_verification = False
    check(changed("speculative_config", speculative))


@pytest.mark.parametrize("tokens", [16, 48, 256])
def test_block_sizes_are_the_devices(tokens):
    config = changed("cache_config.user_specified_block_size", True)
    config.cache_config.block_size = tokens
    assert f"--block-size is {tokens} (allowed: unset, 32, 64, 128" in refusal(config)
    config.cache_config.block_size = 64
    check(config)


def test_rules_of_the_cpu_hold_here_too_unless_replaced():
    flags = [rule.flag for rule in checks.RULES]
    assert len(flags) == len(set(flags))
    assert {rule.flag for rule in CPU_RULES} <= set(flags)
    config = changed("parallel_config.enable_eplb", True)
    config.parallel_config.pipeline_parallel_size = 4
    with pytest.raises(UnsupportedOptionError) as error:
        refuse_unsupported(config, checks.RULES, checks.PLATFORM)
    assert "--enable-eplb" in str(error.value) and "--pipeline-parallel-size" in str(error.value)
    assert "CPU" not in str(error.value)


def test_batch_invariance_is_not_promised():
    text = refusal(batch_invariant=True)
    assert text.startswith("batch_invariant is true (allowed on the Ascend 950 platform: false)")


def test_vllms_class_of_the_model_is_not_there():
    assert refusal(model="vllm").startswith("model is vllm (allowed on the Ascend 950 platform")
    check(model="deepinfer")


@pytest.mark.parametrize(
    ("environ", "with_graphs_only"),
    [
        ({"ASCEND_LAUNCH_BLOCKING": "1"}, True),
        ({"TASK_QUEUE_ENABLE": "2"}, True),
        ({"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "300"}, False),
        ({"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "1836"}, False),
    ],
)
def test_variables_that_contradict_the_engine_are_refused(environ, with_graphs_only):
    name, value = next(iter(environ.items()))
    assert refusal(environ=environ).startswith(f"{name} is {value} (allowed")
    eager = changed("compilation_config.cudagraph_mode", SimpleNamespace(name="NONE"))
    if with_graphs_only:
        check(eager, environ=environ)
    else:
        refusal(eager, environ=environ)


def test_variables_that_hold_are_not_refused():
    check(
        environ={
            "ASCEND_LAUNCH_BLOCKING": "0",
            "TASK_QUEUE_ENABLE": "1",
            "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "1837",
        }
    )


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ({"torch": "2.13.0"}, "torch-npu is not installed and torch is 2.13.0 (allowed: both 2.13"),
        ({"torch": "2.13.0", "torch-npu": "2.14.0"}, "torch-npu is 2.14.0"),
        ({"torch": "2.14.1", "torch-npu": "2.13.0"}, "install torch-npu==2.14.*"),
    ],
)
def test_torch_npu_must_be_of_torchs_series(versions, words):
    assert words in refusal(versions=versions)
    # A device in its place has no such version.
    check(versions=versions, environ={"DEEPINFER_NPU_MODULE": "somebodys_npu"})


def test_other_models_are_refused_in_one_sentence():
    config = changed("model_config.architectures", ["LlamaForCausalLM"])
    with pytest.raises(UnsupportedOptionError) as error:
        checks.refuse_other_models(config)
    text = str(error.value)
    assert ARCHITECTURE in text and "not LlamaForCausalLM" in text and "vllm-ascend" in text
    checks.refuse_other_models(good())


@pytest.mark.parametrize("most", range(1, 70))
@pytest.mark.parametrize("tokens", [1, 6])
def test_captured_sizes_reach_every_batch_and_waste_less_than_half(most, tokens):
    sizes = capture_sizes(most, tokens)
    assert sizes == sorted(set(sizes)) and sizes[-1] == most * tokens
    assert all(size % tokens == 0 for size in sizes)
    for requests in range(1, most + 1):
        taken = next(size for size in sizes if size >= requests * tokens)
        assert taken < 2 * requests * tokens

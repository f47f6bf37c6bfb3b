"""What vLLM finds in its registries is this package's, and asking costs no new interpreter.

A model registered by name alone is inspected in a fresh interpreter that imports vLLM again: the
first start on a machine, and the first after each change of the model's file, would take 10 s more.
"""

from __future__ import annotations

import subprocess

import pytest
from vllm.model_executor.models import ModelRegistry
from vllm.model_executor.models.registry import _LazyRegisteredModel
from vllm.renderers.registry import RENDERER_REGISTRY

from vllm_deepinfer import register
from vllm_deepinfer.models.deepseek_v41.model import DeepseekV41ForCausalLM
from vllm_deepinfer.registration import ARCHITECTURE, CHAT_FORMAT, MODEL_CLASS
from vllm_deepinfer.renderer import TextOnlyRenderer


@pytest.fixture
def no_subprocess(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError(f"started {args}")

    monkeypatch.setattr(subprocess, "run", refuse)


def test_the_model_is_inspected_in_this_process(no_subprocess):
    register()
    info = ModelRegistry.models[ARCHITECTURE].inspect_model_cls()
    assert info.architecture == ARCHITECTURE
    assert info.is_text_generation_model
    assert not info.supports_multimodal


def test_the_guard_would_notice_a_new_interpreter(no_subprocess, monkeypatch, tmp_path):
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    with pytest.raises(AssertionError, match="started"):
        _LazyRegisteredModel(*MODEL_CLASS).inspect_model_cls()


def test_names_lead_to_this_packages_classes():
    register()
    register()
    assert ModelRegistry.models[ARCHITECTURE].load_model_cls() is DeepseekV41ForCausalLM
    assert RENDERER_REGISTRY.load_renderer_cls(CHAT_FORMAT) is TextOnlyRenderer

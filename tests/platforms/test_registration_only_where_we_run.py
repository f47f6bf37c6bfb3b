"""The general plugin registers on our platforms only, any number of times, and passes errors on.

Claim: `register()` may run any number of times; with another platform active it registers nothing;
and a DEEPINFER_PLATFORM that `platform()` rejects stops vLLM here, since vLLM only logs what
`platform()` raises. If this breaks, other hardware silently gets this package's model, or a
mistyped variable silently gives stock vLLM.
"""

from __future__ import annotations

import pytest
import vllm.platforms
from vllm.model_executor.models import ModelRegistry
from vllm.platforms.cpu import CpuPlatform

import vllm_deepinfer
from vllm_deepinfer import registration


def test_registration_names_our_class_and_repeats():
    architectures = set(ModelRegistry.models)
    for _ in range(2):
        vllm_deepinfer.register()
        model = ModelRegistry.models[registration.ARCHITECTURE]
        assert model.module_name.startswith("vllm_deepinfer.models.")
        assert model.class_name == registration.ARCHITECTURE
        assert set(ModelRegistry.models) == architectures


def test_nothing_is_registered_on_another_platform(monkeypatch):
    called = []
    monkeypatch.setattr(registration, "register_all", lambda: called.append(True))
    monkeypatch.setattr(vllm.platforms, "_current_platform", CpuPlatform())
    vllm_deepinfer.register()
    assert called == []


@pytest.mark.parametrize("value", ["cuda", "sm100", "ascend950"])
def test_an_override_that_cannot_hold_stops_vllm(monkeypatch, value):
    monkeypatch.setenv("DEEPINFER_PLATFORM", value)
    with pytest.raises((ValueError, RuntimeError), match=f"DEEPINFER_PLATFORM='?{value}'?"):
        vllm_deepinfer.register()

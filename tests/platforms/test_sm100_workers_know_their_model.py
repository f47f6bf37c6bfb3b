"""Workers on SM100 build the class that was chosen; batch-invariant ones look at every switch.

Claims: vLLM's class and this package's stand in the registry exactly while a worker that chose them
builds its model; each switch that batch invariance depends on is right after all were set by the
functions that set them in a worker, and is named when it alone is undone. On 0.32.0 and on 0.33.0.
If this fails, an engine serves another class than it announced, or promises what it does not hold.
"""

from __future__ import annotations

import pytest
from platforms.sm100_cases import SOURCES, found_by

OURS, THEIRS = "vllm_deepinfer.models.deepseek_v41", "vllm.models.deepseek_v41"


@pytest.fixture(params=SOURCES)
def found(request):
    return found_by(request.param)["workers"]


def test_registry_holds_the_chosen_classes_while_a_worker_builds(found):
    modules = found["models"]
    for when, where in (
        ("outside", THEIRS),
        ("deepinfer", OURS),
        ("vllm", THEIRS),
        ("after", THEIRS),
    ):
        for name in ("DeepseekV41ForCausalLM", "DSparkV41DraftModel"):
            assert modules[f"{when} {name}"].startswith(where), (when, name)


def test_class_that_is_built_is_the_chosen_one_whatever_vllm_remembers(found):
    modules = found["models"]
    assert modules["deepinfer built"] == f"{OURS}.model.DeepseekV41ForCausalLM"
    assert modules["vllm built"].startswith(THEIRS)


def test_every_switch_is_right_once_set(found):
    assert found["switches"]["after"] == []
    assert len(found["switches"]["before"]) >= 6


def test_each_switch_undone_is_named_alone(found):
    switches = found["switches"]
    for name, broken in switches["undone"].items():
        assert broken == [name]
    # The one left cannot be taken back: torch has no way to unregister a kernel.
    left = set(switches["names"]) - set(switches["undone"])
    assert left == {"operations without this package's kernel"} <= set(switches["before"])
    assert "attention of others is ('vllm.v1.attention.backends.Backend',)" in switches["sentence"]


def test_second_engine_of_the_other_kind_is_refused(found):
    assert "batch_invariant is False, but an earlier engine" in found["switches"]["second engine"]


def test_worker_adds_to_vllms_and_replaces_none_of_it(found):
    order = found["worker"]["order"]
    assert order[:4] == ["DeepInferSm100Worker", "Sm100Model", "AcceleratorSteps", "Worker"]

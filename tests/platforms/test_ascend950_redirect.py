"""vLLM's model runner is led to the npu by names in its own modules, and back.

Claim: the redirect replaces exactly the names it lists, leaves torch.cuda itself and every other
module alone, is undone whole, and refuses a process that has a CUDA device; the list holds every
module of the runner that asks for torch.cuda on the path of this model, in both supported releases.
If this breaks, a worker ends in "Torch not compiled with CUDA enabled", or other users of
torch.cuda in the process are sent to the npu.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from upstream_sources import SOURCES, source

from vllm_deepinfer.worker import npu_environment
from vllm_deepinfer.worker.npu_redirect import STREAMS, Redirect, RedirectError

# Modules of the runner that ask for torch.cuda, for features that start-up refuses.
REFUSED = {
    "vllm.v1.worker.gpu.pp_utils",  # --pipeline-parallel-size
    "vllm.v1.worker.gpu.ubatch_utils",  # --enable-dbo, --ubatch-size
    "vllm.v1.worker.gpu.spec_decode.adaptive_verification",  # enable_adaptive_verification
}
OTHERS = (
    ("vllm.v1.worker.gpu.cudagraph_utils", "graph_capture"),
    ("vllm.v1.worker.gpu.buffer_utils", "is_uva_available"),
    ("vllm.v1.worker.gpu_worker", "kernel_warmup"),
)


def fake_npu():
    """Answers as torch.npu would, and says what was asked of it."""
    asked = []
    return SimpleNamespace(
        asked=asked,
        Stream=lambda **kw: asked.append(("Stream", kw)) or "a stream",
        Event=lambda **kw: asked.append(("Event", kw)) or "an event",
        current_stream=lambda device=None: "the current stream",
        set_stream=lambda stream: asked.append(("set_stream", stream)),
        NPUGraph="the graph class",
        graph="the capture",
        graph_pool_handle="the pools",
    )


def test_top_k_is_left_to_torch_where_some_triton_is_there(redirect, monkeypatch):
    from vllm.v1.sample.ops import topk_topp_sampler

    monkeypatch.setattr(topk_topp_sampler, "HAS_TRITON", True)
    redirect.apply(fake_npu())
    logits = torch.arange(20.0).repeat(9, 1)
    kept = topk_topp_sampler.apply_top_k_top_p(logits, torch.full((9,), 3), None)
    assert (kept > float("-inf")).sum(1).tolist() == [3] * 9
    redirect.undo()
    assert topk_topp_sampler.HAS_TRITON


@pytest.fixture
def redirect():
    # The CPU platform leaves names of torch.cuda replaced, which has nothing to do with this.
    made = Redirect()
    yield made
    made.undo()


def names_in_force():
    places = [(name, "torch") for name in STREAMS] + list(OTHERS)
    return {place: getattr(importlib.import_module(place[0]), place[1]) for place in places}


def test_listed_names_change_and_come_back(redirect):
    before, cuda = names_in_force(), dict(vars(torch.cuda))
    redirect.apply(fake_npu())
    assert redirect.is_applied
    for place, value in names_in_force().items():
        assert value is not before[place], place
    assert dict(vars(torch.cuda)) == cuda
    redirect.undo()
    assert not redirect.is_applied
    assert names_in_force() == before
    redirect.undo()
    assert names_in_force() == before


def test_what_a_failed_start_left_is_taken_back_by_the_next(redirect):
    before = names_in_force()
    redirect.apply(fake_npu())
    following = Redirect()
    assert names_in_force() == before
    following.apply(fake_npu())
    changed = names_in_force()
    redirect.undo()
    assert names_in_force() == changed
    following.undo()
    assert names_in_force() == before


def test_runner_modules_get_streams_events_and_graphs_of_the_npu(redirect):
    npu = fake_npu()
    redirect.apply(npu)
    from vllm.utils import torch_utils
    from vllm.v1.worker.gpu import async_utils, cudagraph_utils

    remembered = getattr(torch_utils._current_stream_tls, "value", None)
    cuda = async_utils.torch.cuda
    assert cuda.Stream("npu:1") == "a stream" and cuda.Stream() == "a stream"
    assert cuda.Event(blocking=True) == "an event"
    assert cuda.Event(enable_timing=True) == "an event"
    assert npu.asked == [
        ("Stream", {"device": "npu:1"}),
        ("Stream", {}),
        ("Event", {"enable_timing": False}),
        ("Event", {"enable_timing": True}),
    ]
    assert cudagraph_utils.torch.cuda.CUDAGraph == "the graph class"
    del npu.asked[:]
    with cuda.stream("another"):
        # vLLM captures on the stream that it remembers, so that must follow.
        assert torch_utils.current_stream() == "another"
    assert npu.asked == [("set_stream", "another"), ("set_stream", "the current stream")]
    torch_utils._current_stream_tls.value = remembered


def test_all_else_of_torch_is_torch(redirect):
    redirect.apply(fake_npu())
    seen = importlib.import_module(STREAMS[0]).torch
    assert seen.Tensor is torch.Tensor and seen.nn is torch.nn and seen.zeros is torch.zeros
    assert seen.accelerator is torch.accelerator


def test_what_has_no_counterpart_is_named(redirect):
    redirect.apply(fake_npu())
    with pytest.raises(RedirectError, match="asks for torch.cuda.nvtx"):
        _ = importlib.import_module(STREAMS[0]).torch.cuda.nvtx


def test_a_process_with_cuda_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(RedirectError, match="CUDA_VISIBLE_DEVICES"):
        Redirect()


def asks_for_cuda(path: Path) -> bool:
    """Whether a module uses torch.cuda when it runs, not only to name a type."""
    tree = ast.parse(path.read_text())
    hints = set()
    for node in ast.walk(tree):
        for hint in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if hint is not None:
                hints.update(id(part) for part in ast.walk(hint))
    return any(
        isinstance(node, ast.Attribute)
        and id(node) not in hints
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) == ("torch", "cuda")
        for node in ast.walk(tree)
    )


@pytest.mark.parametrize("version", SOURCES)
def test_list_is_complete(version):
    root = source(version)
    runner = root / "vllm" / "v1" / "worker" / "gpu"
    found = {
        ".".join(path.relative_to(root).with_suffix("").parts)
        for path in runner.rglob("*.py")
        if asks_for_cuda(path)
    }
    assert found - REFUSED == set(STREAMS)


@pytest.mark.parametrize("version", SOURCES)
@pytest.mark.parametrize(("module", "name"), OTHERS)
def test_other_names_are_imported_where_they_are_replaced(version, module, name):
    tree = ast.parse((source(version) / f"{module.replace('.', '/')}.py").read_text())
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert name in imported


def test_variables_are_set_only_where_unset():
    environ = {"HCCL_BUFFSIZE": "1024", "HOME": "/root"}
    added = npu_environment.set_defaults(environ)
    assert environ["HCCL_BUFFSIZE"] == "1024" and "HCCL_BUFFSIZE" not in added
    assert environ == {"HOME": "/root", "HCCL_BUFFSIZE": "1024", **added}
    assert set(added) == set(npu_environment.DEFAULTS) - {"HCCL_BUFFSIZE"}
    assert npu_environment.set_defaults(environ) == {}

"""A rank without requests computes nothing of its own; a warm-up computes its whole batch.

If this breaks, an idle rank takes the time of a busy one, or start-up profiles time nothing.
"""

from __future__ import annotations

import pytest
import torch
from in_process import engine, run

DRAFTING = {"method": "dspark", "num_speculative_tokens": 5}


@pytest.fixture(scope="module")
def llm(tiny_folder):
    with engine(tiny_folder, speculative_config=DRAFTING) as llm:
        yield llm


@pytest.fixture
def worker(llm):
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker


@pytest.fixture
def computed(worker, monkeypatch):
    """Rows of each pass of the decoder and of the draft stages from now on."""
    rows = {"target": [], "draft": []}
    modules = {"target": worker.model_runner.model, "draft": worker.model_runner.speculator.model}
    for name, model in modules.items():
        forward = model.model.forward

        def noted(first, *arguments, _forward=forward, _rows=rows[name]):
            _rows.append(len(first))
            return _forward(first, *arguments)

        monkeypatch.setattr(model.model, "forward", noted)
    return rows


def test_a_dummy_batch_computes_nothing_and_changes_nothing(llm, worker, computed):
    before = run(llm, [[5, 6, 7]], 8)
    for rows in computed.values():
        rows.clear()
    worker.execute_dummy_batch()
    assert computed == {"target": [], "draft": []}
    assert run(llm, [[5, 6, 7]], 8) == before


@pytest.mark.parametrize("num_tokens", [1, 7, 64])
def test_a_warm_up_computes_its_batch(worker, computed, num_tokens):
    hidden, _ = worker.model_runner._dummy_run(num_tokens)
    assert computed == {"target": [num_tokens], "draft": [5 * num_tokens]}
    assert hidden.shape[0] == num_tokens and torch.isfinite(hidden).all()
    assert hidden.abs().sum() > 0

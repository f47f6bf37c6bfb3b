"""Saved step costs are used where they hold and nowhere else.

If this fails, a server plans with another machine's times, or dies of a half-written file.
"""

from __future__ import annotations

import json

import pytest

from vllm_deepinfer.scheduler.cost_store import KEY_PARTS, load, save, store_key
from vllm_deepinfer.scheduler.step_cost import StepCost, StepTimes

PARTS = {
    "hardware": "H200",
    "versions": {"vllm": "0.32.0", "torch": "2.13"},
    "model": "sha256:1234",
    "kv_format": "fp8_ds_mla",
    "parallel_layout": {"tp": 1, "dp": 8},
}


@pytest.fixture
def cost() -> StepCost:
    cost = StepCost([(8, 10.0), (16, 11.0)])
    for _ in range(20):
        cost.observe(StepTimes(2, 12, 300, 13.0, 1.5))
    return cost


def test_what_was_learned_comes_back(tmp_path, cost):
    path, key = tmp_path / "folder" / "costs.json", store_key(PARTS)
    assert load(path, key) is None
    save(path, key, cost)
    loaded = load(path, key)
    assert loaded.source == "saved" and loaded.state() == cost.state()
    save(path, key, cost)
    assert [file.name for file in path.parent.iterdir()] == ["costs.json"]


@pytest.mark.parametrize("name", KEY_PARTS)
def test_every_part_makes_another_key(tmp_path, cost, name):
    save(tmp_path / "costs.json", store_key(PARTS), cost)
    assert load(tmp_path / "costs.json", store_key(PARTS | {name: "other"})) is None
    with pytest.raises(ValueError, match=f"has no '{name}'"):
        store_key({part: value for part, value in PARTS.items() if part != name})


def test_keys_know_no_order_and_no_strangers():
    assert store_key(dict(reversed(PARTS.items()))) == store_key(PARTS)
    with pytest.raises(ValueError, match="unknown parts .'gpu'.*allowed"):
        store_key(PARTS | {"gpu": 1})


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "{}",
        lambda text: text.replace("13.0", "NaN"),
        lambda text: text.replace('"curve"', '"bend"'),
        lambda text: json.dumps(json.loads(text) | {"step_cost": None}),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, cost, damage):
    path, key = tmp_path / "costs.json", store_key(PARTS)
    save(path, key, cost)
    path.write_text(damage(path.read_text()))
    with pytest.raises(ValueError, match=r"costs\.json are damaged.*delete the file"):
        load(path, key)


def test_a_failed_save_leaves_the_old_file(tmp_path, cost, monkeypatch):
    path, key = tmp_path / "costs.json", store_key(PARTS)
    save(path, key, cost)
    before = path.read_bytes()

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save(path, key, cost)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["costs.json"]

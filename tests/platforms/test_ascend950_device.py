"""A worker takes an Ascend 950 or says in one sentence which device it found instead.

If this breaks, another generation computes with this one's layouts, or a missing torch_npu shows as
an error deep inside the model runner.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from vllm_deepinfer import envs
from vllm_deepinfer.worker import npu_device
from vllm_deepinfer.worker.npu_device import DeviceModuleError, check_device, import_device_module


@pytest.fixture
def visible(monkeypatch):
    """Makes so many devices visible, of such a chip."""

    def make(count, soc):
        module = SimpleNamespace(npu=SimpleNamespace(get_soc_version=lambda: soc))
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
        monkeypatch.setattr(npu_device, "import_device_module", lambda: module)

    return make


def test_vendors_module_is_the_default():
    assert envs.npu_module({}) == envs.npu_module({"DEEPINFER_NPU_MODULE": ""}) == "torch_npu"
    assert envs.npu_module({"DEEPINFER_NPU_MODULE": "another"}) == "another"


def test_a_module_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("DEEPINFER_NPU_MODULE", "no_such_device")
    with pytest.raises(DeviceModuleError, match="no_such_device gives torch the device npu, but"):
        import_device_module()


def test_a_module_that_brings_no_device_is_named(monkeypatch):
    monkeypatch.setenv("DEEPINFER_NPU_MODULE", "json")
    with pytest.raises(DeviceModuleError, match="json was imported but registered no device npu"):
        import_device_module()


@pytest.mark.parametrize("soc", [220, 225, 250, 255, 205])
def test_other_generations_are_refused(visible, soc, monkeypatch):
    visible(8, soc)
    with pytest.raises(DeviceModuleError, match=f"npu:3 is SoC {soc}; allowed: 260"):
        check_device(3)
    # A device in the vendor's place has no chip to ask for.
    monkeypatch.setenv("DEEPINFER_NPU_MODULE", "somebodys_npu")
    check_device(3)


def test_the_right_one_is_taken(visible):
    visible(8, 260)
    check_device(0)
    check_device(7)


def test_more_ranks_than_devices_are_refused(visible):
    visible(2, 260)
    with pytest.raises(DeviceModuleError, match=r"needs npu:2, but 2 device\(s\) are visible"):
        check_device(2)

"""Which NPUs a machine has is read from the file system, then from the driver, never guessed.

Claim: device nodes say that there are NPUs; a known PCI id or chip name of an older family says
that they are not a 950; what nothing tells stays unknown; a driver that fails is quoted. If this
breaks, an older NPU is taken over, or a 950 is left alone without a word.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from vllm_deepinfer.platforms import ascend_devices as module
from vllm_deepinfer.platforms.ascend_devices import DriverError, ascend_devices, driver_chips


def machine(root, nodes=("davinci0",), pci=()):
    (root / "dev").mkdir()
    for node in nodes:
        (root / "dev" / node).touch()
    for index, (vendor, device) in enumerate(pci):
        folder = root / "sys/bus/pci/devices" / f"0000:0{index}:00.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "device").write_text(f"{device}\n")
    return root


def unasked(root):
    raise AssertionError("the driver was asked")


@pytest.mark.parametrize("nodes", [(), ("davinci", "davincix", "nvidia0", "null")])
def test_no_node_is_no_npu(tmp_path, nodes):
    found = ascend_devices(machine(tmp_path, nodes), unasked)
    assert (found.nodes, found.is_950) == ((), None)


@pytest.mark.parametrize("nodes", [("davinci0",), ("davinci_manager",), ("davinci1", "davinci15")])
def test_any_node_is_an_npu(tmp_path, nodes):
    found = ascend_devices(machine(tmp_path, nodes), lambda root: [])
    assert found.nodes == tuple(f"/dev/{node}" for node in nodes)
    assert found.is_950 is None and found.evidence


@pytest.mark.parametrize(
    ("device", "family"),
    [
        ("0xd100", "310"),
        ("0xd105", "310B"),
        ("0xd500", "310P"),
        ("0xd801", "910"),
        ("0xd802", "910B"),
        ("0xD803", "910_93"),
    ],
)
def test_pci_ids_name_older_families_without_the_driver(tmp_path, device, family):
    pci = [("0x8086", "0x1234"), ("0x19e5", device)]
    found = ascend_devices(machine(tmp_path, pci=pci), unasked)
    assert found.is_950 is False and family in found.evidence


@pytest.mark.parametrize("pci", [("0x19e5", "0xffff"), ("0x10de", "0xd802"), ("0x19e5", "0x1822")])
def test_other_pci_devices_tell_nothing(tmp_path, pci):
    assert ascend_devices(machine(tmp_path, pci=[pci]), lambda root: []).is_950 is None


@pytest.mark.parametrize(
    ("chips", "is_950"),
    [
        ([], None),
        (["Ascend950DT_9581"] * 8, True),
        (["950PR"], True),
        (["910B3"], False),
        (["Ascend910_9392"], False),
        (["310P3"], False),
        (["Ascend950DT_9581", "910B3"], False),
        (["960"], None),
        (["950", "960"], None),
        ([""], None),
    ],
)
def test_chip_names(tmp_path, chips, is_950):
    found = ascend_devices(machine(tmp_path), lambda root: chips)
    assert found.is_950 is is_950
    assert all(chip in found.evidence for chip in chips)


def test_a_failing_driver_is_quoted_and_decides_nothing(tmp_path):
    def fail(root):
        raise DriverError("dsmi_get_device_count returned status 8020")

    found = ascend_devices(machine(tmp_path), fail)
    assert found.is_950 is None and "8020" in found.evidence


class FakeDriver:
    def __init__(self, chips, failing=None):
        self.chips, self.failing = chips, failing

    def dsmi_get_device_count(self, count):
        count._obj.value = len(self.chips)
        return 8020 if self.failing == "count" else 0

    def dsmi_get_chip_info(self, device, info):
        fields = (b"Ascend", self.chips[device.value].encode(), b"V1")
        info[0:96] = b"".join(field.ljust(32, b"\0") for field in fields)
        return 8020 if self.failing == "info" else 0


@pytest.fixture(params=[0, 1])
def installed(tmp_path, request):
    path = tmp_path / module._LIBRARY_FOLDERS[request.param] / "libdrvdsmi_host.so"
    path.parent.mkdir(parents=True)
    path.touch()
    return tmp_path


def test_every_chip_of_the_driver_is_named(installed, monkeypatch):
    chips = ["910B3", "Ascend950DT_9581", "x" * 31]
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeDriver(chips))
    assert driver_chips(installed) == chips


@pytest.mark.parametrize("failing", ["count", "info"])
def test_a_failing_call_is_named(installed, monkeypatch, failing):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeDriver(["910B3"], failing))
    with pytest.raises(DriverError, match=f"dsmi_get_.*{failing}.* 8020"):
        driver_chips(installed)


def test_a_library_that_is_none_is_named(installed):
    with pytest.raises(DriverError, match="cannot be loaded"):
        driver_chips(installed)


def test_a_library_without_the_calls_is_named(installed, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    with pytest.raises(DriverError, match="has no dsmi_get_device_count"):
        driver_chips(installed)


def test_no_driver_names_no_chip(tmp_path):
    assert driver_chips(tmp_path) == []
    assert driver_chips(Path("/nonexistent")) == []

"""Compute capabilities come from the NVIDIA driver's library, and a missing driver is no GPU.

Claim: every GPU the driver lists is reported; no driver means no GPU, silently; a driver that
answers with an error means no GPU, with a warning that names the call and its status. If this
breaks, GPU machines are taken for something else without a word.
"""

from __future__ import annotations

import ctypes

import pytest

from vllm_deepinfer.platforms import nvml


class FakeDriver:
    """Answers as libnvidia-ml.so.1 does; `failing` is a call that returns status 18."""

    def __init__(self, capabilities, failing=None):
        self.capabilities = capabilities
        self.failing = failing
        self.open = 0

    def _status(self, name):
        return 18 if name == self.failing else 0

    def nvmlInit_v2(self):  # noqa: N802
        self.open += 1
        return self._status("nvmlInit_v2")

    def nvmlShutdown(self):  # noqa: N802
        self.open -= 1
        return 0

    def nvmlDeviceGetCount_v2(self, count):  # noqa: N802
        count._obj.value = len(self.capabilities)
        return self._status("nvmlDeviceGetCount_v2")

    def nvmlDeviceGetHandleByIndex_v2(self, index, device):  # noqa: N802
        device._obj.value = index.value + 1
        return self._status("nvmlDeviceGetHandleByIndex_v2")

    def nvmlDeviceGetCudaComputeCapability(self, device, major, minor):  # noqa: N802
        major._obj.value, minor._obj.value = self.capabilities[device.value - 1]
        return self._status("nvmlDeviceGetCudaComputeCapability")


@pytest.fixture
def warnings(monkeypatch):
    seen = []
    monkeypatch.setattr(nvml, "warn_once", lambda logger, message: seen.append(message))
    return seen


@pytest.mark.parametrize("capabilities", [[], [(9, 0)], [(10, 0), (10, 3), (12, 0)]])
def test_every_gpu_is_listed(monkeypatch, warnings, capabilities):
    driver = FakeDriver(capabilities)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    assert nvml.cuda_capabilities() == capabilities
    assert driver.open == 0
    assert not warnings


def test_no_driver_is_no_gpu(monkeypatch, warnings):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert nvml.cuda_capabilities() == []
    assert not warnings


@pytest.mark.parametrize(
    "failing", ["nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetCudaComputeCapability"]
)
def test_a_failing_driver_is_reported(monkeypatch, warnings, failing):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeDriver([(10, 0)], failing))
    assert nvml.cuda_capabilities() == []
    assert len(warnings) == 1
    assert failing in warnings[0] and "18" in warnings[0]

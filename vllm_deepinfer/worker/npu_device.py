"""The npu device of this process: the module that brings it, and whether it is the right one."""

from __future__ import annotations

import importlib
from types import ModuleType

import torch

from vllm_deepinfer import envs

VENDOR_MODULE = "torch_npu"
ASCEND_950_SOC = 260
"""`torch_npu.npu.get_soc_version()` of this generation; A3 is 250 to 255, A2 220 to 225."""


class DeviceModuleError(RuntimeError):
    """No npu device can be had, or not one this package runs on."""


def is_vendor_device() -> bool:
    """Whether the device is the vendor's; otherwise it is one that somebody put in its place."""
    return envs.npu_module() == VENDOR_MODULE


def import_device_module() -> ModuleType:
    """Import the module that registers "npu" with torch. Safe to repeat; starts no runtime.

    Raises:
        DeviceModuleError: it cannot be imported, or registers no such device.
    """
    name = envs.npu_module()
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise DeviceModuleError(
            f"{name} gives torch the device npu, but importing it failed: {error}. Install "
            "torch-npu for this torch together with CANN and source CANN's set_env.sh, or choose "
            "another platform with DEEPINFER_PLATFORM."
        ) from error
    if torch._C._get_privateuse1_backend_name() != "npu" or not hasattr(torch, "npu"):
        raise DeviceModuleError(
            f"{name} was imported but registered no device npu with torch; DEEPINFER_NPU_MODULE "
            "must name a module that does (default: torch_npu)."
        )
    return module


def check_device(index: int) -> None:
    """Refuse a device that is absent or of another generation.

    Raises:
        DeviceModuleError: it is not visible, or not an Ascend 950.
    """
    count = torch.accelerator.device_count()
    if index >= count:
        raise DeviceModuleError(
            f"this rank needs npu:{index}, but {count} device(s) are visible; allowed: as many "
            "ranks as devices. Lower --data-parallel-size or widen ASCEND_RT_VISIBLE_DEVICES."
        )
    if not is_vendor_device():
        return
    soc = import_device_module().npu.get_soc_version()
    if soc != ASCEND_950_SOC:
        raise DeviceModuleError(
            f"npu:{index} is SoC {soc}; allowed: {ASCEND_950_SOC}, the Ascend 950. vllm-ascend "
            "serves other generations: set DEEPINFER_PLATFORM=off and VLLM_PLUGINS=ascend."
        )

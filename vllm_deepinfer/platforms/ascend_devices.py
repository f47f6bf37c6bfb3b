"""Asks the machine which Ascend NPUs it has, without CANN, torch or vLLM.

The file system is read first: device nodes say that there are NPUs, PCI ids which. Only where it
cannot tell is the driver's management library asked. Neither initialises a device, so a process may
still fork and choose its devices afterwards.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_HUAWEI = "0x19e5"
# Families before the 950 by PCI id. The id of the 950 is not listed: machines that attach it by
# Unified Bus show none, so an unknown id decides nothing.
OLDER_PCI_IDS = {
    "0xd100": "310",
    "0xd105": "310B",
    "0xd500": "310P",
    "0xd801": "910",
    "0xd802": "910B (A2)",
    "0xd803": "910_93 (A3)",
}
OLDER_CHIPS = ("310", "610", "910")
_LIBRARY = "libdrvdsmi_host.so"
_LIBRARY_FOLDERS = ("usr/local/Ascend/driver/lib64/driver", "usr/local/Ascend/driver/lib64")
# Three names of 32 bytes are documented; a driver that writes more must not write over anything.
_CHIP_INFO_BYTES = 4096
_CHIP_NAME = slice(32, 64)


class DriverError(RuntimeError):
    """A call into the Ascend driver's management library failed."""


@dataclass(frozen=True)
class AscendDevices:
    """The NPUs of this machine.

    nodes: device nodes, such as "/dev/davinci0"; none means no NPU.
    is_950: True or False where something tells, None where nothing does.
    evidence: one clause that says what told, or that nothing did.
    """

    nodes: tuple[str, ...]
    is_950: bool | None
    evidence: str


def ascend_devices(root: Path, chips: Callable[[Path], list[str]]) -> AscendDevices:
    """What `root` and, where the file system cannot tell, the driver say.

    Args:
        root: where the file system starts.
        chips: gives the chip names of the driver at `root`, see `driver_chips`.
    """
    nodes = device_nodes(root)
    if not nodes:
        return AscendDevices((), None, "no /dev/davinci* device")
    older = sorted(set(_older_by_pci(root)))
    if older:
        return AscendDevices(nodes, False, f"PCI ids name an Ascend {', '.join(older)}")
    try:
        names = chips(root)
    except DriverError as error:
        return AscendDevices(nodes, None, f"the driver does not tell the chip: {error}")
    return AscendDevices(nodes, *_judge(names))


def device_nodes(root: Path) -> tuple[str, ...]:
    """Device nodes of NPUs; `davinci_manager` alone counts, as in containers that add devices."""
    dev = root / "dev"
    found = [*dev.glob("davinci[0-9]*"), *dev.glob("davinci_manager")]
    return tuple(sorted(f"/dev/{path.name}" for path in found))


def _older_by_pci(root: Path) -> list[str]:
    families = []
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        if _read(device / "vendor") == _HUAWEI and _read(device / "device") in OLDER_PCI_IDS:
            families.append(OLDER_PCI_IDS[_read(device / "device")])
    return families


def _read(path: Path) -> str:
    return path.read_text().strip().lower() if path.is_file() else ""


def _judge(names: list[str]) -> tuple[bool | None, str]:
    """(is it a 950, evidence) from the driver's chip names."""
    shown = ", ".join(sorted(set(names)))
    if not names:
        return None, "neither PCI ids nor the driver tell the chip"
    short = [name.lower().removeprefix("ascend").strip() for name in names]
    if all(name.startswith("950") for name in short):
        return True, f"the driver names the chip {shown}"
    if any(name.startswith(OLDER_CHIPS) for name in short):
        return False, f"the driver names the chip {shown}"
    return None, f"the driver names an unknown chip {shown}"


def driver_chips(root: Path) -> list[str]:
    """Chip names of all NPUs, such as "910B3"; empty without the driver's library.

    Raises:
        DriverError: the library is there and a call fails or it cannot be loaded.
    """
    paths = [root / folder / _LIBRARY for folder in _LIBRARY_FOLDERS]
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        return []
    try:
        library = ctypes.CDLL(str(found))
    except OSError as error:
        raise DriverError(f"{found} cannot be loaded: {error}") from error
    count = ctypes.c_int()
    _call(library, "dsmi_get_device_count", ctypes.byref(count))
    return [_chip_name(library, device) for device in range(count.value)]


def _chip_name(library: ctypes.CDLL, device: int) -> str:
    info = ctypes.create_string_buffer(_CHIP_INFO_BYTES)
    _call(library, "dsmi_get_chip_info", ctypes.c_int(device), info)
    return info.raw[_CHIP_NAME].split(b"\0")[0].decode("ascii", "replace")


def _call(library: ctypes.CDLL, name: str, *args: object) -> None:
    try:
        function = getattr(library, name)
    except AttributeError as error:
        raise DriverError(f"{_LIBRARY} has no {name}") from error
    status = function(*args)
    if status != 0:
        raise DriverError(f"{name} of {_LIBRARY} returned status {status}")

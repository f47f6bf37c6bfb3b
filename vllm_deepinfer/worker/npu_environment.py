"""Variables of the vendor's software that the engine needs: set in a worker, and only if unset.

Source of the values: what DeepInfer sets on this device.
"""

from __future__ import annotations

from collections.abc import MutableMapping

DEFAULTS: dict[str, str] = {
    # Freed blocks of one size serve another; without it, long prompts fragment the memory.
    "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
    # Launches go straight to the device: a queue of its own would outlive a capture.
    "TASK_QUEUE_ENABLE": "0",
    # MB per communication group, of which there are many, allocated at its first collective.
    "HCCL_BUFFSIZE": "16",
    # Collectives on the vector cores, which graphs can capture.
    "HCCL_OP_EXPANSION_MODE": "AIV",
    # Sums over ranks in one order.
    "HCCL_DETERMINISTIC": "true",
    # Seconds; ranks load weights for minutes before they first meet.
    "HCCL_CONNECT_TIMEOUT": "240",
}


def set_defaults(environ: MutableMapping[str, str]) -> dict[str, str]:
    """Set every variable that is unset, and give those that were."""
    missing = {name: value for name, value in DEFAULTS.items() if name not in environ}
    environ.update(missing)
    return missing

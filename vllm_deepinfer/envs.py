"""The environment variables of this package; options live in `--additional-config` (config.py).

No name starts with `VLLM_`: vLLM warns about names under that prefix that it does not know.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

PLATFORM_CHOICES = ("cpu", "sm100", "ascend950", "off")
_BOOLEANS = {"0": False, "false": False, "1": True, "true": True}


def platform_override(environ: Mapping[str, str] | None = None) -> str | None:
    """`DEEPINFER_PLATFORM`: the platform to use instead of the detected one.

    Default: unset (detect). `off` leaves the choice to vLLM, as if this package were not installed.

    Raises:
        ValueError: the value is none of `PLATFORM_CHOICES`.
    """
    value = (os.environ if environ is None else environ).get("DEEPINFER_PLATFORM", "")
    if not value:
        return None
    if value not in PLATFORM_CHOICES:
        raise ValueError(
            f"DEEPINFER_PLATFORM={value!r} is not a platform. Allowed: "
            f"{', '.join(PLATFORM_CHOICES)}; unset it to detect the platform."
        )
    return value


def allow_untested_vllm(environ: Mapping[str, str] | None = None) -> bool:
    """`DEEPINFER_ALLOW_UNTESTED_VLLM`: run on a vLLM outside the supported window.

    Default: 0 (refuse). The contract of upstream symbols is still checked.

    Raises:
        ValueError: the value is not 0, 1, true or false.
    """
    return _boolean("DEEPINFER_ALLOW_UNTESTED_VLLM", environ)


def reference_ops(environ: Mapping[str, str] | None = None) -> bool:
    """`DEEPINFER_REFERENCE_OPS`: compute every operation of the model by its torch reference.

    Default: 0 (use the platform's kernels). For comparisons and for finding a wrong kernel; slow.

    Raises:
        ValueError: the value is not 0, 1, true or false.
    """
    return _boolean("DEEPINFER_REFERENCE_OPS", environ)


def cpu_kernels(environ: Mapping[str, str] | None = None) -> str | None:
    """`DEEPINFER_CPU_KERNELS`: which version of the C++ kernels to run, such as `avx512`.

    Default: unset (the best this processor can run). A version that it cannot run is refused with
    those that it can.
    """
    return (os.environ if environ is None else environ).get("DEEPINFER_CPU_KERNELS") or None


def npu_module(environ: Mapping[str, str] | None = None) -> str:
    """`DEEPINFER_NPU_MODULE`: the Python module that gives torch the device "npu".

    Default: torch_npu, the vendor's. Another one must register an npu device and `torch.npu` when
    it is imported, as a device kept in host memory for tests does; the vendor's operations are then
    not used, and every operation is computed by what torch dispatches it to.
    """
    return (os.environ if environ is None else environ).get("DEEPINFER_NPU_MODULE") or "torch_npu"


def _boolean(name: str, environ: Mapping[str, str] | None) -> bool:
    value = (os.environ if environ is None else environ).get(name, "")
    if not value:
        return False
    if value.lower() not in _BOOLEANS:
        raise ValueError(f"{name}={value!r} is not a boolean. Allowed: {', '.join(_BOOLEANS)}.")
    return _BOOLEANS[value.lower()]

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
    value = (os.environ if environ is None else environ).get("DEEPINFER_ALLOW_UNTESTED_VLLM", "")
    if not value:
        return False
    if value.lower() not in _BOOLEANS:
        raise ValueError(
            f"DEEPINFER_ALLOW_UNTESTED_VLLM={value!r} is not a boolean. "
            f"Allowed: {', '.join(_BOOLEANS)}."
        )
    return _BOOLEANS[value.lower()]

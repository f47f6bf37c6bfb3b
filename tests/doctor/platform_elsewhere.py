"""Doctor's documents for a platform that is not here, in a process of its own.

    python platform_elsewhere.py PLATFORM '[[ARGUMENT, ...], ...]'

Prints a line ``RESULT {...}``: under "documents" one for each list of arguments, and under "others"
the modules that hold another platform than the asked one.
"""

from __future__ import annotations

import json
import sys

DEVICE_BYTES = 180 << 30


def main(platform: str, cases: str) -> None:
    from vllm_deepinfer.doctor.diagnose import diagnose

    documents = [diagnose(case, platform, DEVICE_BYTES) for case in json.loads(cases)]

    import vllm.platforms

    asked = type(vllm.platforms._current_platform).__qualname__
    held = {name: vars(module).get("current_platform") for name, module in sys.modules.items()}
    others = [
        f"{name}: {type(found).__qualname__}"
        for name, found in held.items()
        if found is not None and name.startswith("vllm") and type(found).__qualname__ != asked
    ]
    print("RESULT", json.dumps({"documents": documents, "others": others}, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])

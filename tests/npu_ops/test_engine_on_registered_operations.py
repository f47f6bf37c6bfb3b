"""On the operations that an Ascend 950 gets, drafts verified in graphs change no token.

If this fails, the operations are right one by one and wrong in a decode step: captured, padded, on
caches that the engine laid out. torch_npu is played as documented, over the npu device of tests.
"""

from __future__ import annotations

import json
from pathlib import Path

from fake_npu import processes

from vllm_deepinfer.ops.npu.table import NATIVE

SCRIPT = Path(__file__).with_name("engine_on_operations.py")


def test_drafts_in_graphs_give_the_eager_tokens(tiny_folder, tmp_path, fake_npu_library):
    result = tmp_path / "tokens.json"
    environment = {
        "DEEPINFER_PLATFORM": "ascend950",
        "DEEPINFER_NPU_MODULE": "npu_ops.device_with_operations",
        "FAKE_NPU_MEMORY_GIB": "8",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }
    processes.python([str(SCRIPT), str(tiny_folder), str(result)], environment)
    found = json.loads(result.read_text())
    assert found["eager"] == found["drafting"]
    assert found["eager replays"] == 0 < found["drafting replays"]
    assert set(found["calls"]) == {call for entry in NATIVE.values() for call in entry.calls}

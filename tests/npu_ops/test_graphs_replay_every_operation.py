"""On a device named npu, every operation is registered, captured in a graph, and replays right.

If this fails, a decode step on Ascend cannot be captured, or its replays use what the host knew
when it was captured. The device is that of tests/fake_npu; torch_npu is played as documented.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_npu import processes

SCRIPT = Path(__file__).with_name("device_graphs.py")


@pytest.mark.parametrize("computed_by", ["torch", "torch_npu"])
def test_every_operation_replays_on_other_values(computed_by, fake_npu_library):
    assert "23 operations replay" in processes.python([str(SCRIPT), computed_by])

"""A device named "npu" for tests: torch's PrivateUse1 over host memory, with graphs that replay.

    build.library()          compiles it, once
    fake_npu.device          importing this gives torch the device; it stands where torch_npu would
    fake_npu.for_deepinfer   the same, with this package's operations on it
    torch.ops.fake_npu       what the device has done: operations, waits; graphs.num_replays

What it is faithful in: memory of its own with garbage in it; streams, events, several devices and
a generator; late copies to the host; waits, which `torch.npu.set_sync_debug_mode` reports; refusal
of tensors of two devices; graphs that keep host values and addresses as they were captured;
collectives named "hccl" that graphs repeat. What it is not: fast, asynchronous between streams, or
any judge of the vendor's operations, of which it has none.

Importing `fake_npu.device` changes torch for the whole process and cannot be undone, so tests do it
in processes of their own (`processes.py`).
"""

from __future__ import annotations

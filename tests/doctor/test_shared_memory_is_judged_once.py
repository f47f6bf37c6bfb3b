"""What does not fit into /dev/shm is said once for one rank, and again for more.

Claim: where one rank has no room, there is one error, though the platform refuses the options too;
where one has and several have not, the platform's refusal is the error. If this breaks, a person
reads the same sentence twice, or never that the ranks asked for are too many.
"""

from __future__ import annotations

import pytest

from vllm_deepinfer.doctor.diagnose import diagnose
from vllm_deepinfer.platforms import message_rings


@pytest.mark.parametrize(
    ("free_mib", "num_ranks", "expected"),
    [
        (12, 1, [("error", "shared_memory", "1 rank(s)")]),
        (64, 1, [("note", "shared_memory", "chunks of 3 MiB")]),
        (
            64,
            4,
            [
                ("note", "shared_memory", "at most 3 data-parallel"),
                ("error", "configuration", "4 rank(s)"),
            ],
        ),
        (1024, 2, []),
    ],
)
def test_findings(monkeypatch, free_mib, num_ranks, expected):
    monkeypatch.setattr(message_rings, "_last", None)
    monkeypatch.setattr(message_rings, "free_bytes", lambda root=None: free_mib << 20)
    monkeypatch.delenv(message_rings.CHUNK_MIB, raising=False)
    # An engine in this process would have no rings.
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    document = diagnose(["tiny", "--data-parallel-size", str(num_ranks)])
    found = [f for f in document["findings"] if "/dev/shm" in f["message"]]
    assert [(f["level"], f["check"]) for f in found] == [case[:2] for case in expected]
    for finding, (_, _, words) in zip(found, expected, strict=True):
        assert words in finding["message"]
    assert document["ok"] == all(level != "error" for level, _, _ in expected)

"""The cache of an engine on an npu leaves room for the largest step.

Claim: without a size given, the profile computes a step of as many tokens as one may have, through
the model and its caches, so that its activations are kept out of the cache. If this breaks, a
server starts and its first long prompt is out of memory.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_npu import processes
from npu_engines import environment

SCRIPT = Path(__file__).parent / "engine_sized_by_profile.py"
NUM_TOKENS = 1024
HIDDEN_BYTES = 256 * 2
"""One row of the tiny model's hidden states in bfloat16."""


@pytest.fixture(scope="module")
def found(fake_npu_library, tiny_folder):
    changes = {
        **environment(VLLM_ENABLE_V1_MULTIPROCESSING="0"),
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    printed = processes.python([str(SCRIPT), str(tiny_folder), str(NUM_TOKENS)], changes)
    return json.loads(printed.splitlines()[-1])


def test_activations_of_the_largest_step_are_counted(found):
    """Streams, queries and chosen rows are dozens of hidden states; a pass without caches is one
    or two."""
    assert found["peak"] > 20 * NUM_TOKENS * HIDDEN_BYTES


def test_cache_gets_what_they_leave(found):
    assert 0 < found["cache"] <= found["requested"] - found["peak"]


def test_a_prompt_of_that_size_is_served(found):
    assert found["generated"] == 2

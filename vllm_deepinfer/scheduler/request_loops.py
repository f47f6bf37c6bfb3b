"""Loops over the requests of a step: the C++ extension, or the same in Python.

They run once or twice a step over hundreds of requests, between two forward passes. What each
computes stands in ``request_loops_reference.py``.
"""

from __future__ import annotations

from types import ModuleType

from vllm_deepinfer.scheduler import extension, request_loops_reference


def backend() -> ModuleType:
    """A module with ``survey``, ``collect``, ``trim``, ``verified``, ``settle`` and ``receive``."""
    loops = extension.load("scheduling", "each step spends several times longer on scheduling")
    return request_loops_reference if loops is None else loops

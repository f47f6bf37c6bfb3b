"""Dummy batches: with nothing of its own to compute, a rank still joins the others' collectives.

vLLM runs them on a rank without requests, and also to warm up. The first kind is marked by
``joining``; a model then computes only what other ranks need of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_joining: ContextVar[bool] = ContextVar("vllm_deepinfer_joining", default=False)


@contextmanager
def joining() -> Iterator[None]:
    """Forward passes inside have no rows of their own: their outputs are zero."""
    token = _joining.set(True)
    try:
        yield
    finally:
        _joining.reset(token)


def is_joining() -> bool:
    return _joining.get()

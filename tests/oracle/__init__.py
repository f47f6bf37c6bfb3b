"""Independent float64 oracle of the V4.1 text model and its draft block.

Written from the specification alone; it shares no code with the package it judges. It runs whole
prompts with no caches and aims at being checkable line by line, not at speed.
"""

from __future__ import annotations

from .compressed import SharedState
from .dspark import Draft
from .model import Oracle, Trace

__all__ = ["Draft", "Oracle", "SharedState", "Trace"]

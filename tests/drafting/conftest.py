"""Stand-in engines shared by the tests of a module; each is started when first asked for."""

from __future__ import annotations

from contextlib import ExitStack

import pytest


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    """``stand_ins(num_drafts, settings, **options)``: an engine, kept until the module ends.

    Engines of a process share vLLM's process groups, which end with the first that is shut down.
    """
    from drafting.stand_in_engine import stand_in_engine

    from vllm_deepinfer.testing.stand_in import make_stand_in

    engines = {}
    with ExitStack() as stack:

        def get(num_drafts: int, settings: dict | None = None, **options):
            key = num_drafts, repr(settings), repr(sorted(options.items()))
            if key not in engines:
                folder = tmp_path_factory.mktemp("stand_in")
                make_stand_in(folder, **(settings or {}))
                made = stand_in_engine(folder, num_drafts, **options)
                engines[key] = stack.enter_context(made)
            return engines[key]

        yield get

"""Compare the draft block of a recording.

The recording's context was computed by the published reference, which prefills all but the last
token and decodes that one. On a decode that leaves a pair of tokens open it scores ratio-2 layers
against the keys of the ratio-1 source (V4.1 specification, section 2.8). Prefill semantics, which
this package follows everywhere, would differ by more than the bound, so the check repeats it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vllm_deepinfer.models.deepseek_v41.decoder import Decoder
from vllm_deepinfer.models.deepseek_v41.probe import Probe
from vllm_deepinfer.models.deepseek_v41.standalone import Chunk, StandaloneModel
from vllm_deepinfer.models.deepseek_v41.standalone_draft import DraftBlock, StandaloneDraft


def propose_recorded(
    folder: Path, model: StandaloneModel, prompt: list[int], recorded: dict[str, Any]
) -> DraftBlock:
    """The block this package drafts in the recording's context, given the drafts recorded.

    A near tie that falls the other way would else change all later drafts.
    """
    context_tokens = recorded["context_tokens"]
    model.reset()
    draft = StandaloneDraft.load(folder, model)
    _observe(model, draft, prompt[: context_tokens - 1])
    with _reference_decode(model.decoder, context_tokens):
        _observe(model, draft, prompt[context_tokens - 1 : context_tokens])
    return draft.propose(context_tokens, recorded["bonus"], recorded["drafts_greedy"])


def _observe(model: StandaloneModel, draft: StandaloneDraft, token_ids: list[int]) -> None:
    first = len(model.history[0])
    taps: dict[int, Tensor] = draft.tap_layers()
    model.compute([Chunk(0, token_ids)], Probe(torch_ties=True), taps=taps)
    draft.observe(taps, first)


@contextmanager
def _reference_decode(decoder: Decoder, context_tokens: int) -> Iterator[None]:
    """Score as the reference's decode of the last of ``context_tokens`` tokens does."""
    config = decoder.config
    keys = decoder.caches[config.candidate_source_layer_id].index_key
    affected = [
        layer
        for layer in decoder.layers
        if layer.plan.owns_kv
        and context_tokens % layer.plan.ratio
        and context_tokens > layer.plan.ratio * config.index_topk
    ]
    own = [layer.attn.indexer.key_cache for layer in affected]
    for layer in affected:
        layer.attn.indexer.key_cache = replace(keys, tokens_per_row=layer.plan.ratio)
    try:
        yield
    finally:
        for layer, cache in zip(affected, own, strict=True):
            layer.attn.indexer.key_cache = cache


def recorded_tensors(recorded: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids and logits ``[B, 5]`` of the best drafts recorded, and raw confidences ``[B]``."""
    rows = recorded["top5_logits"]
    ids = torch.tensor([[token for token, _ in row] for row in rows])
    logits = torch.tensor([[value for _, value in row] for row in rows])
    return ids, logits, torch.tensor(recorded["confidence_raw_logit_no_sigmoid"])

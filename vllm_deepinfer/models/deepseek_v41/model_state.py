"""Per-request inputs the model needs beyond token ids: the tokens before each one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.model_states.default import DefaultModelState
from vllm.v1.worker.gpu.states import RequestState


class V41ModelState(DefaultModelState):
    """Looks up each token's n-gram in the runner's token history.

    The history is by position, so a prefix-cache hit, a chunk edge or a resumed request needs no
    state of its own.
    """

    def prepare_inputs(self, input_batch: InputBatch, req_states: RequestState) -> dict[str, Any]:
        inputs = super().prepare_inputs(input_batch, req_states)
        num_tokens = input_batch.num_tokens
        counts = torch.from_numpy(input_batch.query_start_loc_np[: input_batch.num_reqs + 1]).diff()
        rows = input_batch.idx_mapping[: input_batch.num_reqs].long()
        rows = rows.repeat_interleave(counts.to(rows.device), output_size=num_tokens)
        inputs["ngram_token_ids"] = gather_ngrams(
            req_states.all_token_ids.gpu,
            rows,
            input_batch.input_ids[:num_tokens],
            input_batch.positions[:num_tokens],
            self.model.config.engram_max_ngram_size,
        )
        return inputs


def gather_ngrams(
    history: Tensor, rows: Tensor, token_ids: Tensor, positions: Tensor, size: int
) -> Tensor:
    """Each token and its ``size - 1`` predecessors, int64 ``[T, size]``, -1 before the start.

    Args:
        history: ``[requests, positions]`` token ids; a request's own newest token may not be in it
            yet, so column 0 is taken from ``token_ids`` ``[T]``.
        rows: ``[T]`` history row of each token.
        positions: ``[T]``.
    """
    back = positions.long().unsqueeze(1) - torch.arange(size, device=positions.device)
    ngrams = history[rows.unsqueeze(1), back.clamp_min(0)].long()
    ngrams.masked_fill_(back < 0, -1)
    ngrams[:, 0] = token_ids
    return ngrams

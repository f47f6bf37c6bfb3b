"""Per-request inputs the model needs beyond token ids: the tokens before each one."""

from __future__ import annotations

from functools import cached_property
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

    def custom_sampler(self, sampler: Any) -> tuple[Any, Any] | None:
        """Verify drafts by drawing the target's own tokens; see ``CoupledRejectionSampler``."""
        speculative = self.vllm_config.speculative_config
        if speculative is None:
            return None
        from vllm_deepinfer.drafting.coupled_verification import CoupledRejectionSampler

        return sampler, CoupledRejectionSampler(sampler, speculative, self.device)

    @cached_property
    def _ngram_token_ids(self) -> Tensor:
        """Where n-grams are put, int64 ``[most tokens, n]``: a recorded step reads this memory."""
        most = self.vllm_config.scheduler_config.max_num_batched_tokens
        size = self.model.config.engram_max_ngram_size
        return torch.zeros(most, size, dtype=torch.int64, device=self.device)

    def prepare_inputs(self, input_batch: InputBatch, req_states: RequestState) -> dict[str, Any]:
        inputs = super().prepare_inputs(input_batch, req_states)
        num_tokens = input_batch.num_tokens
        ends = input_batch.query_start_loc[1 : input_batch.num_reqs + 1]
        tokens = torch.arange(num_tokens, device=ends.device, dtype=ends.dtype)
        requests = torch.searchsorted(ends, tokens, right=True)
        ngrams = gather_ngrams(
            req_states.all_token_ids.gpu,
            input_batch.idx_mapping.long()[requests],
            input_batch.input_ids[:num_tokens],
            input_batch.positions[:num_tokens].long(),
            input_batch.query_start_loc[requests],
            self.model.config.engram_max_ngram_size,
        )
        self._ngram_token_ids[:num_tokens] = ngrams
        inputs["ngram_token_ids"] = self._ngram_token_ids[: input_batch.num_tokens_after_padding]
        return inputs

    def prepare_dummy_inputs(self, num_reqs: int, num_tokens: int) -> dict[str, Any]:
        inputs = super().prepare_dummy_inputs(num_reqs, num_tokens)
        inputs["ngram_token_ids"] = self._ngram_token_ids[:num_tokens]
        return inputs


def gather_ngrams(
    history: Tensor,
    rows: Tensor,
    token_ids: Tensor,
    positions: Tensor,
    first_tokens: Tensor,
    size: int,
) -> Tensor:
    """Each token and its ``size - 1`` predecessors, int64 ``[T, size]``, -1 before the start.

    Predecessors computed in this step come from the step itself: drafts under verification, and a
    token sampled a moment ago, are not in the history.

    Args:
        history: ``[requests, positions]`` token ids up to this step.
        rows: ``[T]`` history row of each token.
        token_ids: ``[T]`` tokens of this step, those of a request adjacent.
        positions: int64 ``[T]``.
        first_tokens: ``[T]`` index of the first token of each token's request.
    """
    back = torch.arange(size, device=positions.device)
    index = torch.arange(len(positions), device=positions.device).unsqueeze(1) - back
    earlier = positions.unsqueeze(1) - back
    in_step = token_ids[index.clamp_min(0)].long()
    before = history[rows.unsqueeze(1), earlier.clamp_min(0)].long()
    ngrams = torch.where(index >= first_tokens.unsqueeze(1), in_step, before)
    return ngrams.masked_fill_(earlier < 0, -1)

"""Verify drafts by drawing the target's own token at every position and comparing.

Each row of a verification step is sampled exactly as it would be without drafting: same logits,
same parameters, same noise for the request's seed and position. Drafts that equal the drawn tokens
are accepted, the first that differs is replaced by the drawn token. So drafting changes how many
tokens a step yields and never which: not their law, not a seeded request's text, not a log-
probability, whatever the drafter proposes and however many drafts are verified.

For drafts chosen without randomness, as here, a draft d survives with the target's probability of
d, which is what the usual probability-ratio test gives.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample
from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

NO_TOKEN = -1


def accepted_prefix(
    tokens: Tensor, drafts: Tensor, cu_num_logits: Tensor, max_drafts: int
) -> tuple[Tensor, Tensor]:
    """Emitted tokens of each request, and how many.

    Args:
        tokens: the target's token at each row, int64 ``[rows]``.
        drafts: the token each row was computed from, ``[rows]``: row 0 of a request the last token
            it emitted, later rows its drafts, negative where a draft is invalid.
        cu_num_logits: ``[R + 1]``, first row of each request.
        max_drafts: most drafts a request can have.

    Returns:
        int64 ``[R, max_drafts + 1]``, -1 padded, and the emitted counts, int32 ``[R]``: accepted
        drafts plus one.
    """
    first, end = cu_num_logits[:-1].unsqueeze(1).long(), cu_num_logits[1:].unsqueeze(1).long()
    rows = first + torch.arange(max_drafts + 1, device=tokens.device)
    exists = rows < end
    rows = torch.where(exists, rows, first)
    drawn = tokens[rows]
    survives = exists[:, 1:] & (drafts[rows[:, 1:]] == drawn[:, :-1])
    count = survives.int().cumprod(1).sum(1, dtype=torch.int32) + 1
    emitted = torch.arange(max_drafts + 1, device=tokens.device) < count.unsqueeze(1)
    return drawn.masked_fill(~emitted, NO_TOKEN), count


class CoupledRejectionSampler(RejectionSampler):
    """vLLM's rejection sampler with the comparison above in place of its probability test."""

    def __call__(
        self, logits: Tensor, input_batch: InputBatch, *args: Any, **kwargs: Any
    ) -> SamplerOutput:
        # Of the whole batch, so that all chunks of it score equally many tokens a row.
        self._num_scores = self.sampler.get_logprobs_dims(input_batch.idx_mapping_np)
        return super().__call__(logits, input_batch, *args, **kwargs)

    def _verify(
        self,
        logits: Tensor,
        draft_logits: Tensor | None,
        draft_sampled: Tensor,
        pos: Tensor,
        cu_num_logits: Tensor,
        idx_mapping: Tensor,
        idx_mapping_np: np.ndarray,
        expanded_idx_mapping: Tensor,
        expanded_local_pos: Tensor,
        seq_lens_upper_bound_np: np.ndarray,
        verify_draft_sampled: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        sampler = self.sampler
        processed = sampler.apply_sampling_params(
            logits,
            expanded_idx_mapping,
            idx_mapping,
            idx_mapping_np,
            pos,
            draft_sampled,
            expanded_local_pos,
            seq_lens_upper_bound_np,
        )
        tokens = gumbel_sample(
            processed,
            expanded_idx_mapping,
            sampler.sampling_states.temperature.gpu,
            sampler.sampling_states.seeds.gpu,
            pos,
            apply_temperature=False,
            is_drafting=False,
            use_fp64=sampler.use_fp64_gumbel,
        )
        self._scored = tokens, expanded_idx_mapping
        emitted, count = accepted_prefix(
            tokens, verify_draft_sampled, cu_num_logits, self.num_speculative_steps
        )
        return processed, emitted, count

    def _get_logprobs_tensors(
        self,
        sampled: Tensor,
        num_sampled: Tensor,
        logits: Tensor,
        cu_num_logits: Tensor,
        cu_num_logits_np: np.ndarray,
        max_num_logprobs: int,
    ) -> LogprobsTensors | None:
        """Scores of the rows `_verify` has just drawn, as vLLM's sampler gives them.

        vLLM's own form leaves out the tokens a request lists in ``logprob_token_ids``.
        """
        if self._num_scores is None:
            return None
        num_logprobs, num_listed = self._num_scores
        tokens, expanded_idx_mapping = self._scored
        has_drafts = len(logits) != len(cu_num_logits_np) - 1
        return compute_topk_scores(
            logits,
            num_logprobs,
            tokens,
            cu_num_logits_np.tolist() if has_drafts else None,
            logprob_token_ids_state=self.sampler.logprob_token_ids_state,
            expanded_idx_mapping=expanded_idx_mapping,
            max_per_req_token_ids=num_listed,
            logits_mode=self.sampler.logprobs_mode in ("raw_logits", "processed_logits"),
        )

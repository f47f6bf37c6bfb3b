"""The draft block without an engine, for self-checks and tests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_deepinfer.models.deepseek_v41.checkpoint_files import iterate_tensors
from vllm_deepinfer.models.deepseek_v41.draft import Draft
from vllm_deepinfer.models.deepseek_v41.standalone import BLOCK_TOKENS, StandaloneModel
from vllm_deepinfer.models.deepseek_v41.step import Paging, Step
from vllm_deepinfer.models.deepseek_v41.weights import load_weights


@dataclass
class DraftBlock:
    """Logits ``[B, V]``, greedy drafts and raw confidence logits ``[B]`` of one block."""

    logits: Tensor
    drafts: list[int]
    confidences: Tensor


@dataclass
class StandaloneDraft:
    """Draft stages of one request, fed with the target's taps."""

    target: StandaloneModel
    draft: Draft

    @classmethod
    def load(cls, folder: str | os.PathLike[str], target: StandaloneModel) -> StandaloneDraft:
        """Load the draft stages beside a loaded target."""
        draft = Draft(target.config, target.decoder.numerics)
        load_weights(draft, iterate_tensors(folder), target.config, "draft")
        tokens = target.max_tokens + target.config.dspark_block_size
        blocks = 1 + -(-tokens // BLOCK_TOKENS)
        for cache in draft.all_caches():
            size = (blocks, BLOCK_TOKENS, cache.record.num_bytes)
            cache.bind(torch.zeros(size, dtype=torch.uint8))
        return cls(target, draft)

    def tap_layers(self) -> dict[int, Tensor]:
        """What to pass as ``taps`` when the target computes."""
        return dict.fromkeys(
            self.target.config.dspark_target_layer_ids, torch.empty(0, dtype=torch.float32)
        )

    @torch.no_grad()
    def observe(self, taps: dict[int, Tensor], first_position: int) -> None:
        """Store the context of tokens the target just computed."""
        context = self.draft.context(torch.cat(list(taps.values()), -1))
        positions = first_position + torch.arange(len(context))
        self.draft.store_context(context, positions, [self._slots(positions)] * len(self.draft.mtp))

    @torch.no_grad()
    def propose(
        self, context_tokens: int, bonus_token: int, forced: Sequence[int] | None = None
    ) -> DraftBlock:
        """Draft the block after ``context_tokens`` tokens and the ``bonus_token`` that follows.

        Each draft is conditioned on the one before it, or on that of ``forced``.
        """
        config = self.target.config
        size = config.dspark_block_size
        token_ids = torch.full((size,), config.dspark_noise_token_id)
        token_ids[0] = bonus_token
        head_input = self.draft(
            self.target.decoder.embed(token_ids), self._step(context_tokens, size)
        )
        logits = self.target.decoder.logits(self.draft.normalised(head_input))
        drafts, markov, previous = [], [], torch.tensor([bonus_token])
        for row in range(size):
            markov.append(self.draft.markov_embed(previous))
            logits[row] += self.draft.markov_bias(markov[-1])[0]
            previous = logits[row].argmax().unsqueeze(0)
            drafts.append(int(previous))
            if forced is not None:
                previous = torch.tensor([forced[row]])
        confidences = self.draft.confidence_logits(head_input, torch.cat(markov))
        return DraftBlock(logits, drafts, confidences)

    def _slots(self, positions: Tensor) -> Tensor:
        return BLOCK_TOKENS + positions  # block 0 stays unused

    def _step(self, context_tokens: int, size: int) -> Step:
        positions = context_tokens + torch.arange(size)
        blocks = 1 + torch.arange(-(-(context_tokens + size) // BLOCK_TOKENS))
        paging = Paging(blocks.unsqueeze(0), self._slots(positions), BLOCK_TOKENS)
        return Step(
            positions=positions,
            query_starts=[0, size],
            context_tokens=[context_tokens + size],
            ngram_token_ids=torch.empty(size, 0, dtype=torch.int64),
            paging={cache.name: paging for cache in self.draft.all_caches()},
            is_draft_block=True,
        )

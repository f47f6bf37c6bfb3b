"""The stand-in for the draft stages: right as often as it is told, if its context is whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from vllm.forward_context import get_forward_context

from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.models.deepseek_v41.config import V41Config
from vllm_deepinfer.models.deepseek_v41.draft_model import (
    check_draft_length,
    check_same_checkpoint,
    read_calibration,
)
from vllm_deepinfer.models.deepseek_v41.kv_cache import CacheLayer, step_of
from vllm_deepinfer.models.deepseek_v41.step import Step
from vllm_deepinfer.testing.stand_in.journal import (
    POSITION,
    ROW_WIDTH,
    Journal,
    from_hidden,
    to_hidden,
)
from vllm_deepinfer.testing.stand_in.law import POISON, Settings, drafts, successors
from vllm_deepinfer.testing.stand_in.target import NUM_TAP_NUMBERS

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# Above the bias of the Markov head, so that a wrong draft stays wrong.
WRONG_LOGIT, MARKOV_LOGIT = 1000.0, 100.0
# What a head input carries: block position, anchor, index in the block, wrong token (0: none).
NUM_HEAD_NUMBERS = 4


class StandInStages(nn.Module):
    """What vLLM's speculator looks for inside a draft model."""

    def __init__(self, config: V41Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, 1)
        self.confidence_head = nn.Identity()


class StandInDrafter(nn.Module):
    """Drafts by ``law.drafts``; ``settings`` may be replaced while the engine runs.

    ``num_faults`` counts context rows and blocks that were not those of their prefix. A block with
    a fault drafts `POISON`, which never survives.
    """

    has_own_embed_tokens = False
    has_own_lm_head = False
    draft_id_to_target_id = None

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        speculative = vllm_config.speculative_config
        draft_config = speculative.draft_model_config
        self.config = V41Config.from_hf(draft_config.hf_config)
        self.num_drafts = speculative.num_speculative_tokens
        check_draft_length(self.num_drafts, self.config)
        check_same_checkpoint(vllm_config.model_config, draft_config)
        options = DeepInferConfig.from_vllm(vllm_config)
        self.calibration = read_calibration(options, draft_config, self.num_drafts)
        self.newest_confidence_logits: Tensor | None = None
        self.settings = Settings.read(draft_config.model)
        self.dtype = draft_config.dtype
        self.model = StandInStages(self.config)
        window = self.config.sliding_window
        self.journal = Journal(f"layers.{self.config.num_hidden_layers}.attn.window", window)
        self.cache_layers = nn.ModuleList([CacheLayer(self.journal.cache, window, vllm_config)])
        self.num_faults = 0

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.model.embed_tokens(input_ids)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """There is nothing to load; every parameter counts as loaded."""
        for _ in weights:
            pass
        return {name for name, _ in self.named_parameters()}

    # -- context ------------------------------------------------------------------------------

    def combine_hidden_states(self, taps: Tensor) -> Tensor:
        """Journal rows and whether all taps agree on them, ``[T, D]``."""
        layers = self.config.dspark_target_layer_ids
        width = taps.shape[1] // len(layers)
        numbers = from_hidden(taps.reshape(-1, width), NUM_TAP_NUMBERS)
        numbers = numbers.reshape(len(taps), len(layers), NUM_TAP_NUMBERS)
        content, order = numbers[..., :-1], numbers[..., -1]
        agree = (content == content[:, :1]).all((1, 2)) & (order == np.array(layers)).all(1)
        content[:, 0, ROW_WIDTH] &= agree
        return to_hidden(content[:, 0], self.config.hidden_size, self.dtype)

    def get_draft_kv_cache_layer_names(self) -> list[str]:
        return [self.journal.cache.name]

    def precompute_and_store_context_kv(
        self, context: Tensor, positions: Tensor, slots: list[Tensor] | None = None
    ) -> None:
        """Store the journal's rows; without ``slots`` (a dry run) nothing is stored."""
        if slots is None:
            return
        kept = (slots[0] >= 0).nonzero().squeeze(1)
        numbers = from_hidden(context[kept], ROW_WIDTH + 1)
        rows, whole = numbers[:, :ROW_WIDTH], numbers[:, ROW_WIDTH] == 1
        whole &= rows[:, POSITION] == positions[kept].numpy()
        self.num_faults += int((~whole).sum())
        rows[~whole] = 0
        self.journal.store(slots[0][kept], torch.from_numpy(rows).float())

    # -- the block ----------------------------------------------------------------------------

    def forward(
        self, input_ids: Tensor, positions: Tensor, inputs_embeds: Tensor | None = None
    ) -> Tensor:
        """Head inputs ``[T, D]``: what the sequential heads need to know of each draft."""
        hidden = torch.zeros(len(positions), self.config.hidden_size, dtype=self.dtype)
        metadata = get_forward_context().attn_metadata
        if not metadata:
            return hidden
        step = step_of(metadata, self.get_draft_kv_cache_layer_names(), positions)
        blocks = input_ids[: step.num_tokens].view(-1, self.num_drafts).numpy().astype(np.int64)
        first = step.positions.view(-1, self.num_drafts)[:, 0]
        whole = self._is_whole(step, blocks, first)
        if not self.journal.is_dry_run(step):
            self.num_faults += int((~whole).sum())
        made = drafts(self.settings, first.numpy(), blocks[:, 0], self.num_drafts)
        wrong = np.where(made.right, 0, made.tokens)
        wrong[~whole] = POISON
        columns = np.broadcast_arrays(
            first.numpy()[:, None], blocks[:, :1], np.arange(self.num_drafts), wrong
        )
        numbers = np.stack(columns, -1).reshape(-1, NUM_HEAD_NUMBERS)
        hidden[: step.num_tokens] = to_hidden(numbers, hidden.shape[1], self.dtype)
        return hidden

    def _is_whole(self, step: Step, blocks: np.ndarray, first: Tensor) -> np.ndarray:
        """Whether each block follows an unbroken window and is laid out as it should be."""
        windows = self.journal.windows(step, torch.arange(len(first)), first - 1)
        whole = self.journal.are_whole(windows, first.numpy() - 1)
        return whole & (blocks[:, 1:] == self.config.dspark_noise_token_id).all(1)

    # -- sequential heads ---------------------------------------------------------------------

    def compute_draft_logits(self, head_input: Tensor) -> Tensor:
        """Base logits ``[n, V]``: nothing for a right draft, the wrong token for a wrong one."""
        wrong = torch.from_numpy(from_hidden(head_input, NUM_HEAD_NUMBERS)[:, -1])
        logits = torch.zeros(len(head_input), self.config.vocab_size, dtype=torch.float32)
        return logits.scatter_(1, wrong.unsqueeze(1), WRONG_LOGIT * (wrong > 0).unsqueeze(1))

    def compute_logits(self, head_input: Tensor) -> Tensor:
        return self.compute_draft_logits(head_input)

    def map_draft_to_target(self, draft_ids: Tensor) -> Tensor:
        return draft_ids

    def markov_embed(self, token_ids: Tensor) -> Tensor:
        """The token itself, ``[n, 1]``."""
        return token_ids.unsqueeze(1).float()

    def markov_bias(self, markov: Tensor) -> Tensor:
        """``[n, V]``: the successor of the token before."""
        after = torch.from_numpy(successors(self.settings.seed))[markov.long()]
        none = torch.zeros(len(markov), self.config.vocab_size, dtype=torch.float32)
        return none.scatter_(1, after, MARKOV_LOGIT)

    def compute_confidence(self, head_input: Tensor, markov: Tensor) -> Tensor:
        """Calibrated chance ``[R * K]``; raw logits stay in ``newest_confidence_logits``."""
        position, anchor = from_hidden(head_input[:: self.num_drafts], 2).T
        made = drafts(self.settings, position, anchor, self.num_drafts)
        logits = torch.from_numpy(made.logits)
        self.newest_confidence_logits = logits.flatten()
        return self.calibration.apply(logits).flatten()

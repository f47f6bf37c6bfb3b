"""The stand-in for the target: the successor rule, and a journal that must be whole to say it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from vllm.forward_context import get_forward_context
from vllm.model_executor.models.interfaces import SupportsEagle3

from vllm_deepinfer.models.deepseek_v41.config import V41Config
from vllm_deepinfer.models.deepseek_v41.kv_cache import CacheLayer, step_of
from vllm_deepinfer.models.deepseek_v41.step import Step
from vllm_deepinfer.testing.stand_in.journal import TOKEN, Journal, from_hidden, to_hidden
from vllm_deepinfer.testing.stand_in.law import POISON, Settings, logits_table

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.sequence import IntermediateTensors
    from vllm.v1.worker.gpu.model_states.interface import ModelState

CACHE_NAME = "layers.0.attn.window"
# What a tap carries: a journal row, whether it was whole, and the layer of the tap.
NUM_TAP_NUMBERS = 5


class StandInBody(nn.Module):
    """What vLLM's loader of draft models looks for inside a target."""

    def __init__(self, config: V41Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, 1)


class StandInTarget(nn.Module, SupportsEagle3):
    """Says ``logits_table`` of the newest token.

    ``num_faults`` counts computed tokens whose window was not that of their prefix.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        model_config = vllm_config.model_config
        self.config = V41Config.from_hf(model_config.hf_config)
        self.settings = Settings.read(model_config.model)
        self.dtype = model_config.dtype
        self.model = StandInBody(self.config)
        self.lm_head = nn.Linear(1, 1, bias=False)
        self.journal = Journal(CACHE_NAME, self.config.sliding_window)
        self.cache_layers = nn.ModuleList(
            [CacheLayer(self.journal.cache, self.config.sliding_window, vllm_config)]
        )
        self.tap_layers: tuple[int, ...] = ()
        self.num_faults = 0
        self._table = torch.from_numpy(logits_table(self.settings.seed))

    @staticmethod
    def get_model_state_cls() -> type[ModelState]:
        from vllm_deepinfer.models.deepseek_v41.model_state import V41ModelState

        return V41ModelState

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.model.embed_tokens(input_ids)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """There is nothing to load; every parameter counts as loaded."""
        for _ in weights:
            pass
        return {name for name, _ in self.named_parameters()}

    def set_aux_hidden_state_layers(self, layers: tuple[int, ...]) -> None:
        self.tap_layers = tuple(layers)

    def get_eagle3_default_aux_hidden_state_layers(self) -> tuple[int, ...]:
        return self.config.dspark_target_layer_ids

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: Tensor | None = None,
        ngram_token_ids: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        """The newest token as digits ``[T, D]``; taps carry the journal's rows."""
        metadata = get_forward_context().attn_metadata
        hidden = torch.zeros(len(positions), self.config.hidden_size, dtype=self.dtype)
        taps = [hidden.clone() for _ in self.tap_layers]
        if metadata and ngram_token_ids is not None:
            step = step_of(metadata, [CACHE_NAME], positions, ngram_token_ids)
            self._compute(input_ids[: step.num_tokens].numpy().astype(np.int64), step, hidden, taps)
        return (hidden, taps) if self.tap_layers else hidden

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Float32 logits ``[n, V]``."""
        return self._table[torch.from_numpy(from_hidden(hidden_states, 1)[:, 0])]

    def _compute(self, tokens: np.ndarray, step: Step, hidden: Tensor, taps: list[Tensor]) -> None:
        rows = self.journal.append(step, tokens)
        windows = self.journal.windows(step, step.request_of_token, step.positions)
        whole = self.journal.are_whole(windows, step.positions.numpy())
        whole &= self._ngrams_agree(windows, step)
        if not self.journal.is_dry_run(step):
            self.num_faults += int((~whole).sum())
        said = np.where(whole, tokens, POISON)[:, None]
        hidden[: len(tokens)] = to_hidden(said, hidden.shape[1], self.dtype)
        for layer, tap in zip(self.tap_layers, taps, strict=True):
            numbers = np.column_stack([rows, whole, np.full(len(rows), layer)])
            tap[: len(tokens)] = to_hidden(numbers, tap.shape[1], self.dtype)

    def _ngrams_agree(self, windows: np.ndarray, step: Step) -> np.ndarray:
        """Whether the runner's token history is the one the rows were computed from."""
        said = step.ngram_token_ids[: step.num_tokens].numpy()
        back = np.arange(said.shape[1])
        stored = windows[:, -1 - back, TOKEN]
        starts_later = step.positions.numpy()[:, None] < back
        return np.where(starts_later, said == -1, said == stored).all(1)

"""DeepSeek-V4.1-Flash for vLLM: the decoder, its caches and its weights behind vLLM's interface."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import Tensor, nn
from vllm.forward_context import get_forward_context
from vllm.model_executor.models.interfaces import SupportsEagle3

from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.distributed.exchange import expert_exchange, rank_rows
from vllm_deepinfer.distributed.joining import is_joining
from vllm_deepinfer.models.deepseek_v41.config import V41Config
from vllm_deepinfer.models.deepseek_v41.decoder import Decoder
from vllm_deepinfer.models.deepseek_v41.kv_cache import CacheLayer, is_captured, step_of, waits_of
from vllm_deepinfer.models.deepseek_v41.prepare import (
    load_engram_constants,
    set_engram_constants,
    tokenizer_folder,
)
from vllm_deepinfer.models.deepseek_v41.probe import Probe
from vllm_deepinfer.models.deepseek_v41.weights import load_weights
from vllm_deepinfer.ops.numerics import Numerics

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.sequence import IntermediateTensors
    from vllm.v1.worker.gpu.model_states.interface import ModelState


class DeepseekV41ForCausalLM(nn.Module, SupportsEagle3):
    """Text model. Its input beyond vLLM's own is ``ngram_token_ids`` (``V41ModelState``)."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        model_config = vllm_config.model_config
        options = DeepInferConfig.from_vllm(vllm_config)
        self.config = V41Config.from_hf(model_config.hf_config)
        self.model_folder = tokenizer_folder(model_config.model, model_config.revision)
        numerics = Numerics(model_config.dtype, options.quantization == "stored")
        self.exchange = expert_exchange(vllm_config, "target")
        self.model = Decoder(self.config, numerics, self.exchange)
        window = self.config.sliding_window
        self.cache_layers = nn.ModuleList(
            CacheLayer(cache, window, vllm_config) for cache in self.model.all_caches()
        )
        self._cache_names = [cache.name for cache in self.model.all_caches()]
        self.tap_layers: tuple[int, ...] = ()
        self.probe: Probe | None = None

    @staticmethod
    def get_model_state_cls() -> type[ModelState]:
        from vllm_deepinfer.models.deepseek_v41.model_state import V41ModelState

        return V41ModelState

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.model.embed(input_ids)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Fill the decoder from a checkpoint's tensors and make it ready to run."""
        loaded = load_weights(self.model, weights, self.config, "target", self.exchange.held)
        set_engram_constants(self.model, load_engram_constants(self.config, self.model_folder))
        return {f"model.{name}" for name in loaded}

    def set_aux_hidden_state_layers(self, layers: tuple[int, ...]) -> None:
        """Return taps of these layers with every forward pass, for the draft stages."""
        self.tap_layers = tuple(layers)

    def get_eagle3_default_aux_hidden_state_layers(self) -> tuple[int, ...]:
        return self.config.dspark_target_layer_ids

    @property
    def lm_head(self) -> nn.Module:
        """The output head, under the name vLLM's speculators look for."""
        return self.model.head

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: Tensor | None = None,
        ngram_token_ids: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        """Final hidden states ``[T, D]``, and taps ``[T, D]`` once layers were set for them.

        Rows that pad the batch are zero, and all rows of a batch that only joins other ranks.
        """
        metadata = get_forward_context().attn_metadata
        hidden = positions.new_zeros(
            len(positions), self.config.hidden_size, dtype=self.model.numerics.dtype
        )
        if not metadata or ngram_token_ids is None:
            # A dry run before there are caches.
            return (hidden, [hidden] * len(self.tap_layers)) if self.tap_layers else hidden
        if is_joining():
            self.model.join(self.exchange.row_counts(0))
            return (hidden, [hidden] * len(self.tap_layers)) if self.tap_layers else hidden
        step = step_of(metadata, self._cache_names, positions, ngram_token_ids, self.probe)
        step.rank_rows = rank_rows(self.exchange, step, is_captured(metadata, self._cache_names))
        taps = dict.fromkeys(self.tap_layers, hidden)
        with waits_of(step):
            hidden[: step.num_tokens] = self.model(input_ids[: step.num_tokens], step, taps)
        if not taps:
            return hidden
        padding = (0, 0, 0, len(positions) - step.num_tokens)
        return hidden, [nn.functional.pad(tap, padding) for tap in taps.values()]

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Float32 logits ``[n, V]``."""
        return self.model.logits(hidden_states)

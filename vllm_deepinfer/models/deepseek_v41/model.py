"""DeepSeek-V4.1-Flash for vLLM: the decoder, its caches and its weights behind vLLM's interface."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from vllm.forward_context import get_forward_context

from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.models.deepseek_v41.config import ConfigError, V41Config
from vllm_deepinfer.models.deepseek_v41.decoder import Decoder
from vllm_deepinfer.models.deepseek_v41.kv_cache import CacheLayer, CacheMetadata
from vllm_deepinfer.models.deepseek_v41.prepare import (
    TOKENIZER_NAME,
    keep_working_copies,
    load_engram_constants,
    set_engram_constants,
)
from vllm_deepinfer.models.deepseek_v41.probe import Probe
from vllm_deepinfer.models.deepseek_v41.step import Step
from vllm_deepinfer.models.deepseek_v41.weights import load_weights
from vllm_deepinfer.ops.numerics import Numerics

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.sequence import IntermediateTensors
    from vllm.v1.worker.gpu.model_states.interface import ModelState


class DeepseekV41ForCausalLM(nn.Module):
    """Text model. Its input beyond vLLM's own is ``ngram_token_ids`` (``V41ModelState``)."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        model_config = vllm_config.model_config
        options = DeepInferConfig.from_vllm(vllm_config)
        self.config = V41Config.from_hf(model_config.hf_config)
        self.model_folder = tokenizer_folder(model_config.model, model_config.revision)
        self.weight_cache_gib = options.weight_cache_gib
        self.batch_invariant = options.batch_invariant
        numerics = Numerics(model_config.dtype, options.quantization == "stored")
        self.decoder = Decoder(self.config, numerics)
        window = self.config.sliding_window
        self.cache_layers = nn.ModuleList(
            CacheLayer(cache, window, vllm_config) for cache in self.decoder.all_caches()
        )
        self.probe: Probe | None = None

    @staticmethod
    def get_model_state_cls() -> type[ModelState]:
        from vllm_deepinfer.models.deepseek_v41.model_state import V41ModelState

        return V41ModelState

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.decoder.embed(input_ids)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Fill the decoder from a checkpoint's tensors and make it ready to run."""
        loaded = load_weights(self.decoder, weights, self.config, "target")
        set_engram_constants(self.decoder, load_engram_constants(self.config, self.model_folder))
        keep_working_copies(self.decoder, self.weight_cache_gib)
        return {f"decoder.{name}" for name in loaded}

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: Tensor | None = None,
        ngram_token_ids: Tensor | None = None,
    ) -> Tensor:
        """Final hidden states ``[T, D]``; rows that pad the batch are zero."""
        metadata = get_forward_context().attn_metadata
        hidden = torch.zeros(
            len(positions), self.config.hidden_size, dtype=self.decoder.numerics.dtype
        ).to(positions.device)
        if not metadata or ngram_token_ids is None:
            return hidden  # a dry run before there are caches
        step = self._step(metadata, positions, ngram_token_ids)
        run = self.decoder.forward_token_by_token if self.batch_invariant else self.decoder
        hidden[: step.num_tokens] = run(input_ids[: step.num_tokens], step)
        return hidden

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Float32 logits ``[n, V]``."""
        if self.batch_invariant:
            return self.decoder.logits_row_by_row(hidden_states)
        return self.decoder.logits(hidden_states)

    def _step(
        self, metadata: dict[str, CacheMetadata], positions: Tensor, ngram_token_ids: Tensor
    ) -> Step:
        common = next(iter(metadata.values())).common
        starts = common.query_start_loc_cpu.tolist()
        return Step(
            positions=positions[: starts[-1]].long(),
            query_starts=starts,
            context_tokens=common.seq_lens[: len(starts) - 1].tolist(),
            ngram_token_ids=ngram_token_ids,
            paging={name: entry.paging(starts[-1]) for name, entry in metadata.items()},
            probe=self.probe,
        )


def tokenizer_folder(model: str, revision: str | None) -> Path:
    """Folder of the checkpoint's own ``tokenizer.json``, downloaded if need be."""
    from transformers.utils import cached_file

    path = cached_file(model, TOKENIZER_NAME, revision=revision)
    if path is None:
        raise ConfigError(
            f"model {model!r} has no {TOKENIZER_NAME}; engram layers hash token texts and need it."
        )
    return Path(path).parent

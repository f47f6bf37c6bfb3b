"""DSpark for vLLM: the draft stages behind the hooks of vLLM's DSpark speculator.

The speculator lends the target's embedding and output head, feeds the target's taps, and samples.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from vllm.forward_context import get_forward_context

from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.distributed.exchange import expert_exchange, rank_rows
from vllm_deepinfer.distributed.joining import is_joining
from vllm_deepinfer.drafting.calibration import Calibration, load_calibration
from vllm_deepinfer.drafting.checkpoint_identity import checkpoint_identity
from vllm_deepinfer.models.deepseek_v41.config import ConfigError, V41Config
from vllm_deepinfer.models.deepseek_v41.draft import Draft
from vllm_deepinfer.models.deepseek_v41.kv_cache import CacheLayer, is_captured, step_of, waits_of
from vllm_deepinfer.models.deepseek_v41.prepare import tokenizer_folder
from vllm_deepinfer.models.deepseek_v41.weights import load_weights
from vllm_deepinfer.ops.numerics import Numerics

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class DSparkV41DraftModel(nn.Module):
    """Draft stages ``mtp.*`` of the target's own checkpoint."""

    # Read by the speculator: share the target's embedding and head, and its vocabulary.
    has_own_embed_tokens = False
    has_own_lm_head = False
    draft_id_to_target_id = None

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        speculative = vllm_config.speculative_config
        draft_config = speculative.draft_model_config
        options = DeepInferConfig.from_vllm(vllm_config)
        self.config = V41Config.from_hf(draft_config.hf_config)
        self.num_drafts = speculative.num_speculative_tokens
        check_draft_length(self.num_drafts, self.config)
        check_same_checkpoint(vllm_config.model_config, draft_config)
        self.calibration = read_calibration(options, draft_config, self.num_drafts)
        self.newest_confidence_logits: Tensor | None = None
        most_drafts = vllm_config.scheduler_config.max_num_seqs * self.num_drafts
        # Where a recorded block leaves its logits: at one address, whatever its size.
        self.confidence_logits = torch.zeros(most_drafts, dtype=torch.float32)
        numerics = Numerics(draft_config.dtype, options.quantization == "stored")
        self.exchange = expert_exchange(vllm_config, "draft")
        self.model = Draft(self.config, numerics, self.exchange)
        window = self.config.sliding_window
        self.cache_layers = nn.ModuleList(
            CacheLayer(cache, window, vllm_config) for cache in self.model.all_caches()
        )

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.model.embed_tokens(input_ids)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Fill the stages from the checkpoint's ``mtp.*`` tensors."""
        loaded = load_weights(self.model, weights, self.config, "draft", self.exchange.held)
        return {f"model.{name}" for name in loaded}

    # -- context, written while the target's step is at hand ---------------------------------------

    def combine_hidden_states(self, taps: Tensor) -> Tensor:
        """Context features ``[T, D]`` of concatenated taps ``[T, taps * D]``."""
        return self.model.context(taps)

    def get_draft_kv_cache_layer_names(self) -> list[str]:
        return [cache.name for cache in self.model.all_caches()]

    def precompute_and_store_context_kv(
        self,
        context: Tensor,
        positions: Tensor,
        slots: list[Tensor] | None = None,
    ) -> None:
        """Store every stage's window rows; without ``slots`` (a dry run) nothing is stored."""
        if slots is not None:
            self.model.store_context(context, positions, slots)

    # -- the block --------------------------------------------------------------------------------

    def forward(
        self, input_ids: Tensor, positions: Tensor, inputs_embeds: Tensor | None = None
    ) -> Tensor:
        """Head inputs ``[T, D]`` of the blocks; rows that pad or only join are zero."""
        hidden = positions.new_zeros(
            len(positions), self.config.hidden_size, dtype=self.model.numerics.dtype
        )
        metadata = get_forward_context().attn_metadata
        if not metadata:
            return hidden  # a dry run before there are caches
        if is_joining():
            self.model.join(self.exchange.row_counts(0))
            return hidden
        names = self.get_draft_kv_cache_layer_names()
        step = step_of(metadata, names, positions, is_draft_block=True)
        step.rank_rows = rank_rows(self.exchange, step, is_captured(metadata, names))
        embedded = self.model.embed_tokens(input_ids[: step.num_tokens])
        with waits_of(step):
            hidden[: step.num_tokens] = self.model(embedded, step)
        return hidden

    # -- sequential heads -------------------------------------------------------------------------

    def compute_logits(self, head_input: Tensor) -> Tensor:
        """Base logits, float32 ``[n, V]``."""
        return self.lm_head(self.model.normalised(head_input))

    def compute_draft_logits(self, head_input: Tensor) -> Tensor:
        return self.compute_logits(head_input)

    def map_draft_to_target(self, draft_ids: Tensor) -> Tensor:
        return draft_ids

    def markov_embed(self, token_ids: Tensor) -> Tensor:
        return self.model.markov_embed(token_ids)

    def markov_bias(self, markov: Tensor) -> Tensor:
        return self.model.markov_bias(markov)

    def compute_confidence(self, head_input: Tensor, markov: Tensor) -> Tensor:
        """Calibrated chance ``[R * K]`` of each draft to survive if those before it did.

        The raw logits stay in ``newest_confidence_logits`` until the next block.
        """
        logits = self.confidence_logits[: len(head_input)]
        logits.copy_(self.model.confidence_logits(head_input, markov))
        self.newest_confidence_logits = logits
        blocks = logits.view(-1, self.num_drafts)
        return self.calibration.apply(blocks).flatten()


def check_same_checkpoint(target_config: Any, draft_config: Any) -> None:
    """Refuse draft stages of another checkpoint: they draft, and nearly nothing survives.

    Raises:
        ConfigError: the draft stages, or the target layers they continue, differ.
    """
    folders = [tokenizer_folder(c.model, c.revision) for c in (target_config, draft_config)]
    if folders[0].resolve() == folders[1].resolve():
        return
    target, draft = (checkpoint_identity(folder) for folder in folders)
    if target != draft:
        raise ConfigError(
            f"the drafter in {folders[1]} belongs to another checkpoint than {folders[0]} "
            f"({draft[:12]} is not {target[:12]}); leave 'model' out of --speculative-config to "
            "use the checkpoint's own draft stages."
        )


def read_calibration(options: DeepInferConfig, draft_config: Any, num_drafts: int) -> Calibration:
    """The calibration the options name, checked against the checkpoint; else temperatures of 1."""
    if not options.confidence_calibration:
        return Calibration((1.0,) * num_drafts)
    folder = tokenizer_folder(draft_config.model, draft_config.revision)
    identity = checkpoint_identity(folder)
    return load_calibration(options.confidence_calibration, identity, num_drafts)


def check_draft_length(num_drafts: int, config: V41Config) -> None:
    """Refuse more drafts than the block the stages were trained on."""
    if not 1 <= num_drafts <= config.dspark_block_size:
        raise ConfigError(
            f"num_speculative_tokens is {num_drafts}; this checkpoint drafts blocks of "
            f"{config.dspark_block_size}, so 1 to {config.dspark_block_size} are allowed."
        )

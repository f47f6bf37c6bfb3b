# ruff: noqa: N803 -- parameters carry the names of the kernels' arguments
"""Torch forms of the kernels around drafting: the draft model's inputs
(`vllm.v1.worker.gpu.spec_decode.dflash.speculator`, which DSpark shares) and the tokens that go
into verification (`vllm.v1.worker.gpu.spec_decode.rejection_sampler`).

The draft model reads, per row of the batch, a *context* (the target's tokens of this step, rejected
ones without a cache slot) and a *query block* of `num_query_per_req` tokens behind the last valid
one: the token sampled last, then placeholders.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from vllm_deepinfer.runner_kernels.extents import ragged_rows, store
from vllm_deepinfer.runner_kernels.forms import later_form
from vllm_deepinfer.runner_kernels.pointers import flat

SPEC_DECODE = "vllm.v1.worker.gpu.spec_decode"


class _Blocks(NamedTuple):
    """One cache group's block table and how its slots are numbered."""

    table: torch.Tensor
    stride: int
    block_size: int
    rank: int
    num_ranks: int
    interleave: int
    pad_slot: int

    def slots(
        self, row: torch.Tensor, position: torch.Tensor, valid: torch.Tensor | None
    ) -> torch.Tensor:
        """Cache slot of each position (int64 [n]) of each row (int64 [n]), or the padding slot:
        where it is not valid, in the null block, or held by another context-parallel rank."""
        virtual_size = self.block_size * self.num_ranks
        block = position // virtual_size
        offset = position - block * virtual_size
        place = row * self.stride + block.clamp(max=self.stride - 1)
        number = flat(self.table).index_select(0, place).long()
        # Block 0 is the null block, also where a window has moved on: never written.
        held = number != 0
        if valid is not None:
            held &= valid
        if self.num_ranks != 1:
            held &= offset // self.interleave % self.num_ranks == self.rank
            rounds = offset // (self.interleave * self.num_ranks)
            offset = rounds * self.interleave + offset % self.interleave
        return torch.where(held, number.mul_(self.block_size).add_(offset), self.pad_slot)


def prepare_dflash_inputs(
    out_input_ids_ptr: torch.Tensor,
    out_query_positions_ptr: torch.Tensor,
    out_query_start_loc_ptr: torch.Tensor,
    out_seq_lens_ptr: torch.Tensor,
    out_query_slot_mapping_ptr: torch.Tensor,
    out_context_positions_ptr: torch.Tensor,
    out_context_slot_mapping_ptr: torch.Tensor,
    out_sample_indices_ptr: torch.Tensor,
    out_sample_pos_ptr: torch.Tensor,
    out_sample_idx_mapping_ptr: torch.Tensor,
    out_temperature_ptr: torch.Tensor,
    out_seeds_ptr: torch.Tensor,
    target_positions_ptr: torch.Tensor,
    target_query_start_loc_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    last_sampled_ptr: torch.Tensor,
    next_prefill_tokens_ptr: torch.Tensor,
    num_sampled_ptr: torch.Tensor,
    num_rejected_ptr: torch.Tensor,
    temperature_ptr: torch.Tensor,
    seeds_ptr: torch.Tensor,
    block_table_ptr: torch.Tensor,
    block_table_stride: int,
    parallel_drafting_token_id: int,
    block_size: int,
    num_query_per_req: int,
    num_speculative_steps: int,
    max_num_reqs: int,
    max_num_tokens: int,
    max_model_len: int,
    cp_rank: int,
    SAMPLE_FROM_ANCHOR: bool,
    PAD_SLOT_ID: int,
    CP_SIZE: int,
    CP_INTERLEAVE: int,
    BLOCK_SIZE: int,
    *,
    grid: tuple[int, ...],
) -> None:
    """Lay out the draft model's context and query blocks and say which rows to sample from.

    Of the launch grid the first extent is num_reqs. Inputs: target_positions int64 [num_tokens],
    target_query_start_loc int32 [> num_reqs], idx_mapping int64 [num_reqs], num_sampled and
    num_rejected int32 [num_reqs]; last_sampled int64, next_prefill_tokens int32, temperature
    float32, seeds int64, all per slot; block_table int32, a row per batch row. Outputs: input_ids
    int32, query_positions and query_slot_mapping int64 [max_num_tokens]; context_positions and
    context_slot_mapping int64 [max_num_tokens]; query_start_loc int32 [max_num_reqs + 1], seq_lens
    int32 [max_num_reqs]; sample_* int64 [max_num_reqs * num_speculative_steps]; temperature, seeds
    per slot.

    With SAMPLE_FROM_ANCHOR (DSpark) every query row predicts the token behind it; without, every
    query row but the first predicts its own. Padding: no slot, sample row 0 of request -1.
    """
    num_reqs = grid[0]
    blocks = _Blocks(
        block_table_ptr,
        block_table_stride,
        block_size,
        cp_rank,
        CP_SIZE,
        CP_INTERLEAVE,
        PAD_SLOT_ID,
    )
    valid_end = target_query_start_loc_ptr[1 : num_reqs + 1] - num_rejected_ptr[:num_reqs]
    _lay_out_context(
        out_context_positions_ptr,
        out_context_slot_mapping_ptr,
        target_positions_ptr,
        target_query_start_loc_ptr,
        valid_end,
        blocks,
    )

    slot = idx_mapping_ptr[:num_reqs]
    sampled = flat(last_sampled_ptr).index_select(0, slot).int()
    following = flat(next_prefill_tokens_ptr).index_select(0, slot).int()
    input_ids = out_input_ids_ptr[: num_reqs * num_query_per_req].view(num_reqs, num_query_per_req)
    input_ids.fill_(parallel_drafting_token_id)
    input_ids[:, 0] = torch.where(num_sampled_ptr[:num_reqs] > 0, sampled, following)

    last_place = (valid_end - 1).clamp_(min=0)
    first_position = target_positions_ptr.index_select(0, last_place) + 1
    row = torch.arange(num_reqs, device=slot.device)
    offset = torch.arange(num_query_per_req, device=slot.device)
    position = (first_position.unsqueeze(1) + offset).view(-1)
    num_queries = num_reqs * num_query_per_req
    torch.clamp(position, max=max_model_len - 1, out=out_query_positions_ptr[:num_queries])
    query_row = row.repeat_interleave(num_query_per_req)
    out_query_slot_mapping_ptr[:num_queries] = blocks.slots(query_row, position, None)
    out_query_slot_mapping_ptr[num_queries:max_num_tokens] = PAD_SLOT_ID

    starts = torch.arange(max_num_reqs + 1, device=slot.device).clamp_(max=num_reqs)
    out_query_start_loc_ptr[: max_num_reqs + 1] = starts.mul_(num_query_per_req)
    out_seq_lens_ptr[:num_reqs] = (first_position + num_query_per_req).clamp_(max=max_model_len)
    out_seq_lens_ptr[num_reqs:max_num_reqs] = 0
    out_temperature_ptr[slot] = temperature_ptr.index_select(0, slot)
    out_seeds_ptr[slot] = seeds_ptr.index_select(0, slot)

    num_samples = num_reqs * num_speculative_steps
    first = 0 if SAMPLE_FROM_ANCHOR else 1
    step = torch.arange(first, first + num_speculative_steps, device=slot.device)
    sample_row = (row.unsqueeze(1) * num_query_per_req + step).view(-1)
    padding = slice(num_samples, max_num_reqs * num_speculative_steps)
    predicted = position.index_select(0, sample_row) + (1 - first)
    request = slot.repeat_interleave(num_speculative_steps)
    for output, values, padding_value in (
        (out_sample_indices_ptr, sample_row, 0),
        (out_sample_pos_ptr, predicted, 0),
        (out_sample_idx_mapping_ptr, request, -1),
    ):
        output[:num_samples] = values
        output[padding] = padding_value


def _lay_out_context(
    out_positions: torch.Tensor,
    out_slots: torch.Tensor,
    positions: torch.Tensor,
    query_start_loc: torch.Tensor,
    valid_end: torch.Tensor,
    blocks: _Blocks,
) -> None:
    """Positions and slots of the target's tokens; rejected ones get position 0 and no slot."""
    bound = min(positions.shape[0], out_positions.shape[0])
    rows = ragged_rows(query_start_loc, valid_end.shape[0], bound)
    valid = rows.item < valid_end.index_select(0, rows.row)
    position = positions[: rows.size].masked_fill(~valid, 0)
    store(out_positions[: rows.size], position, rows.present)
    store(out_slots[: rows.size], blocks.slots(rows.row, position, valid), rows.present)


@later_form(prepare_dflash_inputs, inserted={"out_query_positions_ptr": ("out_is_padding_ptr",)})
def prepare_dflash_inputs_and_padding(
    *,
    out_is_padding_ptr: torch.Tensor,
    out_input_ids_ptr: torch.Tensor,
    out_query_positions_ptr: torch.Tensor,
    num_query_per_req: int,
    max_num_tokens: int,
    grid: tuple[int, ...],
    **arguments: Any,
) -> None:
    """As `prepare_dflash_inputs`; also mark what is behind the queries as padding (bool
    [max_num_tokens]) with token and position 0."""
    prepare_dflash_inputs(
        out_input_ids_ptr=out_input_ids_ptr,
        out_query_positions_ptr=out_query_positions_ptr,
        num_query_per_req=num_query_per_req,
        max_num_tokens=max_num_tokens,
        grid=grid,
        **arguments,
    )
    num_queries = grid[0] * num_query_per_req
    out_is_padding_ptr[:num_queries] = False
    out_is_padding_ptr[num_queries:max_num_tokens] = True
    out_input_ids_ptr[num_queries:max_num_tokens] = 0
    out_query_positions_ptr[num_queries:max_num_tokens] = 0


def gather_draft_sampled(
    draft_sampled_ptr: torch.Tensor,
    pos_ptr: torch.Tensor,
    input_ids_ptr: torch.Tensor,
    positions_ptr: torch.Tensor,
    logits_indices_ptr: torch.Tensor,
    expanded_idx_mapping_ptr: torch.Tensor,
    expanded_local_pos_ptr: torch.Tensor,
    prefill_len_ptr: torch.Tensor,
    num_logits: int,
    BLOCK_SIZE: int,
) -> None:
    """Input token (int32 [num_logits]) and position (int64 [num_logits]) of each row of logits.

    logits_indices int64, expanded_idx_mapping int64, expanded_local_pos int32, all [num_logits];
    prefill_len int32 [max_num_reqs]. Rows in the place of a draft whose request had nothing sampled
    past its prefill hold no draft: their token becomes -1.
    """
    place = logits_indices_ptr[:num_logits]
    positions = positions_ptr.index_select(0, place)
    local_pos = expanded_local_pos_ptr[:num_logits]
    prefill_len = prefill_len_ptr.index_select(0, expanded_idx_mapping_ptr[:num_logits])
    is_placeholder = (local_pos > 0) & (positions - local_pos < prefill_len)
    tokens = input_ids_ptr.index_select(0, place).masked_fill_(is_placeholder, -1)
    draft_sampled_ptr[:num_logits] = tokens
    pos_ptr[:num_logits] = positions


KERNELS = {
    f"{SPEC_DECODE}.dflash.speculator._prepare_dflash_inputs_kernel": prepare_dflash_inputs,
    f"{SPEC_DECODE}.rejection_sampler._gather_draft_sampled_kernel": gather_draft_sampled,
}
KERNELS_SINCE = {
    (0, 33): {
        f"{SPEC_DECODE}.dflash.speculator._prepare_dflash_inputs_kernel": (
            prepare_dflash_inputs_and_padding
        ),
    }
}

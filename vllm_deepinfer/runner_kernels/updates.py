# ruff: noqa: N803 -- parameters carry the names of the kernels' arguments
"""Torch forms of the kernels that change the requests' state: after sampling
(`vllm.v1.worker.gpu.input_batch`) and from staged writes (`vllm.v1.worker.gpu.buffer_utils`).

Where several rows may point at one place only because they are masked, state is changed by adding
a difference (zero for a masked row) instead of storing a value: additions to one place commute.
"""

from __future__ import annotations

from typing import Any

import torch

from vllm_deepinfer.runner_kernels.extents import replace_inactive
from vllm_deepinfer.runner_kernels.forms import later_form
from vllm_deepinfer.runner_kernels.pointers import flat, memory_of

MODULE = "vllm.v1.worker.gpu.input_batch"


def _set_through_difference(
    state: torch.Tensor, place: torch.Tensor, values: torch.Tensor, where: torch.Tensor
) -> None:
    """state[place] = values where `where`; masked entries may name any valid place."""
    difference = values.to(state.dtype) - state.index_select(0, place)
    state.index_add_(0, place, difference.masked_fill_(~where, 0))


def post_update(
    idx_mapping_ptr: torch.Tensor,
    num_computed_tokens_ptr: torch.Tensor,
    last_sampled_tokens_ptr: torch.Tensor,
    output_bin_counts_ptr: torch.Tensor | None,
    output_bin_counts_stride: int,
    sampled_tokens_ptr: torch.Tensor,
    sampled_tokens_stride: int,
    num_sampled_ptr: torch.Tensor,
    num_rejected_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor | None,
    all_token_ids_ptr: torch.Tensor,
    all_token_ids_stride: int,
    total_len_ptr: torch.Tensor,
) -> None:
    """Append each row's sampled tokens to its request and advance its counters.

    idx_mapping int [num_reqs], negative to skip a row; sampled_tokens int64 [num_reqs, >= 1], of
    which the first num_sampled (int32 [num_reqs]) count; num_rejected int32 [num_reqs];
    output_bin_counts int32 [max_num_reqs, vocab_size] or None; query_start_loc None means that no
    token was computed in this step. State: num_computed_tokens and total_len int32 [max_num_reqs],
    last_sampled_tokens int64 [max_num_reqs, 1], all_token_ids int32 [max_num_reqs, max_model_len].
    """
    num_reqs = idx_mapping_ptr.shape[0]
    if num_reqs == 0:
        return
    valid = idx_mapping_ptr >= 0
    slot = idx_mapping_ptr.clamp(min=0)
    num_sampled = num_sampled_ptr[:num_reqs].masked_fill(~valid, 0)
    samples = torch.as_strided(
        sampled_tokens_ptr,
        (num_reqs, sampled_tokens_ptr.shape[-1]),
        (sampled_tokens_stride, 1),
    )
    order = torch.arange(samples.shape[1], device=samples.device)
    taken = order < num_sampled.unsqueeze(1)

    last = samples.gather(1, (num_sampled - 1).clamp_(min=0).long().unsqueeze(1)).squeeze(1)
    _set_through_difference(flat(last_sampled_tokens_ptr), slot, last, num_sampled > 0)

    first_place = slot * all_token_ids_stride + total_len_ptr.index_select(0, slot)
    places = torch.where(taken, first_place.unsqueeze(1) + order, 0).view(-1)
    _set_through_difference(flat(all_token_ids_ptr), places, samples.reshape(-1), taken.view(-1))
    total_len_ptr.index_add_(0, slot, num_sampled.to(total_len_ptr.dtype))

    if output_bin_counts_ptr is not None:
        bins = slot.unsqueeze(1) * output_bin_counts_stride + samples
        counts = flat(output_bin_counts_ptr)
        counts.index_add_(0, torch.where(taken, bins, 0).view(-1), taken.view(-1).to(counts.dtype))

    advance = -num_rejected_ptr[:num_reqs]
    if query_start_loc_ptr is not None:
        advance += query_start_loc_ptr[1 : num_reqs + 1] - query_start_loc_ptr[:num_reqs]
    advance = advance.masked_fill_(~valid, 0).to(num_computed_tokens_ptr.dtype)
    num_computed_tokens_ptr.index_add_(0, slot, advance)


@later_form(
    post_update,
    inserted={"total_len_ptr": ("draft_tokens_ptr", "draft_tokens_out_ptr", "num_draft_tokens")},
)
def post_update_with_drafts(
    *,
    draft_tokens_ptr: torch.Tensor | None,
    draft_tokens_out_ptr: torch.Tensor | None,
    num_draft_tokens: int,
    idx_mapping_ptr: torch.Tensor,
    **arguments: Any,
) -> None:
    """As `post_update`; also keep the drafts of the next step: each row's draft_tokens (int64
    [num_reqs, num_draft_tokens] or None) go to its request's row of draft_tokens_out (int64
    [max_num_reqs, num_draft_tokens])."""
    post_update(idx_mapping_ptr=idx_mapping_ptr, **arguments)
    num_reqs = idx_mapping_ptr.shape[0]
    if draft_tokens_ptr is None or num_reqs == 0:
        return
    valid = idx_mapping_ptr >= 0
    rows = replace_inactive(valid)
    slot = idx_mapping_ptr.index_select(0, rows).clamp_(min=0)
    # Only where no row is valid is anything but a draft stored, and then what is there already.
    kept = draft_tokens_out_ptr.index_select(0, slot)
    drafts = torch.where(valid.any(), draft_tokens_ptr.index_select(0, rows), kept)
    draft_tokens_out_ptr[slot] = drafts


def apply_write(
    output_ptr: torch.Tensor,
    output_stride: int | torch.Tensor,
    write_indices_ptr: torch.Tensor,
    write_starts_ptr: torch.Tensor,
    write_contents_ptr: torch.Tensor,
    write_cu_lens_ptr: torch.Tensor,
    write_group_ids_ptr: torch.Tensor | None,
    BLOCK_SIZE: int,
    MULTI_GROUP: bool,
) -> None:
    """Write runs of values into rows: run i goes to row write_indices[i] from column
    write_starts[i] on.

    write_indices, write_starts, write_cu_lens int32 [num_writes]; write_contents holds the runs one
    behind the other, write_cu_lens[i] being the end of run i. Either `output` is the tensor and
    `output_stride` its row stride, or (MULTI_GROUP) `output` is a table of addresses of int32
    tensors, `output_stride` int64 [num_groups] their row strides and write_group_ids int32
    [num_writes] picks one. Runs must not overlap.
    """
    num_writes, num_values = write_indices_ptr.shape[0], write_contents_ptr.shape[0]
    if num_writes == 0 or num_values == 0:
        return
    cu_lens = write_cu_lens_ptr.long()
    lengths = torch.diff(cu_lens, prepend=cu_lens.new_zeros(1))
    row = write_indices_ptr.long()
    if MULTI_GROUP:
        memory = memory_of(output_ptr, torch.int32)
        group = write_group_ids_ptr.long()
        output, first = memory.window, memory.offsets.index_select(0, group)
        first = first + row * output_stride.index_select(0, group)
    else:
        output, first = flat(output_ptr), row * output_stride
    # Minus the run's start among the values, so that a value's own number completes its place.
    shift = first + write_starts_ptr - cu_lens + lengths
    places = torch.repeat_interleave(shift, lengths, output_size=num_values)
    places += torch.arange(num_values, device=places.device)
    output.index_copy_(0, places, write_contents_ptr.to(output.dtype))


KERNELS = {
    f"{MODULE}._post_update_kernel": post_update,
    "vllm.v1.worker.gpu.buffer_utils._apply_write_kernel": apply_write,
}
KERNELS_SINCE = {(0, 33): {f"{MODULE}._post_update_kernel": post_update_with_drafts}}

# ruff: noqa: N803 -- parameters carry the names of the kernels' arguments
"""Torch form of `vllm.v1.worker.gpu.model_states.prompt_embeds._apply_prompt_embeds_kernel`."""

from __future__ import annotations

import torch

from vllm_deepinfer.ops.runner.addresses import tensor_at


def apply_prompt_embeds(
    inputs_embeds_ptr: torch.Tensor,
    inputs_embeds_stride: int,
    embeds_ptrs_ptr: torch.Tensor,
    mask_ptrs_ptr: torch.Tensor,
    embeds_lens_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    num_computed_tokens_ptr: torch.Tensor,
    hidden_size: int,
    TOKEN_BLOCK: int,
    BLOCK_SIZE: int,
) -> None:
    """Lay user-given embeddings over the model's input, except where a prompt holds token ids.

    inputs_embeds [num_tokens, hidden_size]; embeds_ptrs uint64 [max_num_reqs], addresses of
    [embeds_lens, hidden_size] of the same dtype; mask_ptrs uint64 [max_num_reqs], addresses of one
    byte per embedding, not 0 for a token id, or 0 for no mask; embeds_lens and num_computed_tokens
    int32 [max_num_reqs]; idx_mapping int64 [num_reqs]; query_start_loc int32 [>= num_reqs + 1].

    Loops over the requests of the batch that still have embeddings to place. Addresses change with
    the requests and are read each time: a synchronisation on an accelerator.
    """
    num_reqs = idx_mapping_ptr.shape[0]
    slots = idx_mapping_ptr.tolist()
    bounds = query_start_loc_ptr[: num_reqs + 1].tolist()
    lengths, computed = embeds_lens_ptr.tolist(), num_computed_tokens_ptr.tolist()
    addresses, masks = embeds_ptrs_ptr.tolist(), mask_ptrs_ptr.tolist()
    dtype, device = inputs_embeds_ptr.dtype, inputs_embeds_ptr.device
    for slot, start, end in zip(slots, bounds[:-1], bounds[1:], strict=True):
        length, first = lengths[slot], computed[slot]
        num_rows = min(end - start, length - first)
        if num_rows <= 0:
            continue
        embeds = tensor_at(addresses[slot], length * hidden_size, dtype, device)
        values = embeds.view(length, hidden_size)[first : first + num_rows]
        target = inputs_embeds_ptr[start : start + num_rows, :hidden_size]
        if masks[slot]:
            is_token = tensor_at(masks[slot], length, torch.uint8, device)
            is_token = is_token[first : first + num_rows].unsqueeze(1) != 0
            values = torch.where(is_token, target, values)
        target.copy_(values)


KERNELS = {
    "vllm.v1.worker.gpu.model_states.prompt_embeds._apply_prompt_embeds_kernel": (
        apply_prompt_embeds
    ),
}

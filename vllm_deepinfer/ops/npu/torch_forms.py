"""Operations in plain torch as an NPU wants them: no waiting, no large temporaries.

The reference asks the host how many rows are kept, or which experts were chosen: correct anywhere,
but nothing that asks can be captured in a graph, and each question empties the device's queue. The
forms here compute the same with shapes known beforehand, and give the reference's results. They are
registered for npu tensors; on a CPU the reference's way is faster.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_deepinfer.ops import (
    attention,
    caches,
    experts,
    indexer,
    linear,
    reference,
    reference_linear,
)
from vllm_deepinfer.ops.formats import (
    decode_ue8m0,
    dequantise_fp4_rows,
    expand_blocks,
    fake_quantise_fp8,
)
from vllm_deepinfer.ops.records import PlainRecord, Record, record_of

SCORED_KEYS = 1 << 20
"""Index keys decoded in memory together."""
TOKENS_PER_REQUEST = 8
"""Up to as many tokens a request, on average, keys are decoded per token: decoding and drafts."""
ROWS_AT_ONCE = 1 << 13
"""Rows of a bfloat16 weight that are in memory as float32 together."""


# -- rows of the caches ---------------------------------------------------------------------------


def store_records(cache: Tensor, rows: Tensor, records: Tensor) -> None:
    """Write uint8 ``records`` ``[n, bytes]`` to cache rows ``[n]``; not where they are negative.

    A row that is not stored repeats the first one that is, or what row 0 holds where none is, so
    that every write is of the same number of rows and no two disagree.
    """
    if not rows.numel():
        return
    per_block = cache.shape[1]
    stored = rows >= 0
    first = stored.int().argmax(0, keepdim=True)  # one dimension: none would be asked for its value
    source = torch.where(stored, torch.arange(len(rows), device=rows.device), first)
    records = torch.where(stored[first], records[source], cache[0, 0])
    slots = rows[source].clamp_min(0)
    cache[slots // per_block, slots % per_block] = records


def store_rotated(cache, rows, x, cos, sin, kind, dtype) -> None:
    caches._check_store(cache, rows, x, cos, sin, kind, dtype)
    rotated = reference.rotate_pairs(x, cos, sin, 2 * cos.shape[1]).to(dtype)
    store_records(cache, rows, record_of(kind, x.shape[1]).encode(rotated))


def pool_pairs(values, scores, ring, closing, partner_rows, kept, kept_rows) -> Tensor:
    caches._check_pool(values, scores, ring, closing, partner_rows, kept, kept_rows)
    record = PlainRecord(2 * values.shape[1], torch.float32)
    state = torch.cat([values, scores], -1)
    earlier = reference.load_rows(ring, partner_rows, record)
    before = state[(closing - 1).clamp_min(0)]
    partner = torch.where((partner_rows >= 0).unsqueeze(1), earlier, before)
    store_records(ring, kept_rows, record.encode(state[kept]))
    pair_values, pair_scores = torch.stack([partner, state[closing]], 1).chunk(2, -1)
    return (torch.softmax(pair_scores, 1) * pair_values).sum(1)


# -- attention ------------------------------------------------------------------------------------


def sink_attention(*arguments) -> Tensor:
    return attention._reference(*arguments, repeated=False)


# -- indexer --------------------------------------------------------------------------------------


def index_scores(
    query, weights, cache, kind, block_table, requests, num_visible, num_keys, rounded
) -> Tensor:
    indexer._check_scores(query, weights, cache, kind, block_table, requests, num_visible, num_keys)
    record = record_of(kind, query.shape[-1])
    query = record.decode(record.encode(query))
    numbers = torch.arange(num_keys, device=query.device)
    visible = numbers < num_visible.unsqueeze(1)
    per_block = cache.shape[1]
    located = block_table.long()[:, numbers // per_block] * per_block + numbers % per_block
    if len(query) <= TOKENS_PER_REQUEST * len(block_table):
        return _scores_by_token(query, weights, cache, record, located, requests, visible, rounded)
    scores = query.new_full((len(query), num_keys), indexer.NEGATIVE_INFINITY)
    for request in range(len(block_table)):
        keys = reference.load_rows(cache, located[request], record)
        own = visible & (requests == request).unsqueeze(1)
        found = reference.index_scores(query, weights, keys, own, rounded)
        scores = torch.where(own, found, scores)
    return scores


def _scores_by_token(
    query: Tensor,
    weights: Tensor,
    cache: Tensor,
    record: Record,
    located: Tensor,
    requests: Tensor,
    visible: Tensor,
    rounded: bool,
) -> Tensor:
    """Scores against the keys of each token's request, rows ``located`` ``[R, n]``, a few tokens
    at once."""
    if not visible.numel():
        return query.new_empty(visible.shape)
    at_once = max(SCORED_KEYS // visible.shape[1], 1)
    parts = []
    for start in range(0, len(query), at_once):
        part = slice(start, start + at_once)
        keys = reference.load_rows(cache, located[requests[part]], record)
        dots = torch.bmm(query[part], keys.transpose(1, 2))
        parts.append(reference.weighted_dots(dots, weights[part], visible[part], rounded))
    return torch.cat(parts)


def candidate_blocks(scores, num_visible, block_rows, count) -> Tensor:
    tokens, blocks = indexer._check_blocks(scores, num_visible, block_rows, count)
    spare = blocks * block_rows - scores.shape[1]
    padded = torch.nn.functional.pad(scores, (0, spare), value=indexer.NEGATIVE_INFINITY)
    best = padded.view(tokens, blocks, block_rows).amax(-1)
    newest = ((num_visible - 1) // block_rows).unsqueeze(1)
    numbers = torch.arange(blocks, device=scores.device)
    holds_newest = (numbers == newest) & (num_visible > 0).unsqueeze(1)
    return reference.select_highest(best.masked_fill(holds_newest, float("inf")), count)


def select_rows(scores, count, kept_blocks=None, block_rows=0) -> Tensor:
    indexer._check_select(scores, count, kept_blocks, block_rows)
    rows = scores.shape[1]
    if kept_blocks is not None:
        kept = kept_blocks.repeat_interleave(block_rows, 1)[:, :rows]
        scores = scores.masked_fill(~kept, indexer.NEGATIVE_INFINITY)
    selected = reference.select_highest(scores, count)
    # What is not selected goes to one column too many, which is cut off.
    place = torch.where(selected, selected.cumsum(1) - 1, count)
    numbers = torch.arange(rows, device=scores.device).expand(len(scores), rows)
    out = numbers.new_full((len(scores), count + 1), -1)
    return out.scatter_(1, place, numbers)[:, :count].contiguous()


# -- products -------------------------------------------------------------------------------------


def fp8_linear(x, scales, weight, weight_scale, dtype, groups=1) -> Tensor:
    """bfloat16 rows meet the weight's values in bfloat16, which holds them exactly; sums are
    float32 inside the product. Quantised and float32 rows as the reference."""
    if scales is not None or x.dtype != torch.bfloat16 or dtype != torch.bfloat16:
        return linear._fp8_reference(x, scales, weight, weight_scale, dtype, groups)
    linear._check_fp8(x, scales, weight, weight_scale, dtype, groups)
    factor = decode_ue8m0(weight_scale).to(dtype)
    values = (weight.to(dtype) * expand_blocks(factor, weight)).unflatten(0, (groups, -1))
    grouped = x.unflatten(-1, (groups, -1)).transpose(0, 1)
    return torch.bmm(grouped, values.transpose(1, 2)).transpose(0, 1).flatten(1)


def plain_linear(x, weight) -> Tensor:
    """The reference, with some rows of the weight at once in float32: the head has 129280."""
    linear._check_plain(x, weight)
    x = x.to(torch.float32)
    parts = [
        torch.nn.functional.linear(x, part.to(torch.float32)) for part in weight.split(ROWS_AT_ONCE)
    ]
    return torch.cat(parts, -1)


# -- experts --------------------------------------------------------------------------------------


def fp4_experts(
    x, scales, chosen, weights, w1, w1_scale, w3, w3_scale, w2, w2_scale, first_expert, limit, dtype
) -> Tensor:
    """Every expert held computes every token: for small models and where torch_npu is not."""
    out = experts._fake(
        x, scales, chosen, weights, w1, w1_scale, w3, w3_scale, w2, w2_scale, first_expert, limit,
        dtype,
    )  # fmt: skip
    out.zero_()
    rows = reference_linear.row_values(x, scales)
    for held in range(len(w1)):
        slots = chosen == first_expert + held
        weight = torch.where(slots, weights, 0.0).sum(1, keepdim=True)
        gate, up = (
            torch.nn.functional.linear(rows, dequantise_fp4_rows(w[held], scale[held])).to(dtype)
            for w, scale in ((w1, w1_scale), (w3, w3_scale))
        )
        inner = (reference.clamped_swiglu(gate, up, limit) * weight).to(dtype)
        inner = inner.to(torch.float32) if scales is None else fake_quantise_fp8(inner)
        down = torch.nn.functional.linear(inner, dequantise_fp4_rows(w2[held], w2_scale[held]))
        out = torch.where(slots.unsqueeze(-1), down.to(dtype).unsqueeze(1), out)
    return out


TORCH_FORMS = {
    form.__name__: form
    for form in (
        candidate_blocks,
        fp4_experts,
        fp8_linear,
        index_scores,
        plain_linear,
        pool_pairs,
        select_rows,
        sink_attention,
        store_rotated,
    )
}
"""By operation."""

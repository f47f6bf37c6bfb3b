"""Torch reference of the model's operations: what every other implementation must reproduce.

Shapes: T tokens, H heads, K keys, D hidden size, S residual streams (4).
Source: V4.1 specification, sections 2.2 to 2.10.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from vllm_deepinfer.ops.records import Record

NEGATIVE_INFINITY = float("-inf")


# -- normalisation and rotation -------------------------------------------------------------------


def mean_square(x: Tensor) -> Tensor:
    """Mean of squares over the last dimension, float32 ``[..., 1]``."""
    x = x.to(torch.float32)
    return (x * x).mean(-1, keepdim=True)


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """``weight * x / sqrt(mean(x**2) + eps)`` in float32, rounded to ``dtype`` (section 2.3)."""
    x = x.to(torch.float32)
    return (weight.to(torch.float32) * (x * torch.rsqrt(mean_square(x) + eps))).to(dtype)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor, rope_dim: int) -> Tensor:
    """Rotate interleaved pairs of the last ``rope_dim`` columns, float32 (section 2.5).

    ``x`` is ``[T, ..., n]``; ``cos`` and ``sin`` are ``[T, rope_dim / 2]``. The inverse rotation is
    the same with ``-sin``.
    """
    x = x.to(torch.float32)
    straight, turned = x.split([x.shape[-1] - rope_dim, rope_dim], -1)
    even, odd = turned.unflatten(-1, (-1, 2)).unbind(-1)
    shape = (cos.shape[0],) + (1,) * (x.dim() - 2) + (cos.shape[1],)
    cos, sin = cos.view(shape), sin.view(shape)
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
    return torch.cat([straight, turned], -1)


def rope_angles(
    positions: Tensor, frequencies: Tensor, tokens_per_row: int = 1
) -> tuple[Tensor, Tensor]:
    """Cosines and sines, float32 ``[T, pairs]``, at int64 positions ``[T]``, or at the first
    position of each one's row of ``tokens_per_row`` tokens."""
    first = (positions // tokens_per_row * tokens_per_row).to(torch.float32)
    angles = (first.unsqueeze(1) * frequencies).to(torch.float64)
    return angles.cos().to(torch.float32), angles.sin().to(torch.float32)


# -- hyper-connections ----------------------------------------------------------------------------


def stream_mixes(
    streams: Tensor,
    projection: Tensor,
    scale: Tensor,
    base: Tensor,
    rms_eps: float,
    hc_eps: float,
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Mixing coefficients of ``[T, S, D]`` streams (section 2.2), all float32.

    Returns:
        ``pre`` ``[T, S]``, ``post`` ``[T, S]`` and the doubly normalised ``[T, S, S]`` combination.
    """
    count = streams.shape[1]
    flat = streams.flatten(1).to(torch.float32)
    mixes = torch.nn.functional.linear(flat, projection) * torch.rsqrt(mean_square(flat) + rms_eps)
    pre, post, comb = mixes.split([count, count, count * count], -1)
    pre_base, post_base, comb_base = base.split([count, count, count * count])
    pre = torch.sigmoid(pre * scale[0] + pre_base) + hc_eps
    post = 2.0 * torch.sigmoid(post * scale[1] + post_base)
    comb = torch.softmax((comb * scale[2] + comb_base).unflatten(-1, (count, count)), -1)
    return pre, post, sinkhorn(comb.add_(hc_eps), hc_eps, iterations)


def sinkhorn(comb: Tensor, eps: float, iterations: int) -> Tensor:
    """Alternate column and row normalisation of ``[T, S, S]``, columns first and last."""
    # As a tensor: adding a Python number converts it anew each time, twice the cost of the sum.
    # Filled there: copying it from the host would wait for the device.
    small = torch.full((), eps, dtype=comb.dtype, device=comb.device)
    # Tokens last: sums over four elements then run along them, ten times faster for long prompts.
    comb = comb.permute(1, 2, 0).contiguous()
    comb /= comb.sum(0, keepdim=True).add_(small)
    for _ in range(iterations - 1):
        comb /= comb.sum(1, keepdim=True).add_(small)
        comb /= comb.sum(0, keepdim=True).add_(small)
    return comb.permute(2, 0, 1)


def mix_streams(streams: Tensor, pre: Tensor, dtype: torch.dtype) -> Tensor:
    """Collapse ``[T, S, D]`` to ``[T, D]`` with weights ``[T, S]``, rounded to ``dtype``."""
    return (pre.unsqueeze(-1) * streams.to(torch.float32)).sum(1).to(dtype)


def expand_streams(
    out: Tensor, streams: Tensor, post: Tensor, comb: Tensor, dtype: torch.dtype
) -> Tensor:
    """Stream j is ``post_j * out + sum_i comb[i, j] * streams_i``, rounded to ``dtype``."""
    mixed = torch.bmm(comb.transpose(1, 2), streams.to(torch.float32))
    return (mixed + post.unsqueeze(-1) * out.to(torch.float32).unsqueeze(1)).to(dtype)


# -- attention ------------------------------------------------------------------------------------


def row_view(cache: Tensor) -> tuple[Tensor, int, int]:
    """A cache as overlapping rows, so that any of its rows can be selected by one index.

    ``cache`` is ``[blocks, rows_per_block, bytes]``, contiguous within a block but possibly strided
    between blocks. Returns a two-dimensional view whose row ``block * block_step + offset *
    row_step`` is that cache row, with both steps. Gathering so is 20 times faster than indexing
    blocks and offsets.
    """
    blocks, rows, width = cache.shape
    block_stride, row_stride, _ = cache.stride()
    unit = math.gcd(block_stride, row_stride)
    block_step, row_step = block_stride // unit, row_stride // unit
    count = (blocks - 1) * block_step + (rows - 1) * row_step + 1
    return cache.as_strided((count, width), (unit, 1)), block_step, row_step


def load_rows(cache: Tensor, rows: Tensor, record: Record, repeated: bool = False) -> Tensor:
    """Decode cache rows ``[...]`` (negative: any row, to be masked) to float32 ``[..., width]``.

    ``cache`` is uint8 ``[blocks, rows_per_block, bytes]``; ``rows`` counts ``block *
    rows_per_block + offset``. With ``repeated``, each distinct row is decoded once.
    """
    flat, inverse = rows.clamp_min(0).flatten(), None
    if repeated:
        flat, inverse = torch.unique(flat, return_inverse=True)
    view, block_step, row_step = row_view(cache)
    per_block = cache.shape[1]
    index = flat // per_block * block_step + flat % per_block * row_step
    values = record.decode(torch.index_select(view, 0, index))
    if inverse is not None:
        values = torch.index_select(values, 0, inverse)
    return values.view(*rows.shape, record.width)


def store_rows(cache: Tensor, slots: Tensor, values: Tensor, record: Record) -> None:
    """Encode ``values`` ``[n, width]`` into the cache rows ``slots`` ``[n]``, all non-negative."""
    per_block = cache.shape[1]
    cache[slots // per_block, slots % per_block] = record.encode(values)


@dataclass(frozen=True)
class Keys:
    """Keys of one kind: float32 ``[T, K, n]``, and which of them each token sees, ``[T, K]``."""

    values: Tensor
    visible: Tensor


def sink_attention(query: Tensor, keys: list[Keys], sink: Tensor, scale: float) -> Tensor:
    """Attention of ``[T, H, n]`` queries over each token's own keys, float32 ``[T, H, n]``.

    Keys are values too. ``sink`` ``[H]`` joins the denominator only; the maximum is taken over
    visible keys (section 2.6). At least one key is visible to every token.
    """
    query = query.to(torch.float32)
    scores = torch.cat([torch.bmm(query, part.values.transpose(1, 2)) for part in keys], -1)
    visible = torch.cat([part.visible for part in keys], -1)
    scores.mul_(scale).masked_fill_(~visible.unsqueeze(1), NEGATIVE_INFINITY)
    highest = scores.amax(-1, keepdim=True)
    weights = torch.exp_(scores.sub_(highest))
    denominator = weights.sum(-1, keepdim=True) + torch.exp(sink.view(1, -1, 1) - highest)
    shares = weights.split([part.visible.shape[1] for part in keys], -1)
    out = torch.bmm(shares[0], keys[0].values)
    for share, part in zip(shares[1:], keys[1:], strict=True):
        out.baddbmm_(share, part.values)
    return out.div_(denominator)


# -- indexer --------------------------------------------------------------------------------------


def index_scores(
    query: Tensor, weights: Tensor, keys: Tensor, visible: Tensor, rounded: bool
) -> Tensor:
    """Scores ``[T, n]`` of ``[T, H, w]`` queries against the keys ``[n, w]`` of their request.

    Every rounding point, to bfloat16 if ``rounded``, is the published reference's, which makes
    scores equal to its own (section 2.8). ``weights`` is float32 ``[T, H]``; rows not ``visible``
    ``[T, n]`` score minus infinity.
    """
    return weighted_dots(torch.nn.functional.linear(query, keys), weights, visible, rounded)


def weighted_dots(dots: Tensor, weights: Tensor, visible: Tensor, rounded: bool) -> Tensor:
    """What ``index_scores`` makes of the products ``[T, H, n]`` of queries and keys."""

    def stored(x: Tensor) -> Tensor:
        return x.to(torch.bfloat16).to(torch.float32) if rounded else x

    products = stored(stored(dots).relu_() * weights.unsqueeze(-1))
    total = products[:, 0].clone()
    for head in range(1, dots.shape[1]):
        total += products[:, head]
    return stored(total).masked_fill_(~visible, NEGATIVE_INFINITY)


def select_highest(scores: Tensor, count: int) -> Tensor:
    """Boolean ``[q, n]``: the ``count`` highest scores, by the rule of ``ops/indexer``."""
    order = torch.sort(scores, dim=-1, descending=True, stable=True).indices[:, :count]
    selected = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, order, True)
    return selected & (scores != NEGATIVE_INFINITY)  # NaN is chosen


def selected_rows(selected: Tensor, width: int) -> Tensor:
    """Ascending row numbers of a boolean ``[q, n]`` selection, padded with -1 to ``[q, width]``."""
    rank = selected.cumsum(1) - 1
    rows = selected.new_full((selected.shape[0], width), -1, dtype=torch.int64)
    token, row = selected.nonzero(as_tuple=True)
    rows[token, rank[token, row]] = row
    return rows


def candidate_blocks(
    scores: Tensor, num_visible: Tensor, block_rows: int, num_blocks: int
) -> Tensor:
    """Boolean ``[q, blocks]``: the best blocks of ``block_rows`` rows (section 2.8).

    The block holding the newest visible row (``num_visible - 1``, ``[q]``) is always kept.
    """
    count, rows = scores.shape
    blocks = -(-rows // block_rows)
    padded = scores.new_full((count, blocks * block_rows), NEGATIVE_INFINITY)
    padded[:, :rows] = scores
    block_scores = padded.view(count, blocks, block_rows).amax(-1)
    newest = (num_visible - 1) // block_rows
    has_rows = (num_visible > 0).nonzero().squeeze(1)
    block_scores[has_rows, newest[has_rows]] = float("inf")
    return select_highest(block_scores, num_blocks)


# -- mixture of experts ---------------------------------------------------------------------------


def route(
    logits: Tensor,
    bias: Tensor,
    count: int,
    normalise: bool,
    factor: float,
    forced: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Choose experts by ``sqrt(softplus(logits)) + bias`` (section 2.10), or take ``forced`` ones.

    Returns:
        expert numbers ``[T, count]`` ascending, and their float32 weights, bias excluded.
    """
    scores = torch.sqrt(torch.nn.functional.softplus(logits))
    experts = forced
    if experts is None:
        order = torch.sort(scores + bias, dim=-1, descending=True, stable=True).indices
        experts = order[:, :count].sort(-1).values
    weights = scores.gather(1, experts)
    if normalise and experts.shape[1] > 1:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return experts, weights * factor


def sum_experts(outputs: Tensor, chosen: Tensor, shared: Tensor, dtype: torch.dtype) -> Tensor:
    """``[T, D]`` sums of outputs ``[T, k, D]`` by ascending expert number, then ``shared``."""
    tokens = torch.arange(len(chosen), device=chosen.device)
    total = torch.zeros(len(chosen), outputs.shape[-1], dtype=torch.float32, device=outputs.device)
    for slots in chosen.argsort(dim=1, stable=True).unbind(1):
        total += outputs[tokens, slots].to(torch.float32)
    return (total + shared).to(dtype)


def clamped_swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """``silu(min(gate, limit)) * clamp(up, -limit, limit)`` in float32."""
    gate, up = gate.to(torch.float32), up.to(torch.float32)
    return torch.nn.functional.silu(gate.clamp_max(limit)) * up.clamp(-limit, limit)

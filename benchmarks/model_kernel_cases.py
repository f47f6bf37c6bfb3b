"""Cases of `kernels.py` beside the linear layers: norms, streams, caches, attention, router.

At the published shapes (hidden size 5120, 64 heads of 512, 128 window and 512 selected rows) and at
the tiny preset's. `usual` is torch's own function where there is one, on values that need no
decoding: fused attention over bfloat16 keys, `rms_norm`, `topk`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import vllm_kernels
from kernel_cases import BF16, Case
from torch import Tensor

from vllm_deepinfer.ops import attention, caches, engram, indexer, norm, rotation, router, streams
from vllm_deepinfer.ops.records import RecordKind, record_of

F32 = torch.float32
EPS = 1e-20


def norms() -> Iterator[Case]:
    for rows, width in ((1, 5120), (256, 5120), (1, 256)):
        x, weight = torch.randn(rows, width).to(BF16), torch.randn(width).to(BF16)
        yield Case(
            "rms_norm",
            str(width),
            rows,
            2 * x.numel(),
            0,
            lambda call, x=x, w=weight: norm.rms_norm(x, w, EPS, BF16),
            lambda call, x=x, w=weight: norm._reference(x, w, EPS, BF16),
            lambda call, x=x, w=weight: torch.nn.functional.rms_norm(x, w.shape, w, EPS),
            vllm_kernels.rms_norm(x, weight, EPS),
        )


def mixes() -> Iterator[Case]:
    for rows, width in ((1, 5120), (256, 5120), (1, 256)):
        x = torch.randn(rows, 4, width).to(BF16)
        weights = torch.randn(24, 4 * width), torch.rand(3), torch.randn(24), EPS, 1e-6, 20
        yield Case(
            "stream_mixes",
            f"4x{width}",
            rows,
            4 * weights[0].numel() + 2 * x.numel(),
            24 * x.numel(),
            lambda call, x=x, w=weights: streams.stream_mixes(x, *w),
            lambda call, x=x, w=weights: streams._mixes_reference(x, *w),
            peers=vllm_kernels.stream_mixes(x, weights),
        )
        pre, post, comb = streams.stream_mixes(x, *weights)
        out = x[:, 0].contiguous()
        arguments = (out, x, post, comb, BF16)
        yield Case(
            "mix_streams",
            f"4x{width}",
            rows,
            2 * x.numel(),
            x.numel(),
            lambda call, x=x, pre=pre: streams.mix_streams(x, pre, BF16),
            lambda call, x=x, pre=pre: streams._mix_reference(x, pre, BF16),
        )
        yield Case(
            "expand_streams",
            f"4x{width}",
            rows,
            2 * x.numel(),
            5 * x.numel(),
            lambda call, a=arguments: streams.expand_streams(*a),
            lambda call, a=arguments: streams._expand_reference(*a),
            peers=vllm_kernels.expand_streams(out, x, post, comb),
        )


def cache_of(kind: RecordKind, rows: int, width: int, block_rows: int = 64) -> Tensor:
    record = record_of(kind, width)
    return record.encode(torch.randn(-(-rows // block_rows), block_rows, width).to(BF16))


def stored_rows() -> Iterator[Case]:
    for kind, width in (
        (RecordKind.FP8, 512), (RecordKind.FP4_FINE, 512), (RecordKind.FP4, 128),
    ):  # fmt: skip
        for rows in (1, 256):
            cache, x = cache_of(kind, 1024, width), torch.randn(rows, width).to(BF16)
            angles = rotation.rope_angles(torch.arange(rows), torch.rand(32))
            arguments = (cache, torch.arange(rows), x, *angles, kind, BF16)
            yield Case(
                "store_rotated",
                f"{width}, {kind.name}",
                rows,
                2 * x.numel(),
                0,
                lambda call, a=arguments: caches.store_rotated(*a),
                lambda call, a=arguments: caches._store_reference(*a),
            )
            loads = (cache, torch.randint(0, 1024, (rows,)), kind, width)
            yield Case(
                "load_rows",
                f"{width}, {kind.name}",
                rows,
                rows * cache.shape[-1],
                0,
                lambda call, a=loads: caches.load_rows(*a),
                lambda call, a=loads: caches._load_reference(*a),
            )


def attended() -> Iterator[Case]:
    for tokens, heads, width, in_window, chosen in (
        (1, 64, 512, 128, 512), (6, 64, 512, 128, 512), (64, 64, 512, 128, 512),
        (1, 8, 512, 128, 64), (128, 8, 512, 128, 64),
    ):  # fmt: skip
        kinds = RecordKind.FP8, RecordKind.FP4_FINE
        window, selected = cache_of(kinds[0], 4096, width), cache_of(kinds[1], 8192, width)
        query, sink = torch.randn(tokens, heads, width).to(BF16), torch.randn(heads)
        window_rows = torch.arange(in_window) + torch.arange(tokens).unsqueeze(1)
        selected_rows = torch.randint(0, 8192, (tokens, chosen))
        arguments = (
            query, sink, 0.04, BF16, window, window_rows, kinds[0], selected, selected_rows,
            kinds[1],
        )  # fmt: skip
        count = in_window + chosen
        keys, heads_as_rows = torch.randn(tokens, 1, count, width).to(BF16), query.unsqueeze(1)
        yield Case(
            "sink_attention",
            f"{heads} heads, {count} rows",
            tokens,
            tokens * (in_window * window.shape[-1] + chosen * selected.shape[-1]),
            2 * tokens * heads * count * width,
            lambda call, a=arguments: attention.sink_attention(*a),
            lambda call, a=arguments: attention._reference(*a),
            lambda call, q=heads_as_rows, k=keys: torch.nn.functional.scaled_dot_product_attention(
                q, k, k
            ),
            vllm_kernels.sink_attention(query, sink, window_rows, selected_rows),
        )


def indexed() -> Iterator[Case]:
    for tokens, heads, num_keys in ((1, 32, 32768), (16, 32, 8192), (1, 8, 512)):
        cache, width = cache_of(RecordKind.FP4, num_keys, 128), 128
        query, weights = torch.randn(tokens, heads, width).to(BF16), torch.rand(tokens, heads)
        table = torch.randperm(len(cache)).to(torch.int32).unsqueeze(0)
        visible = torch.full((tokens,), num_keys)
        arguments = (
            query, weights, cache, RecordKind.FP4, table, torch.zeros_like(visible), visible,
            num_keys, True,
        )  # fmt: skip
        yield Case(
            "index_scores",
            f"{heads} heads, {num_keys} rows",
            tokens,
            tokens * num_keys * cache.shape[-1],
            tokens * heads * num_keys * width,
            lambda call, a=arguments: indexer.index_scores(*a),
            lambda call, a=arguments: indexer._scores_reference(*a),
        )
        scores, count = indexer.index_scores(*arguments), min(512, num_keys // 8)
        yield Case(
            "select_rows",
            f"{count} of {num_keys}",
            tokens,
            4 * scores.numel(),
            0,
            lambda call, s=scores, n=count: indexer.select_rows(s, n),
            lambda call, s=scores, n=count: indexer._select_reference(s, n),
            lambda call, s=scores, n=count: s.topk(n),
        )


def routed() -> Iterator[Case]:
    for rows, experts, count in ((1, 384, 6), (256, 384, 6), (1, 8, 2)):
        arguments = (torch.randn(rows, experts), torch.randn(experts), count, True, 1.5)
        yield Case(
            "route",
            f"{count} of {experts}",
            rows,
            4 * rows * experts,
            0,
            lambda call, a=arguments: router.route(*a),
            lambda call, a=arguments: router._route_reference(*a),
            peers=vllm_kernels.route(arguments[0], arguments[1], count, 1.5),
        )


def memories() -> Iterator[Case]:
    for rows, width in ((1, 5120), (256, 5120), (1, 256)):
        weights = torch.randn(4, width).to(BF16), torch.randn(4, width).to(BF16), EPS
        arguments = (
            torch.randn(rows, 4, width).to(BF16), torch.randn(rows, 5 * width).to(BF16), *weights,
        )  # fmt: skip
        yield Case(
            "add_memory",
            f"4x{width}",
            rows,
            18 * rows * width,
            0,
            lambda call, a=arguments: engram.add_memory(*a),
            lambda call, a=arguments: engram._memory_reference(*a),
        )


OPERATIONS = [norms, mixes, stored_rows, attended, indexed, routed, memories]

"""Launches of every kernel at the published model's sizes, on tensors that hold nothing.

They are the calls that the model makes in steps of few tokens, of a batch and of prompts, as
``recorded_calls`` finds them. ``compile_only`` compiles them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from vllm_deepinfer.models.deepseek_v41.config import V41Config
from vllm_deepinfer.models.deepseek_v41.presets import preset
from vllm_deepinfer.models.deepseek_v41.recorded_calls import Call, recorded_calls
from vllm_deepinfer.ops.records import RecordKind, record_of
from vllm_deepinfer.ops.triton import OPERATIONS, launcher
from vllm_deepinfer.ops.triton.tiles import batch_invariant

FULL_BATCH_TOKENS = 64
# Tokens of a step, and of each of its requests: a lone one, half and full batches, prompts' parts.
STEPS = ((1, 1), (32, 1), (FULL_BATCH_TOKENS, 1), (2048, 8))
CONTEXT_TOKENS = 65536
MATRIX_OPERATIONS = ("fp8_linear", "fp4_experts", "plain_linear")
"""Their tiles depend on the number of tokens."""
COLD_OPERATIONS = ("add_memory", "engram_rows", "load_rows", "load_table_rows")
"""Run in two layers of the model, or in none."""
NEVER_CALLED = ("load_rows",)
"""Not by the model, whose attention reads its caches itself, but by whoever looks into a cache."""


@dataclass(frozen=True)
class Launch:
    """A call of an operation's launcher.

    Attributes:
        shapes: what is launched, in words.
        hot: runs in every layer or step of a decode, so that spilled registers would cost.
    """

    operation: str
    shapes: str
    hot: bool
    run: Callable[[], object]


@cache
def published_calls(num_tokens: int, tokens_per_request: int) -> tuple[Call, ...]:
    config = V41Config.from_dict(preset("published"))
    return tuple(recorded_calls(config, num_tokens, tokens_per_request, CONTEXT_TOKENS))


def published_launches() -> list[Launch]:
    """What the model calls: each matrix product of all steps, and the rest of a full batch's."""
    launches = [_launch(call) for call in _calls()]
    # There, tiles are the same whatever the sizes.
    batch = published_calls(FULL_BATCH_TOKENS, 1)
    invariant = {call.form: call for call in batch if call.operation in MATRIX_OPERATIONS}
    launches += [_launch(call, fixed=True) for call in invariant.values()]
    return launches + [_launch(call) for call in _never_called()]


def _calls() -> Iterator[Call]:
    for num_tokens, tokens_per_request in STEPS:
        for call in published_calls(num_tokens, tokens_per_request):
            is_matrix = call.operation in MATRIX_OPERATIONS
            if is_matrix or (num_tokens == FULL_BATCH_TOKENS and call.operation in OPERATIONS):
                yield call


def _never_called() -> Iterator[Call]:
    widths = {RecordKind.FP8: 512, RecordKind.FP4_FINE: 512, RecordKind.FP4: 128}
    for kind, width in widths.items():
        storage = torch.empty(
            64, 128, record_of(kind, width).num_bytes, dtype=torch.uint8, device="meta"
        )
        rows = torch.empty(4096, dtype=torch.int64, device="meta")
        yield Call("load_rows", "caches", (storage, rows, kind, width))


def _launch(call: Call, fixed: bool = False) -> Launch:
    def run() -> None:
        with batch_invariant(fixed):
            launcher(call.operation)(*call.arguments)

    words = _words(call) + (", batch-invariant" if fixed else "")
    return Launch(call.operation, words, call.operation not in COLD_OPERATIONS, run)


def _words(call: Call) -> str:
    """Who calls it, the shapes of its matrices without scales, and which switches are on."""
    tensors = [a for a in call.arguments if isinstance(a, Tensor)]
    shapes = dict.fromkeys(
        "x".join(map(str, tensor.shape))
        for tensor in tensors
        if tensor.dim() > 1 and tensor.dtype != torch.float8_e8m0fnu
    )
    schema = getattr(torch.ops.vllm_deepinfer, call.operation).default._schema
    pairs = zip(schema.arguments, call.arguments, strict=False)  # defaults are left out of a call
    switches = [argument.name for argument, value in pairs if value is True]
    where = call.module.removeprefix("layers.").removeprefix("layers") or "step"
    return f"{where}: {', '.join([*shapes, *switches])}"

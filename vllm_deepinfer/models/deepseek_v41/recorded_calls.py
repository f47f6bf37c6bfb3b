"""Every call of an operation that a step of the model makes, without computing anything.

Target and draft stages are built on torch's ``meta`` device and take one step there. Launches that
are compiled ahead are made of these calls, so that they are the model's and nobody's idea of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from vllm_deepinfer.models.deepseek_v41.cache import OPEN_GROUP_ROWS, Cache, CacheKind
from vllm_deepinfer.models.deepseek_v41.config import V41Config
from vllm_deepinfer.models.deepseek_v41.decoder import Decoder
from vllm_deepinfer.models.deepseek_v41.draft import Draft
from vllm_deepinfer.models.deepseek_v41.engram import EngramConstants
from vllm_deepinfer.models.deepseek_v41.step import Paging
from vllm_deepinfer.models.deepseek_v41.uniform_step import UniformStep
from vllm_deepinfer.ops.library import NAMESPACE
from vllm_deepinfer.ops.numerics import Numerics

BLOCK_TOKENS = 128


@dataclass(frozen=True)
class Call:
    """One call.

    Attributes:
        module: the innermost module that makes it, by its parameters' names without the number of
            the layer, such as "layers.attn.wo_a"; several may make the same call.
        arguments: tensors with neither values nor memory, and numbers.
    """

    operation: str
    module: str
    arguments: tuple[Any, ...]

    @property
    def form(self) -> tuple:
        """What calls of any size have in common: dtypes and dimensions of tensors, and kinds."""
        return (self.operation, *map(_form, self.arguments))

    @property
    def signature(self) -> tuple:
        """What a compiler sees: shapes, strides and dtypes of tensors, and numbers."""
        return (self.operation, *map(_signature, self.arguments))


def _form(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return argument.dtype, argument.dim()
    return argument if isinstance(argument, torch.dtype) else type(argument).__name__


def _signature(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return tuple(argument.shape), argument.stride(), argument.dtype
    return argument


class Recorder(TorchDispatchMode):
    """Notes the operations that are called while it is active, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.modules: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == NAMESPACE:
            module = self.modules[-1] if self.modules else ""
            name = func.name().split("::")[1]
            assert not kwargs, f"{name} is called with names, which a launcher may not know"
            self.calls.append(Call(name, module, tuple(args)))
        return func(*args, **(kwargs or {}))


@contextmanager
def recording(*models: nn.Module) -> Iterator[Recorder]:
    """A recorder that knows the modules of ``models``."""
    recorder, hooks = Recorder(), []
    for model in models:
        for name, module in model.named_modules():
            plain = ".".join(part for part in name.split(".") if not part.isdigit())

            def enter(module: nn.Module, args: Any, plain: str = plain) -> None:
                recorder.modules.append(plain)

            def leave(module: nn.Module, args: Any, output: Any) -> None:
                recorder.modules.pop()

            hooks += [
                module.register_forward_pre_hook(enter),
                module.register_forward_hook(leave),
            ]
    try:
        with recorder, torch.no_grad():
            yield recorder
    finally:
        for hook in hooks:
            hook.remove()


def recorded_calls(
    config: V41Config, num_tokens: int, tokens_per_request: int, context_tokens: int
) -> list[Call]:
    """The calls of one step of the model in its published numerics, each signature once.

    Args:
        num_tokens: of the step; whole requests.
        context_tokens: of the longest request.
    """
    numerics = Numerics()
    with torch.device("meta"):
        decoder, draft = Decoder(config, numerics), Draft(config, numerics)
        _prepare(decoder, config)
        shape = num_tokens, tokens_per_request, context_tokens
        with recording(decoder, draft) as recorder:
            _target_step(decoder, config, shape)
            _draft_step(decoder, draft, config, shape)
    found: dict[tuple, Call] = {}
    for call in recorder.calls:
        found.setdefault(call.signature, call)
    return list(found.values())


def _prepare(decoder: Decoder, config: V41Config) -> None:
    """What a checkpoint's tokenizer brings, in its shapes."""
    size, heads = config.engram_max_ngram_size, config.engram_columns
    heads //= size - 1
    numbers = torch.empty(size - 1, heads, dtype=torch.int64)
    constants = EngramConstants(
        torch.empty(config.vocab_size, dtype=torch.int64),
        0,
        torch.empty(size, dtype=torch.int64),
        numbers,
        numbers,
    )
    for layer in decoder.layers:
        if layer.plan.has_engram:
            layer.engram.constants = constants


def _step(config: V41Config, caches: list[Cache], shape: tuple, **options: Any) -> UniformStep:
    num_tokens, per_request, context = shape
    blocks = torch.empty(num_tokens // per_request, -(-context // BLOCK_TOKENS), dtype=torch.int32)
    rows = Paging(blocks, torch.empty(num_tokens, dtype=torch.int64), BLOCK_TOKENS)
    ring = Paging(blocks[:, :1], None, OPEN_GROUP_ROWS)
    paging = {}
    for cache in caches:
        is_ring = cache.kind is CacheKind.OPEN_GROUP
        per_block = OPEN_GROUP_ROWS if is_ring else BLOCK_TOKENS // cache.tokens_per_row
        cache.bind(torch.empty(64, per_block, cache.record.num_bytes, dtype=torch.uint8))
        paging[cache.name] = ring if is_ring else rows
    return UniformStep(
        positions=torch.empty(num_tokens, dtype=torch.int64),
        ngram_token_ids=torch.empty(num_tokens, config.engram_max_ngram_size, dtype=torch.int64),
        paging=paging,
        tokens_per_request=per_request,
        most_context_tokens=context,
        **options,
    )


def _target_step(decoder: Decoder, config: V41Config, shape: tuple) -> None:
    step = _step(config, decoder.all_caches(), shape)
    taps: dict = dict.fromkeys(config.dspark_target_layer_ids)
    hidden = decoder(torch.empty(shape[0], dtype=torch.int64), step, taps)
    decoder.logits(hidden[: shape[0] // shape[1]])


def _draft_step(decoder: Decoder, draft: Draft, config: V41Config, shape: tuple) -> None:
    step = _step(config, draft.all_caches(), shape, is_draft_block=True)
    dtype = draft.numerics.dtype
    taps = len(config.dspark_target_layer_ids) * config.hidden_size
    context = draft.context(torch.empty(shape[0], taps, dtype=dtype))
    slots = [torch.empty(shape[0], dtype=torch.int64) for _ in draft.mtp]
    draft.store_context(context, step.positions, slots)
    token_ids = torch.empty(shape[0], dtype=torch.int64)
    head_input = draft(decoder.embed(token_ids), step)
    decoder.logits(draft.normalised(head_input))
    markov = draft.markov_embed(token_ids)
    draft.markov_bias(markov)
    draft.confidence_logits(head_input, markov)

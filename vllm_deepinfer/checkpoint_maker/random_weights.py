"""Random values for every tensor of a checkpoint, quantised to their storage formats.

The values are meant to make mistakes visible, so nothing is zero, one or equal by accident: norms
and hyper-connection scales differ from one, weights have rows and columns of different size,
selection biases change the selection, the last two experts of the last layer are twins and tie.
Source: V4.1 specification, section 9.2.

Purely random logits would make a draft's tokens match the target's once in a vocabulary. Here both
lean, without being bound to it, to one successor of each token, so that speculation is sometimes
right and sometimes wrong, as with a trained model.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from vllm_deepinfer.models.deepseek_v41.config import V41Config
from vllm_deepinfer.models.deepseek_v41.schema import FP8, PACKED_FP4, TensorSpec
from vllm_deepinfer.ops.formats import (
    quantise_fp4_rows,
    quantise_fp8_blocks,
    quantise_fp8_rows,
)

Values = np.ndarray  # float32
Maker = Callable[["RandomWeights", np.random.Generator, str, tuple[int, ...]], Values]

_LAYER = re.compile(r"(?:layers|mtp|vision\.blocks)\.\d+\.")
# Relative sizes of rows and columns. Everything here is tables and exactly rounded arithmetic, so
# that the bytes do not depend on a processor's vector width.
_SIZES = np.array([0.5, 0.625, 0.75, 0.875, 1.0, 1.0, 1.25, 1.5, 2.0], dtype=np.float32)
_MEAN_SQUARE_SIZE = float(sum(size * size for size in _SIZES.tolist())) / len(_SIZES)
_TARGET_LEANING = 1.25  # length added along the predecessor's embedding in a row of the output head
_DRAFT_LEANING = 12.0  # logit the Markov head adds to the successor


class RandomWeights:
    """Makes any tensor of a checkpoint, each from its own random stream.

    Args:
        config: sizes of the model.
        successors: token id -> the id that outputs lean to after it.
        seed: any integer; a tensor depends on it and on its own name only.
    """

    def __init__(self, config: V41Config, successors: dict[int, int], seed: int) -> None:
        self.config = config
        self.successors = successors
        self.seed = seed

    def make(self, unit: Sequence[TensorSpec]) -> dict[str, Tensor]:
        """Return the tensors of ``unit``: one tensor, or a quantised weight and its scale."""
        spec = unit[0]
        values = torch.from_numpy(self.values(spec.name, self._full_shape(spec)))
        if spec.dtype == FP8:
            in_rows = ".engram.embed." in spec.name
            stored = (quantise_fp8_rows if in_rows else quantise_fp8_blocks)(values)
        elif spec.dtype == PACKED_FP4:
            stored = quantise_fp4_rows(values)
        else:
            stored = (values.to(spec.dtype),)
        return {part.name: data for part, data in zip(unit, stored, strict=True)}

    def values(self, name: str, shape: tuple[int, ...]) -> Values:
        """Return the float32 values of tensor ``name`` before quantisation."""
        name = self._twin_of(name)
        kind = _LAYER.sub("", name)
        for pattern, maker in _MAKERS:
            if re.fullmatch(pattern, kind):
                return maker(self, self._stream(name), name, shape).astype(np.float32)
        raise ValueError(f"no rule makes tensor {name}")

    def _full_shape(self, spec: TensorSpec) -> tuple[int, ...]:
        if spec.dtype == PACKED_FP4:
            return (spec.shape[0], 2 * spec.shape[1])
        return spec.shape

    def _stream(self, name: str) -> np.random.Generator:
        digest = hashlib.sha256(f"{self.seed}:{name}".encode()).digest()
        return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))

    def _twin_of(self, name: str) -> str:
        last = self.config.n_routed_experts - 1
        prefix = f"layers.{self.config.num_hidden_layers - 1}.ffn.experts."
        return name.replace(f"{prefix}{last}.", f"{prefix}{last - 1}.")


def _normal(rng: np.random.Generator, shape: tuple[int, ...], scale: float = 1.0) -> Values:
    return rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)


def _matrix(gain: float = 1.0) -> Maker:
    """Weights that keep the size of their input, with large and small rows and columns."""

    def make(_, rng, name, shape):
        rows, columns = (_SIZES[rng.integers(0, len(_SIZES), count)] for count in shape)
        scale = gain / np.sqrt(shape[1]) / _MEAN_SQUARE_SIZE
        return _normal(rng, shape, scale) * rows[:, None] * columns

    return make


def _around(mean: float, deviation: float) -> Maker:
    return lambda _, rng, name, shape: mean + _normal(rng, shape, deviation)


def _mix_base(weights: RandomWeights, rng: np.random.Generator, name: str, shape) -> Values:
    """Mostly keep each stream, read about a quarter of each, write about a third to each."""
    streams = weights.config.hc_mult
    keep = 4.0 * np.eye(streams).reshape(-1)
    return np.concatenate([[-1.1] * streams, [-1.5] * streams, keep]) + _normal(rng, shape, 0.3)


def _gate(scale: float) -> Maker:
    """Router rows or biases; the last two experts of the last decoder layer are equal."""

    def make(weights, rng, name, shape):
        values = _normal(rng, shape, scale if len(shape) == 1 else scale / np.sqrt(shape[1]))
        if name.startswith(f"layers.{weights.config.num_hidden_layers - 1}."):
            values[-1] = values[-2]
        return values

    return make


def _output_head(weights: RandomWeights, rng: np.random.Generator, name: str, shape) -> Values:
    embedding = weights.values("embed.weight", shape)
    directions = embedding / np.float32(np.sqrt(shape[1]))  # of length about one
    return _lean(weights, _normal(rng, shape, 2 / np.sqrt(shape[1])), _TARGET_LEANING * directions)


def _markov_head(weights: RandomWeights, rng: np.random.Generator, name: str, shape) -> Values:
    embedding = weights.values(name.replace(".head.weight", ".embed.weight"), shape)
    directions = embedding / np.float32(shape[1])  # a logit of about one
    return _lean(weights, _normal(rng, shape, 1 / np.sqrt(shape[1])), _DRAFT_LEANING * directions)


def _lean(weights: RandomWeights, head: Values, directions: Values) -> Values:
    for token, successor in weights.successors.items():
        head[successor] += directions[token]
    return head


_MAKERS: tuple[tuple[str, Maker], ...] = (
    (r"embed\.weight|markov_head\.embed\.weight|image_\w+", _around(0.0, 1.0)),
    (r"head\.weight", _output_head),
    (r"markov_head\.head\.weight", _markov_head),
    (r"confidence_head\.proj\.weight", _matrix(1.5)),
    (r"attn\.wo_b\.weight", _matrix(2.0)),  # together, layers outweigh the embedding
    (r"ffn\..+\.w2\.weight", _matrix(2.0)),
    (r"(?:.+\.|.+_|)norm\d?\.weight|engram\.[qk]_weight", _around(1.0, 0.15)),
    (r"hc_\w+_fn", _around(0.0, 0.01)),
    (r"hc_\w+_base", _mix_base),
    (r"hc_\w+_scale", _around(1.0, 0.1)),
    (r"attn\.attn_sink", _around(0.0, 1.0)),
    (r"ffn\.gate\.weight", _gate(3.0)),
    (r"ffn\.gate\.bias(?:_vl)?", _gate(0.2)),
    (r".+\.bias", _around(0.0, 0.02)),
    (r".+\.weight", _matrix()),
)

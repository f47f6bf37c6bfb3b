"""Load a checkpoint into the model: stream it, convert nothing, report every problem at once.

The model's parameters are named like the checkpoint's tensors, except that the routed experts of
a layer are stacked: tensor ``layers.3.ffn.experts.7.w1.weight`` is row 7 of parameter
``layers.3.ffn.experts.w1.weight``, or a lower one on a rank that holds only some experts. Such a
rank holds, of the engram tables, a range of rows.
Source: V4.1 specification, section 6.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from vllm_deepinfer.log import get_logger
from vllm_deepinfer.models.deepseek_v41.config import V41Config
from vllm_deepinfer.models.deepseek_v41.schema import DTYPE_NAMES, UE8M0, TensorSpec, schema
from vllm_deepinfer.models.deepseek_v41.weight_problems import Problems

logger = get_logger(__name__)

Part = Literal["target", "draft"]
Held = Callable[[int], range]

_OPTIONAL_PREFIX = "model."
_DRAFT_PREFIX = "mtp."
_VISION_PREFIXES = ("vision.", "aligner.", "image_")
_ENGRAM_TABLE = ".engram.embed."
_VISION_BIAS = ".ffn.gate.bias_vl"
_NUMBERS = ": scales are exponents, one byte each; numbers are neither taken for them nor rounded"
_EXPERT = re.compile(r"(.+\.ffn\.experts)\.(\d+)\.(w[123]\.(?:weight|scale))")


def destination(name: str) -> tuple[str, int | None]:
    """Return the parameter a tensor belongs to and, for a routed expert, its row there."""
    expert = _EXPERT.fullmatch(name)
    if expert is None:
        return name, None
    return f"{expert[1]}.{expert[3]}", int(expert[2])


def expected_parameters(config: V41Config, part: Part, held: Held = range) -> dict[str, TensorSpec]:
    """Return name -> dtype and shape of every parameter the model of ``part`` must have.

    ``held`` gives, for a number of routed experts or of table rows, those that the model has.

    Vision tensors have no parameter: the model is text only.
    """
    parameters: dict[str, TensorSpec] = {}
    if part not in ("target", "draft"):
        raise ValueError(f"part is {part!r}; it must be 'target' or 'draft'")
    for name, spec in schema(config).items():
        if not _has_parameter(name, part):
            continue
        parameter, row = destination(name)
        if _ENGRAM_TABLE in name:
            rows = len(held(spec.shape[0]))
            parameters[parameter] = TensorSpec(parameter, spec.dtype, (rows, *spec.shape[1:]))
        elif row is None:
            parameters[parameter] = spec
        else:  # rows come in order, so the last one gives the count
            rows = len(held(row + 1))
            parameters[parameter] = TensorSpec(parameter, spec.dtype, (rows, *spec.shape))
    return parameters


def load_weights(
    model: nn.Module,
    weights: Iterable[tuple[str, Tensor]],
    config: V41Config,
    part: Part,
    held: Held = range,
) -> set[str]:
    """Copy the tensors of ``part`` into the parameters of ``model``, byte for byte.

    Every recognised tensor is checked, also those of the other part, of the vision tower and of
    experts that other ranks hold, which are then skipped. A text-only checkpoint, without any
    vision tensor and any ``gate.bias_vl``, is accepted; its ``gate.bias_vl`` parameters become
    zero.

    Args:
        model: has exactly the parameters of :func:`expected_parameters`.
        weights: name and tensor of the whole checkpoint, one at a time; names may have the prefix
            ``model.``. No tensor is kept.
        config: the checkpoint's configuration.
        part: ``"target"`` for the decoder, ``"draft"`` for the draft stages ``mtp.*``.
        held: gives, for a number of routed experts or of rows of an engram table, those that
            ``model`` has. The other rows of a table are not read.

    Returns:
        The names of all parameters, every one filled.

    Raises:
        WeightsError: names every missing, unexpected, repeated or wrongly shaped or typed tensor.
        ValueError: the model does not have the expected parameters.
    """
    parameters = _checked_parameters(model, config, part, held)
    experts = held(_num_experts(config, part))
    tensors = schema(config)
    problems = Problems()
    seen: set[str] = set()
    for raw_name, tensor in weights:
        name = raw_name.removeprefix(_OPTIONAL_PREFIX)
        if name in seen:
            problems.add("repeated", name)
        elif name not in tensors:
            problems.add("unexpected", raw_name)
        elif _matches(tensor, tensors[name], problems) and _has_parameter(name, part):
            parameter, row = destination(name)
            if _ENGRAM_TABLE in name:
                rows = held(len(tensor))
                _copy(tensor[rows.start : rows.stop], parameters[parameter])
            elif row is None:
                _copy(tensor, parameters[parameter])
            elif row in experts:
                _copy(tensor, parameters[parameter][experts.index(row)])
        seen.add(name)

    required = [name for name in tensors if _belongs(name, part)]
    if seen.isdisjoint(filter(_is_vision, required)):
        required = [name for name in required if not _is_vision(name)]
        _zero_vision_biases(parameters, part)
    for name in required:
        if name not in seen:
            problems.add("missing", name)
    problems.raise_if_any()
    return set(parameters)


def _belongs(name: str, part: Part) -> bool:
    """Whether a checkpoint needs tensor ``name`` for ``part``; the target has the vision tower."""
    return name.startswith(_DRAFT_PREFIX) == (part == "draft")


def _num_experts(config: V41Config, part: Part) -> int:
    return config.n_routed_experts if part == "target" else config.dspark_n_routed_experts


def _has_parameter(name: str, part: Part) -> bool:
    return _belongs(name, part) and not name.startswith(_VISION_PREFIXES)


def _is_vision(name: str) -> bool:
    return name.startswith(_VISION_PREFIXES) or name.endswith(_VISION_BIAS)


def _matches(tensor: Tensor, spec: TensorSpec, problems: Problems) -> bool:
    if tensor.dtype != spec.dtype:
        found, wanted = (DTYPE_NAMES.get(d, str(d)) for d in (tensor.dtype, spec.dtype))
        reason = _NUMBERS if spec.dtype == UE8M0 and tensor.is_floating_point() else ""
        problems.add("wrong dtype", spec.name, f"is {found}, expected {wanted}{reason}")
        return False
    if tuple(tensor.shape) != spec.shape:
        problems.add(
            "wrong shape", spec.name, f"is {list(tensor.shape)}, expected {list(spec.shape)}"
        )
        return False
    return True


@torch.no_grad()
def _copy(source: Tensor, target: Tensor) -> None:
    # as bytes: not every backend can copy the 8-bit float types
    target.view(torch.uint8).copy_(source.contiguous().view(torch.uint8))


@torch.no_grad()
def _zero_vision_biases(parameters: dict[str, nn.Parameter], part: Part) -> None:
    biases = [name for name in parameters if name.endswith(_VISION_BIAS)]
    if not biases:
        return
    for name in biases:
        parameters[name].zero_()
    logger.info(
        "Text-only checkpoint: it has no vision tensors and no gate.bias_vl; the %d bias_vl of the "
        "%s model are zero. Images are not served.",
        len(biases),
        part,
    )


def _checked_parameters(
    model: nn.Module, config: V41Config, part: Part, held: Held
) -> dict[str, nn.Parameter]:
    parameters = dict(model.named_parameters())
    expected = expected_parameters(config, part, held)
    wrong = [f"{name} is absent" for name in expected if name not in parameters]
    for name, parameter in parameters.items():
        spec = expected.get(name)
        if spec is None:
            wrong.append(f"{name} has no tensor in the checkpoint")
        elif (parameter.dtype, tuple(parameter.shape)) != (spec.dtype, spec.shape):
            found = TensorSpec(name, parameter.dtype, tuple(parameter.shape))
            wrong.append(f"{name} is {found}, expected {spec}")
    if wrong:
        raise ValueError(
            f"The {part} model does not have the parameters its config.json implies: "
            + "; ".join(wrong)
        )
    return parameters

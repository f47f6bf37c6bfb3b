"""The options of this package: `--additional-config '{"deepinfer": {...}}'`.

To add an option, add one field to `DeepInferConfig` with `option(default, help, ...)`; parsing,
validation, error texts and the option table of the documentation follow from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig

KEY = "deepinfer"


class OptionError(ValueError):
    """An option of this package is unknown or has a value that is not allowed."""


def option(
    default: Any,
    help: str,
    *,
    choices: tuple[Any, ...] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    """Declares one option; its type is the type of `default`.

    Args:
        default: the value when the option is not given.
        help: what the option does, its unit and when to change it.
        choices: the only values allowed, if given.
        minimum, maximum: the smallest and the largest value allowed, for numbers.
    """
    limits = {"choices": choices, "minimum": minimum, "maximum": maximum}
    return field(default=default, metadata={"help": help, **limits})


@dataclass(frozen=True)
class DeepInferConfig:
    """The resolved options. Immutable: it is read in every process and must agree in all of them.

    Raises:
        OptionError: a value is not allowed.
    """

    quantization: str = option(
        "stored",
        "`stored` computes in the checkpoint's stored formats. `off` is for debugging: the same "
        "graph on dequantised weights and without activation quantisers.",
        choices=("stored", "off"),
    )
    batch_invariant: bool = option(
        False,
        "Promise that a request's tokens do not depend on the batch it is computed in, on prefill "
        "chunks or on prefix-cache hits. The C++ kernels keep it at no cost; the start is refused "
        "where they are not used.",
    )
    model: str = option(
        "auto",
        "Whose model class runs on SM100: `vllm`'s, `deepinfer`'s of this package, or `auto`, "
        "which is `vllm` there until this package's is measured to be faster. Elsewhere vLLM has "
        "none, `auto` and `deepinfer` are the same and `vllm` is refused.",
        choices=("auto", "deepinfer", "vllm"),
    )
    sync_guard: str = option(
        "off",
        "What to do when the host waits for the accelerator within a step, which stalls it: "
        "`warn` or `error`. For diagnosis; a CPU has nothing to wait for.",
        choices=("off", "warn", "error"),
    )
    npu_torch_ops: str = option(
        "",
        "Ascend: operations, separated by commas, that torch computes although torch_npu has an "
        "operator for them. The start names those that are wrong on a device; slower. Empty: none.",
    )
    confidence_calibration: str = option(
        "",
        "Path of a file made by `vllm-deepinfer calibrate`: its temperatures turn the confidence "
        "logits of drafts into probabilities. It must have been fitted for this checkpoint and "
        "for the number of drafts served. Empty: temperature 1 at every position.",
    )
    draft_records: str = option(
        "",
        "Path of a file to append to: one JSON line per verified block of drafts, with the "
        "drafter's confidence logits and how many survived, for `vllm-deepinfer calibrate`. Empty: "
        "nothing is recorded.",
    )

    prefill_vote: str = option(
        "off",
        "When prompts are computed. `off` leaves it to vLLM: any step. `cadence` grants prefill "
        "steps at fixed intervals of decode steps, `slo` by `ttft_target_ms` and "
        "`itl_target_ms`; data-parallel ranks decide together.",
        choices=("off", "cadence", "slo"),
    )
    prefill_phases: str = option(
        "strict",
        "With a vote: `strict` runs nothing but prompts in a prefill step, `mixed` lets decodes "
        "run along. A decode step never computes a prompt.",
        choices=("strict", "mixed"),
    )
    prefill_all_interval: int = option(
        70, "`cadence`: decode steps after which a prefill runs if every rank wants one.", minimum=1
    )
    prefill_any_interval: int = option(
        100,
        "With a vote: decode steps after which a prefill runs if any rank wants one: the longest a "
        "prompt with room waits.",
        minimum=1,
    )
    prefill_resume_interval: int = option(
        10,
        "`cadence`: decode steps between two bursts of prefill steps. 0 lets bursts follow each "
        "other while every rank wants one, and leaves the rest of a prompt to the other intervals.",
        minimum=0,
    )
    prefill_idle_interval: int = option(
        8,
        "With a vote: decode steps between two checks whether prompts wait while no rank decodes. "
        "0: none.",
        minimum=0,
    )
    prefill_max_steps: int = option(
        8, "With a vote: most prefill steps in a row that one grant gives.", minimum=1
    )
    prefill_kv_watermark: float = option(
        0.9,
        "With a vote: share of the KV cache in use above which no prompt is begun while requests "
        "decode.",
        minimum=0.0,
        maximum=1.0,
    )
    ttft_target_ms: float = option(
        2000.0, "`slo`: time to first token in milliseconds to keep.", minimum=1.0
    )
    itl_target_ms: float = option(
        50.0, "`slo`: mean time between two tokens of a request in ms to keep.", minimum=0.1
    )
    verification: str = option(
        "all",
        "How many drafts each step verifies. `all` offers every draft. `adaptive` offers those "
        "that raise expected tokens per second, by the step costs measured here. `compatible` does "
        "so by DeepInfer's exact rules.",
        choices=("all", "adaptive", "compatible"),
    )
    verification_min_benefit: float = option(
        0.01,
        "`adaptive`: least predicted gain over the best common length for which lengths differ "
        "between requests.",
        minimum=0.0,
        maximum=1.0,
    )
    step_cost_file: str = option(
        "",
        "`adaptive`: path of a file that keeps measured step costs between runs. It is used only "
        "on the machine, versions, model and parallel layout it was measured with; data-parallel "
        "rank 1 adds `.1` to it and so on. Empty: costs are measured anew at each start.",
    )
    step_trace: str = option(
        "",
        "Path of a file to append to: one JSON line per step of the engine core, with what was "
        "voted, scheduled and measured, for diagnosis; data-parallel rank 1 adds `.1` to it and so "
        "on. Empty: nothing is written.",
    )

    def __post_init__(self) -> None:
        for spec in fields(self):
            object.__setattr__(self, spec.name, _checked(spec, getattr(self, spec.name)))

    @classmethod
    def from_mapping(cls, options: Any) -> DeepInferConfig:
        """Parses the value of `additional_config["deepinfer"]`; None means no option is given.

        Raises:
            OptionError: `options` is not a mapping, names an unknown option, or a value is not
                allowed.
        """
        if options is None:
            return cls()
        if not isinstance(options, Mapping):
            raise OptionError(
                f"additional_config[{KEY!r}]={options!r} is not a mapping. "
                f"Allowed: an object with any of {', '.join(option_names())}."
            )
        unknown = sorted(str(name) for name in options if name not in option_names())
        if unknown:
            raise OptionError(
                f"additional_config[{KEY!r}] has unknown option(s) {', '.join(unknown)}. "
                f"Allowed: {', '.join(option_names())}."
            )
        return cls(**options)

    @classmethod
    def from_vllm(cls, vllm_config: VllmConfig) -> DeepInferConfig:
        """The options that a vLLM configuration carries.

        Raises:
            OptionError: see `from_mapping`; also when `additional_config` is not a mapping.
        """
        additional = vllm_config.additional_config
        if not isinstance(additional, Mapping):
            raise OptionError(
                f"additional_config is a {type(additional).__name__}; this package reads its "
                f"options from a mapping. Allowed: {{{KEY!r}: {{...}}}}."
            )
        return cls.from_mapping(additional.get(KEY))


def option_names() -> tuple[str, ...]:
    """The names of all options, in the order they are declared."""
    return tuple(spec.name for spec in fields(DeepInferConfig))


@dataclass(frozen=True)
class OptionDoc:
    """One row of the option table: name, allowed values as text, default, help."""

    name: str
    allowed: str
    default: Any
    help: str


def option_docs() -> tuple[OptionDoc, ...]:
    """The documentation of every option, for generated tables."""
    return tuple(
        OptionDoc(spec.name, _allowed(spec), spec.default, spec.metadata["help"])
        for spec in fields(DeepInferConfig)
    )


def _allowed(spec: Field) -> str:
    if spec.metadata["choices"] is not None:
        return ", ".join(repr(choice) for choice in spec.metadata["choices"])
    if isinstance(spec.default, bool):
        return "true, false"
    kind = "an integer" if isinstance(spec.default, int) else "a finite number"
    if isinstance(spec.default, str):
        kind = "a string"
    minimum, maximum = spec.metadata["minimum"], spec.metadata["maximum"]
    if minimum is None:
        return kind
    return f"{kind} of at least {minimum:g}" + ("" if maximum is None else f", at most {maximum:g}")


def _checked(spec: Field, value: Any) -> Any:
    """`value` as the option's type; raises OptionError if it is not allowed."""
    assert spec.default is not MISSING
    if _is_valid(spec, value):
        return type(spec.default)(value)
    raise OptionError(
        f"additional_config[{KEY!r}][{spec.name!r}]={value!r} is not allowed. "
        f"Allowed: {_allowed(spec)}."
    )


def _is_valid(spec: Field, value: Any) -> bool:
    kind = type(spec.default)
    # bool is an int in Python; neither may stand for the other in a configuration.
    if isinstance(value, bool) != (kind is bool):
        return False
    if not isinstance(value, (int, float) if kind is float else kind):
        return False
    if kind is float and not math.isfinite(value):
        return False
    choices = spec.metadata["choices"]
    if choices is not None and value not in choices:
        return False
    minimum, maximum = spec.metadata["minimum"], spec.metadata["maximum"]
    return (minimum is None or value >= minimum) and (maximum is None or value <= maximum)

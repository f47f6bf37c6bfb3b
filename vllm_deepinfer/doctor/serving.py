"""Makes the configuration that `vllm serve` would make of the same arguments.

vLLM's own parser and configuration classes decide, and with them this package's platform: doctor
has no opinion of its own about what holds.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from vllm_deepinfer import envs
from vllm_deepinfer.doctor import absent_gpus
from vllm_deepinfer.doctor.findings import CONFIGURATION, Finding, error, not_checked
from vllm_deepinfer.installation import FOR_ANY, FOR_CPUS
from vllm_deepinfer.installation.prerequisites import PACKAGES
from vllm_deepinfer.models.deepseek_v41.presets import PRESETS, preset
from vllm_deepinfer.platforms.detect import PLATFORM_CLASSES

if TYPE_CHECKING:
    import argparse

    from vllm.config import VllmConfig

PROGRAM = "vllm-deepinfer doctor"

_BROKEN_BUILD = f"On a machine without GPU {FOR_CPUS}."
# What an import's error text holds, and what to do about it.
_IMPORT_FIXES = (
    ("No module named 'vllm'", FOR_ANY),
    ("libnuma", PACKAGES["libnuma.so.1"].fix()),
    ("torch_npu", "Uninstall torch-npu, or set TORCH_DEVICE_BACKEND_AUTOLOAD=0."),
    ("libhccl", "Source CANN's set_env.sh, or uninstall torch-npu where there is no NPU."),
    ("torchvision", _BROKEN_BUILD),
    ("torchaudio", _BROKEN_BUILD),
    ("torchcodec", _BROKEN_BUILD),
    ("metadata was found for vllm", _BROKEN_BUILD),
    ("Only one platform plugin", "Set VLLM_PLUGINS=deepinfer."),
    ("No module named", "vLLM's own requirements are not all installed; `pip check` lists them."),
    ("libcuda", f"Install the NVIDIA driver, or on a machine without GPU {FOR_CPUS}."),
)


@dataclass
class Serving:
    """A configuration as vLLM made it.

    config: None if it could not be made; `findings` say why.
    said: warnings that vLLM and this package logged on the way.
    """

    config: VllmConfig | None = None
    without_drafts: VllmConfig | None = None
    findings: list[Finding] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


def import_module(name: str) -> Finding | None:
    """Imports `name`; what went wrong as a finding, or None."""
    try:
        importlib.import_module(name)
    except Exception as problem:  # whatever it is, it is what the user came for
        text = f"{type(problem).__name__}: {problem}".splitlines()[0]
        fix = next((fix for part, fix in _IMPORT_FIXES if part in str(problem)), "")
        package = name.partition(".")[0]
        return error(f"import_{package}", f"`import {name}` fails: {text}", fix)
    return None


def use_platform(name: str, is_here: bool, device_bytes: int | None) -> Finding | None:
    """Makes platform `name` vLLM's for this process, wherever this is; a finding if it cannot.

    Modules of vLLM that were imported before keep the platform that they have seen.

    Args:
        is_here: this machine has the platform's devices.
        device_bytes: memory of each device that is not here, None if unknown.
    """
    import vllm.platforms

    module, _, class_name = PLATFORM_CLASSES[name].rpartition(".")
    try:
        tells_gpus = name == "sm100" and not is_here
        if tells_gpus:
            platform_class = absent_gpus.told_platform(PLATFORM_CLASSES[name], device_bytes)
        else:
            platform_class = getattr(importlib.import_module(module), class_name)
        vllm.platforms._current_platform = platform_class()
        if tells_gpus:
            absent_gpus.have_triton()
        _do_without_device(platform_class.device_type)
    except Exception as problem:
        return not_checked(
            CONFIGURATION,
            f"The options were not checked for {name}: {module} cannot be used here "
            f"({type(problem).__name__}: {problem}).",
            f"Run this on a machine with a vLLM for {name}.",
        )
    return None


def _do_without_device(device_type: str) -> None:
    """Lets a configuration be made for a device that is not here; nothing is computed on it."""
    import torch

    try:
        torch.device(device_type)
    except RuntimeError:  # torch does not know the name
        torch.utils.rename_privateuse1_backend(device_type)
    if device_type == "npu" and importlib.util.find_spec(envs.npu_module()) is None:
        # The platform refuses to start without the vendor's module unless another is named.
        os.environ["DEEPINFER_NPU_MODULE"] = __name__
        if not hasattr(torch, "npu"):  # what that module would have registered
            torch._register_device_module("npu", ModuleType("torch.npu"))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses what `vllm serve` would be given, with its own parser; exits with 2 if it is wrong."""
    from vllm.entrypoints.cli import serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = serve.make_arg_parser(FlexibleArgumentParser(prog=PROGRAM))
    # vLLM's own would be two screens of flags above the one line that matters.
    parser.usage = f"{PROGRAM} [MODEL] [flags of vllm serve]"
    args = parser.parse_args(list(arguments))
    if args.model_tag is not None:
        args.model = args.model_tag
    elif arguments and not _names_model(arguments):
        parser.error("options of vLLM are given without a model: doctor MODEL [OPTIONS]")
    return args


def _names_model(arguments: Sequence[str]) -> bool:
    return any(a.split("=")[0] in ("--model", "--config") for a in arguments)


def make_config(args: argparse.Namespace) -> Serving:
    """The configuration of these arguments.

    A preset of this package stands for a model of that size; a folder with a config.json is enough.
    """
    serving = Serving()
    with _model_folder(args.model) as folder, _listen(serving.said):
        args.model = folder
        serving.config = _attempt(args, serving)
        if serving.config is not None and _captures_graphs(serving.config):
            args.speculative_config = None
            serving.without_drafts = _attempt(args, serving)
    return serving


def _attempt(args: argparse.Namespace, serving: Serving) -> VllmConfig | None:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.cli import serve
    from vllm.usage.usage_lib import UsageContext

    try:
        serve.validate_parsed_serve_args(args)
        engine_args = AsyncEngineArgs.from_cli_args(args)
        # Nothing is tokenized here, and a folder with a config.json alone has no tokenizer.
        engine_args.skip_tokenizer_init = True
        return engine_args.create_engine_config(UsageContext.OPENAI_API_SERVER)
    except Exception as problem:
        serving.findings.append(error(CONFIGURATION, _sentence(problem)))
        return None


def _sentence(problem: Exception) -> str:
    """An exception's own words, without pydantic's frame around them."""
    errors = getattr(problem, "errors", None)
    if callable(errors) and type(problem).__name__ == "ValidationError":
        return "; ".join(e["msg"].removeprefix("Value error, ") for e in errors())
    text = str(problem).strip()
    return text or type(problem).__name__


def _captures_graphs(config: VllmConfig) -> bool:
    sizes = config.compilation_config.cudagraph_capture_sizes
    return bool(sizes) and config.speculative_config is not None


@contextlib.contextmanager
def _model_folder(model: str) -> Iterator[str]:
    if model not in PRESETS:
        yield model
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(preset(model)))
        yield folder


@contextlib.contextmanager
def _listen(said: list[str]) -> Iterator[None]:
    """Collects vLLM's warnings instead of printing them."""

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if text not in said:
                said.append(text)

    logger = logging.getLogger("vllm")
    handlers, level, collector = logger.handlers[:], logger.level, Collector(logging.WARNING)
    logger.handlers[:] = [collector]
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.handlers[:] = handlers
        logger.setLevel(level)


def loaded_contract_problems() -> list[Finding]:
    """The contract of upstream symbols over everything imported by now."""
    import vllm

    from vllm_deepinfer.contract import CONTRACT
    from vllm_deepinfer.contract.installed import check_loaded

    problems = check_loaded(CONTRACT, vllm.__version__)
    return [
        error("contract", f"vLLM {vllm.__version__}: {problem}.", "Install vLLM as released.")
        for problem in problems
    ]


def cpu_kernel_problems() -> list[Finding]:
    """Whether vLLM's kernels for CPUs load beside this build of torch."""
    import torch
    from vllm.platforms import current_platform

    current_platform.import_kernels()  # logs what it cannot load, and goes on
    # The one operation that vLLM's worker needs of them for this model.
    if hasattr(torch.ops._C, "init_cpu_memory_env"):
        return []
    return [
        error(
            "cpu_kernels",
            f"vLLM's kernels for CPUs do not load beside torch {torch.__version__}.",
            f"In a new environment {FOR_CPUS}.",
        )
    ]


def platform_in_force() -> str:
    """Qualified name of the class that vLLM uses for this machine."""
    from vllm.platforms import current_platform

    kind: Any = type(current_platform)
    return f"{kind.__module__}.{kind.__qualname__}"

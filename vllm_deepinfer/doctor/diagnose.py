"""Runs every check that can run here and puts what it found into one document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_deepinfer import __version__
from vllm_deepinfer.doctor import absent_gpus, versions
from vllm_deepinfer.doctor.checkpoint import checkpoint_bytes, read_config
from vllm_deepinfer.doctor.findings import Finding, Level, error, not_checked, note
from vllm_deepinfer.doctor.machine_checks import check_machine
from vllm_deepinfer.doctor.state import State, look
from vllm_deepinfer.installation import FOR_ANY
from vllm_deepinfer.models.deepseek_v41.presets import PRESETS
from vllm_deepinfer.platforms.detect import PLATFORM_CLASSES
from vllm_deepinfer.platforms.probes import VllmBuild
from vllm_deepinfer.registration import ARCHITECTURE

if TYPE_CHECKING:
    from vllm_deepinfer.doctor.serving import Serving

FORMAT = 1
_SERVE_MODULE = "vllm.entrypoints.cli.serve"


def diagnose(
    arguments: Sequence[str],
    platform: str | None = None,
    device_bytes: int | None = None,
    state: State | None = None,
) -> dict[str, Any]:
    """The document of this package's docstring.

    Args:
        arguments: what `vllm serve` would be given: a model and vLLM's flags; may be empty.
        platform: check the options for this platform instead of the one in force.
        device_bytes: memory of each accelerator, None if unknown.
        state: the machine; looked at if None.

    Raises:
        SystemExit: with 2, where vLLM's parser does not take `arguments`.
    """
    state = look() if state is None else state
    document = _machine_part(state)
    asked = platform or state.platform
    findings = check_machine(state)
    if asked != state.platform:  # options for another machine than this one
        findings = [replace(f, level=Level.NOTE) if f.check == "platform" else f for f in findings]
    problems = _import_vllm(state)
    has_torch = all(problem.check != "import_torch" for problem in problems)
    if not problems:
        problems = _prepare_vllm(state, platform, device_bytes)
    findings += problems
    if not problems:
        _vllm_part(document, findings, state, arguments, asked, device_bytes)
    elif arguments:
        findings.append(not_checked("model", "The options were not checked."))
        if has_torch:
            document["model"] = _from_config_alone(findings, arguments[0])
    document["findings"] = [finding.as_json() for finding in findings]
    document["ok"] = not any(finding.is_in_the_way for finding in findings)
    return document


def _machine_part(state: State) -> dict[str, Any]:
    found = state.detection
    return {
        "format": FORMAT,
        "ok": False,
        "package": __version__,
        "platform": {
            "name": state.platform,
            "class": None if found is None else found.qualname,
            "reason": state.detection_error if found is None else found.reason,
            "in_force": None,
            "checked": None,
        },
        "vllm_build": state.build.value,
        "versions": versions.table(state),
        "platform_plugins": list(state.plugins),
        "extensions": dict(state.extensions),
        "kernels": state.isa,
        "findings": [],
        "vllm_warnings": [],
        "model": None,
    }


def _import_vllm(state: State) -> list[Finding]:
    """What keeps torch or vLLM from being imported."""
    from vllm_deepinfer.doctor.serving import import_module

    problem = import_module("torch")
    if state.build is VllmBuild.ABSENT:
        return [
            error("import_vllm", "vLLM is not installed.", FOR_ANY),
            *([problem] if problem else []),
        ]
    problem = problem or import_module("vllm")
    return [] if problem is None else [problem]


def _prepare_vllm(state: State, asked: str | None, device_bytes: int | None) -> list[Finding]:
    """What keeps the asked platform from being used, or vLLM's server from being imported."""
    from vllm_deepinfer.doctor.serving import import_module, use_platform

    problem = None
    if asked is not None:  # before the server's modules, which keep the platform they see
        problem = use_platform(asked, asked == state.platform, device_bytes)
    problem = problem or import_module(_SERVE_MODULE)
    return [] if problem is None else [problem]


def _from_config_alone(findings: list[Finding], model: str) -> dict[str, Any] | None:
    """What the model's config.json tells without vLLM; None for a model that vLLM downloads."""
    try:
        content = read_config(model)
        if content is None:
            return None
        part = {"model": model, "architectures": content.get("architectures")}
        if ARCHITECTURE in (part["architectures"] or ()):
            part["checkpoint"] = checkpoint_bytes(content)
        return part
    except ValueError as problem:  # not JSON, or ConfigError
        findings.append(error("model_config", f"{model}: {problem}"))
        return None


def _vllm_part(
    document: dict[str, Any],
    findings: list[Finding],
    state: State,
    arguments: Sequence[str],
    platform: str | None,
    device_bytes: int | None,
) -> None:
    from vllm_deepinfer.doctor import serving
    from vllm_deepinfer.platforms.our_model import is_our_model

    findings += serving.loaded_contract_problems()
    in_force = serving.platform_in_force()
    document["platform"]["in_force"] = in_force
    document["platform"]["checked"] = platform
    if platform is not None and platform != state.platform:
        text = f"This machine is not {platform}: its devices and their software were not checked."
        if platform == "sm100":
            text += f" The options were judged for {absent_gpus.described(device_bytes)}."
        findings.append(not_checked("device", text))
    elif platform is not None:
        expected = PLATFORM_CLASSES[platform]
        if in_force != expected:
            findings.append(error("platform_in_force", f"vLLM uses {in_force}, not {expected}."))
        elif state.build is VllmBuild.CPU and not state.missing_libraries:
            findings += serving.cpu_kernel_problems()
    if not arguments:
        return
    args = serving.parse(arguments)
    model = args.model
    made = serving.make_config(args)
    # Not those in which the platform refuses what a check of the machine has found.
    found = {f"{finding.message} {finding.fix}" for finding in findings}
    findings += [finding for finding in made.findings if finding.message not in found]
    document["vllm_warnings"] = made.said
    part = document["model"] = _from_config_alone(findings, model)
    if made.config is None:
        return
    if part is None:
        architectures = made.config.model_config.architectures
        part = document["model"] = {"model": model, "architectures": architectures}
    if not is_our_model(made.config):
        text = f"{model} is not DeepSeek-V4.1: vLLM serves it as without this package."
        findings.append(note("model", text))
    elif platform is None:
        findings.append(not_checked("model", "Nothing of this package serves the model here."))
    else:
        memory_bytes = state.memory_bytes if platform == "cpu" else device_bytes
        part.update(_model_part(findings, made, model, platform, memory_bytes))


def _model_part(
    findings: list[Finding], made: Serving, model: str, platform: str, memory_bytes: int | None
) -> dict[str, Any]:
    from vllm_deepinfer.config import DeepInferConfig
    from vllm_deepinfer.doctor import features
    from vllm_deepinfer.doctor.memory import plan_memory
    from vllm_deepinfer.doctor.model_checks import Case, check_model

    config = made.config
    options = DeepInferConfig.from_vllm(config)
    graphs = features.graphs(config, made.without_drafts)
    plan = plan_memory(config) if features.runs_own_class(platform, options) else None
    case = Case(config, options, platform, _folder(model), graphs, plan, memory_bytes)
    findings += check_model(case)
    part: dict[str, Any] = {}
    part["features"] = [asdict(feature) for feature in features.features(config, platform)]
    part["limits"] = [
        {"flag": rule.flag, "allowed": list(rule.allowed), "why": rule.why}
        for rule in features.limits(platform, options)
    ]
    part["graphs"] = {**asdict(graphs), "covers_largest_decode": graphs.covers_largest_decode}
    part["engram"] = asdict(features.engram_tables(config, platform))
    part["memory"] = None if plan is None else plan.as_json()
    return part


def _folder(model: str) -> Path | None:
    """The folder with a model's files; None for a preset and for a name that vLLM downloads."""
    path = Path(model)
    return path if model not in PRESETS and (path / "config.json").is_file() else None

"""Every Triton kernel of the V2 runner is accounted for, by name and parameters.

Claim: each implemented kernel exists in the installed vLLM with exactly the parameters of its torch
form, and each kernel that a supported vLLM launches below `vllm.v1.worker.gpu` is either
implemented or refused with a reason; what a release changed is what the table of releases says. If
this breaks, an upgrade moved, changed or added a kernel. (The parameters in other releases:
tests/packaging/test_upstream_contract_holds.py.)
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import vllm
from upstream_sources import SOURCES, source, version_of

from vllm_deepinfer.contract.releases import RELEASES, ContractError
from vllm_deepinfer.runner_kernels import (
    KERNELS,
    REFUSED,
    kernel_parameters,
    kernels_of,
    refused_kernels,
)
from vllm_deepinfer.runner_kernels.catalogue import PACKAGE, find_kernels
from vllm_deepinfer.runner_kernels.launch import check_parameters, refusal

ROOT = Path(vllm.__path__[0])


def module_tree(module: str) -> ast.Module:
    path = ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def launched_kernels(root: Path) -> set[str]:
    """Names, found in the syntax tree, of jitted functions that are launched as name[grid](...)."""
    jitted, launched = set(), set()
    for path in (root / "v1" / "worker" / "gpu").rglob("*.py"):
        module = ".".join(("vllm", *path.relative_to(root).with_suffix("").parts))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
                if any(text.startswith("triton.jit") for text in decorators):
                    jitted.add((module, node.name))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
                launched.add(ast.unparse(node.func.value))
    return {f"{module}.{name}" for module, name in jitted if name in launched}


@pytest.mark.parametrize("kernel", KERNELS)
def test_parameters_are_the_kernels(kernel):
    module, name = kernel.rsplit(".", 1)
    (function,) = (
        node
        for node in module_tree(module).body
        if isinstance(node, ast.FunctionDef) and node.name == name
    )
    assert kernel_parameters(kernel) == tuple(argument.arg for argument in function.args.args)


@pytest.mark.parametrize("release", SOURCES)
def test_every_kernel_is_implemented_or_refused(release):
    version, root = version_of(release), source(release) / "vllm"
    implemented = {kernel for kernel in kernels_of(version) if kernel.startswith(PACKAGE)}
    refused = set(refused_kernels(version))
    assert implemented | refused == launched_kernels(root)
    assert not implemented & refused


def test_kernels_are_found_without_importing_triton():
    assert set(find_kernels(ROOT.parent)) == launched_kernels(ROOT)


@pytest.mark.parametrize(
    ("before", "release"), zip(RELEASES, RELEASES[1:], strict=False), ids=lambda r: r.tag
)
def test_the_table_of_releases_names_the_kernels_each_changed(before, release):
    now, earlier = kernels_of(release.version), kernels_of(before.version)
    changed = {name for name in now if now[name] is not earlier.get(name)}
    assert changed == {f"{PACKAGE}.{name}" for name in release.kernels}
    added = set(refused_kernels(release.version)) - set(refused_kernels(before.version))
    assert added == {f"{PACKAGE}.{name}" for name in release.refused_kernels}


def test_a_kernel_with_other_parameters_is_refused_at_registration():
    kernel = "vllm.v1.worker.gpu.input_batch._post_update_kernel"
    of_032, of_033 = kernel_parameters(kernel, (0, 32)), kernel_parameters(kernel, (0, 33))
    check_parameters(kernel, of_032, of_032)
    with pytest.raises(ContractError, match="_post_update_kernel.*draft_tokens_ptr"):
        check_parameters(kernel, of_033, of_032)


def test_a_later_form_takes_positions_and_keywords():
    from vllm_deepinfer.runner_kernels.forms import later_form, positional_names

    def earlier(first, second, *, grid):
        return first, second, grid

    @later_form(earlier, inserted={"first": ("between",)})
    def later(*, between, **arguments):
        return earlier(**arguments), between

    assert positional_names(later) == ("first", "between", "second")
    assert later(1, 2, second=3, grid=4) == ((1, 3, 4), 2)


@pytest.mark.parametrize("kernel", [*REFUSED, "vllm.v1.worker.gpu.later._new_kernel"])
def test_a_refusal_names_the_kernel_and_what_to_change(kernel):
    with pytest.raises(NotImplementedError) as raised:
        refusal(kernel, *([REFUSED[kernel]] if kernel in REFUSED else []))(1, option=2)
    assert kernel in str(raised.value)
    assert REFUSED.get(kernel, "newer") in str(raised.value)

"""Every Triton kernel of the V2 runner is accounted for, by name and parameters.

Claim: each implemented kernel exists in the installed vLLM with exactly the parameters of its torch
form, and each kernel vLLM launches below `vllm.v1.worker.gpu`, in the installed release and in
0.33.0, is either implemented or refused with a reason. If this breaks, an upgrade moved, changed or
added a kernel. (The parameters in 0.33.0: tests/packaging/test_upstream_contract_holds.py.)
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import vllm

from vllm_deepinfer.compat import ContractError
from vllm_deepinfer.runner_kernels import (
    KERNELS,
    REFUSED,
    VERSION,
    kernel_parameters,
    kernels_of,
    refused_kernels,
)
from vllm_deepinfer.runner_kernels.catalogue import PACKAGE
from vllm_deepinfer.runner_kernels.launch import check_parameters, find_kernels, refusal

ROOT = Path(vllm.__path__[0])
SOURCE_033 = Path(__file__).parents[2] / ".cache" / "vllm-0.33.0-src" / "vllm"
RELEASES = [(VERSION, ROOT), ((0, 33), SOURCE_033)]


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


@pytest.mark.parametrize(("version", "root"), RELEASES, ids=str)
def test_every_kernel_is_implemented_or_refused(version, root):
    assert root.is_dir(), "the source of vLLM 0.33.0 is missing: run `make upstream-source`"
    implemented = {kernel for kernel in kernels_of(version) if kernel.startswith(PACKAGE)}
    refused = set(refused_kernels(version))
    assert implemented | refused == launched_kernels(root)
    assert not implemented & refused


def test_kernels_are_found_without_importing_triton():
    assert set(find_kernels()) == launched_kernels(ROOT)


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

"""Every Triton kernel of the V2 runner is accounted for, by name and parameters.

Claim: each implemented kernel exists in the installed vLLM with exactly the parameters of its torch
form, and each kernel vLLM launches below `vllm.v1.worker.gpu` is either implemented or refused with
a reason. If this breaks, an upgrade moved, changed or added a kernel.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import vllm

from vllm_deepinfer.ops.runner import KERNELS, REFUSED, kernel_parameters
from vllm_deepinfer.ops.runner.catalogue import PACKAGE
from vllm_deepinfer.ops.runner.launch import find_kernels, refusal

ROOT = Path(vllm.__path__[0])


def module_tree(module: str) -> ast.Module:
    path = ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def launched_kernels() -> set[str]:
    """Names, found in the syntax tree, of jitted functions that are launched as name[grid](...)."""
    jitted, launched = set(), set()
    for path in (ROOT / "v1" / "worker" / "gpu").rglob("*.py"):
        module = ".".join(("vllm", *path.relative_to(ROOT).with_suffix("").parts))
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


def test_every_kernel_is_implemented_or_refused():
    implemented = {kernel for kernel in KERNELS if kernel.startswith(PACKAGE)}
    assert implemented | set(REFUSED) == launched_kernels()
    assert not implemented & set(REFUSED)


def test_kernels_are_found_without_importing_triton():
    assert set(find_kernels()) == launched_kernels()


@pytest.mark.parametrize("kernel", [*REFUSED, "vllm.v1.worker.gpu.later._new_kernel"])
def test_a_refusal_names_the_kernel_and_what_to_change(kernel):
    with pytest.raises(NotImplementedError) as raised:
        refusal(kernel)(1, option=2)
    assert kernel in str(raised.value)
    assert REFUSED.get(kernel, "newer") in str(raised.value)

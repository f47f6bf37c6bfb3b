"""Loads Triton kernels from vLLM's source text without importing their module.

A release that is not installed cannot be imported: its modules expect their own versions of all the
others. A kernel needs little of that: the functions it calls and some constants.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

from vllm.triton_utils import HAS_TRITON, tl, triton

LIBRARIES = {"tl": tl, "triton": triton, "HAS_TRITON": HAS_TRITON}


@cache
def kernel_names(root: Path, module: str) -> dict[str, Any]:
    """The jitted functions and Triton constants of `module`, and those it imports, from the source
    below `root`, the folder that holds the package `vllm`."""
    names: dict[str, Any] = {**LIBRARIES, "__name__": module}
    path = root.joinpath(*module.split(".")).with_suffix(".py")
    if not path.is_file():  # a package: no kernel is in one
        return names
    kept: list[ast.stmt] = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm.v1."):
            imported = kernel_names(root, node.module)
            for alias in node.names:
                if alias.name in imported:
                    names[alias.asname or alias.name] = imported[alias.name]
        elif _is_kernel(node) or _is_constant(node):
            kept.append(node)
    # With the file's own path and line numbers, by which the interpreter finds a kernel's source.
    exec(compile(ast.Module(kept, type_ignores=[]), str(path), "exec"), names)
    return names


def _is_kernel(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and any(
        ast.unparse(decorator).startswith("triton.jit") for decorator in node.decorator_list
    )


def _is_constant(node: ast.stmt) -> bool:
    """Whether it assigns a number, or a Triton constant."""
    if not isinstance(node, ast.Assign):
        return False
    is_number = not any(isinstance(n, (ast.Name, ast.Call)) for n in ast.walk(node.value))
    return is_number or "tl.constexpr" in ast.unparse(node.value)

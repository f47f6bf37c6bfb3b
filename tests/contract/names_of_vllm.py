"""Reads off a module's syntax tree which names of vLLM's it takes, and of which modules."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field

_FULL_NAME = re.compile(r"vllm(\.\w+)+")
_BY_NAME = ("getattr", "hasattr", "setattr")


@dataclass
class NamesOfVllm:
    """What one source file takes of vLLM's.

    names: (module, name), the module being the one that the name is taken from.
    members: (module, class, member) of classes that are taken so.
    methods: (module, class, method) of classes that are taken so and derived from here; of these
        methods some are vLLM's and replaced here, the others new.
    modules: those that are imported, or named in a string.
    strings: those that look like full names and are neither modules nor names in one.
    """

    names: set[tuple[str, str]] = field(default_factory=set)
    members: set[tuple[str, str, str]] = field(default_factory=set)
    methods: set[tuple[str, str, str]] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)
    strings: set[str] = field(default_factory=set)


class _Reader(ast.NodeVisitor):
    def __init__(self, is_module: Callable[[str], bool]) -> None:
        self.found = NamesOfVllm()
        self._is_module = is_module
        self._modules: dict[str, str] = {}
        self._names: dict[str, tuple[str, str]] = {}

    def visit_Import(self, node: ast.Import) -> None:  # noqa: N802 - ast's name
        for alias in node.names:
            if alias.name.partition(".")[0] == "vllm":
                self._modules[alias.asname or "vllm"] = alias.name if alias.asname else "vllm"
                self.found.modules.add(alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:  # noqa: N802 - ast's name
        if node.level or (node.module or "").partition(".")[0] != "vllm":
            return
        for alias in node.names:
            bound, full_name = alias.asname or alias.name, f"{node.module}.{alias.name}"
            if self._is_module(full_name):
                self._modules[bound] = full_name
                self.found.modules.add(full_name)
            else:
                self._names[bound] = (node.module, alias.name)
                self.found.names.add((node.module, alias.name))

    def read_uses(self, tree: ast.AST) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                self._take(node.value, node.attr)
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in _BY_NAME
                and isinstance(node.args[1], ast.Constant)
            ):
                self._take(node.args[0], node.args[1].value)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                self._take_string(node.value)
            elif isinstance(node, ast.ClassDef):
                self._take_methods(node)

    def _take_methods(self, node: ast.ClassDef) -> None:
        bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
        for base in bases:
            if isinstance(base, ast.Name) and base.id in self._names:
                self.found.methods.update(
                    (*self._names[base.id], method.name)
                    for method in node.body
                    if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef))
                )

    def _take(self, owner: ast.expr, name: str) -> None:
        module = self._module_of(owner)
        if module is not None and not self._is_module(f"{module}.{name}"):
            if not (name.startswith("__") and name != "__version__"):
                self.found.names.add((module, name))
        elif isinstance(owner, ast.Name) and owner.id in self._names:
            self.found.members.add((*self._names[owner.id], name))

    def _module_of(self, owner: ast.expr) -> str | None:
        if isinstance(owner, ast.Name):
            return self._modules.get(owner.id)
        if isinstance(owner, ast.Attribute):
            module = self._module_of(owner.value)
            if module is not None and self._is_module(f"{module}.{owner.attr}"):
                return f"{module}.{owner.attr}"
        return None

    def _take_string(self, text: str) -> None:
        if not _FULL_NAME.fullmatch(text):
            return
        module, _, name = text.rpartition(".")
        if self._is_module(text):
            self.found.modules.add(text)
        elif self._is_module(module):
            self.found.names.add((module, name))
        else:
            self.found.strings.add(text)


def names_of_vllm(tree: ast.Module, is_module: Callable[[str], bool]) -> NamesOfVllm:
    """What the source behind `tree` takes of vLLM's, at its top, in functions and in strings.

    Args:
        is_module: whether a full name is a module or package of vLLM's.
    """
    reader = _Reader(is_module)
    reader.visit(tree)
    reader.read_uses(tree)
    return reader.found

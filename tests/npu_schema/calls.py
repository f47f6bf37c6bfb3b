"""Calls of torch_npu in source files, and whether an operator's schema takes them.

Nothing here imports torch_npu: schemas are texts, from the real wheel or from the record of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

OPERATORS = ("torch_npu", "torch.ops.npu")
DEVICE = ("torch.npu", "self._npu")
"""Ways to write ``torch_npu.npu``, which is ``torch.npu`` once it is imported."""


@dataclass(frozen=True)
class Use:
    """One place where a source file names something of torch_npu.

    Attributes:
        name: below the module, such as ``npu_rms_norm`` or ``npu.get_soc_version``.
        function: the function it stands in, or ``<module>``.
        call: the call, or None where the name is a value.
    """

    file: str
    line: int
    function: str
    name: str
    call: ast.Call | None

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def is_operator(self) -> bool:
        return self.name.startswith(("npu_", "_npu_"))


def uses(root: Path, folder: Path) -> list[Use]:
    """Every use of torch_npu in the Python files of ``folder``, named from ``root``."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text()
        if "npu" in text:
            found.extend(_uses_of_module(ast.parse(text), str(path.relative_to(root))))
    return found


def _uses_of_module(tree: ast.Module, file: str) -> Iterator[Use]:
    def walk(node: ast.AST, function: str) -> Iterator[Use]:
        for child in ast.iter_child_nodes(node):
            call = child if isinstance(child, ast.Call) else None
            name = _name_in_torch_npu(call.func if call else child)
            if name:
                yield Use(file, child.lineno, function, name, call)
                inner: Sequence[ast.AST] = (*call.args, *call.keywords) if call else ()
                for part in inner:
                    yield from walk(ast.Module([part], []), function)
                continue
            inside = child.name if isinstance(child, ast.FunctionDef) else function
            yield from walk(child, inside)

    return walk(tree, "<module>")


def _name_in_torch_npu(node: ast.AST) -> str | None:
    if not isinstance(node, ast.Attribute):
        return None
    dotted = ast.unparse(node)
    for module in OPERATORS:
        if dotted.startswith(f"{module}."):
            return dotted.removeprefix(f"{module}.").removesuffix(".default")
    for module in DEVICE:
        if dotted.startswith(f"{module}."):
            return f"npu.{dotted.removeprefix(f'{module}.')}"
    return None


# -- binding --------------------------------------------------------------------------------------


def problem_of(use: Use, schemas: Mapping[str, Sequence[str]]) -> str:
    """Why no schema of the operator takes the call, with its place; empty if one does."""
    if use.call is None:
        return f"{use.place}: {use.name} is not called, so nothing can be checked"
    overloads = schemas.get(use.name)
    if not overloads:
        return f"{use.place}: torch_npu has no operator {use.name}"
    problems = [_mismatch(use.call, torch._C.parse_schema(text)) for text in overloads]
    if "" in problems:
        return ""
    return f"{use.place}: {use.name} {problems[0]}; its schema is {overloads[0]}"


def _mismatch(call: ast.Call, schema: torch._C.FunctionSchema) -> str:
    """What is wrong with the call, as a clause; empty if nothing is."""
    if any(isinstance(x, ast.Starred) for x in call.args) or any(
        keyword.arg is None for keyword in call.keywords
    ):
        return "is called with * or **, which cannot be checked"
    places = [argument for argument in schema.arguments if not argument.kwarg_only]
    if len(call.args) > len(places):
        return f"takes {len(places)} arguments by place, not {len(call.args)}"
    given = {place.name: node for place, node in zip(places, call.args, strict=False)}
    known = {argument.name: argument for argument in schema.arguments}
    for keyword in call.keywords:
        if keyword.arg not in known:
            return f"has no argument {keyword.arg!r}"
        if keyword.arg in given:
            return f"gets {keyword.arg!r} twice"
        given[keyword.arg] = keyword.value
    for name, argument in known.items():
        if name not in given:
            if not argument.has_default_value():
                return f"needs the argument {name!r}"
        elif not _literal_fits(given[name], str(argument.type)):
            return f"takes {argument.type} as {name!r}, not {ast.unparse(given[name])}"
    return ""


def _literal_fits(node: ast.expr, kind: str) -> bool:
    """Whether a value that is written down may stand for an argument of that type; what is computed
    cannot be told from the source."""
    optional = kind.startswith("Optional[")
    kind = kind.removeprefix("Optional[").removesuffix("]") if optional else kind
    if isinstance(node, ast.List | ast.Tuple):
        return kind.startswith("List[")
    if not isinstance(node, ast.Constant):
        return True
    if node.value is None:
        return optional
    allowed = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}
    if isinstance(node.value, bool):
        return kind == "bool"
    return isinstance(node.value, allowed.get(kind, ()))

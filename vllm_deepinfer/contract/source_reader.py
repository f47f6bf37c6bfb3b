"""Checks the contract against vLLM's source text, without importing it.

This is how a release is covered that has no build for the machine at hand.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from vllm_deepinfer.contract.symbols import Symbol, compare_parameters

_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def check_source(contract: Iterable[Symbol], root: Path, version: tuple[int, int]) -> list[str]:
    """One sentence for each symbol of `contract` that the source does not bear out.

    Args:
        contract: the symbols; lines not meant for `version` are left out.
        root: the folder that holds the package `vllm`.
        version: (major, minor) of that source.
    """
    problems = []
    for symbol in contract:
        if not symbol.applies_to(version):
            continue
        problem = _check_symbol(symbol, root)
        if problem is not None:
            problems.append(f"{symbol} {problem}")
    # Millions of small objects, which every later collection of garbage would walk.
    _parse.cache_clear()
    return problems


def _check_symbol(symbol: Symbol, root: Path) -> str | None:
    tree = _parse(root, symbol.module)
    if tree is None:
        return "is in a module that does not exist"
    owner_name, _, member = symbol.name.rpartition(".")
    owner = find_class(root, symbol.module, owner_name) if owner_name else (symbol.module, tree)
    if owner is None:
        return f"belongs to class {owner_name}, which does not exist"
    if symbol.form == "fields":
        return _check_fields(symbol, root)
    found = _find_member(root, *owner, member)
    if found is None:
        return "does not exist"
    if symbol.form == "uses":
        return None
    if not isinstance(found, _Function):
        return "is not a function"
    return _check_function(symbol, found)


def _check_fields(symbol: Symbol, root: Path) -> str | None:
    found = find_class(root, symbol.module, symbol.name)
    if found is None:
        return "does not exist"
    module, owner = found
    missing = [name for name in symbol.parameters if not _has_field(root, module, owner, name)]
    return f"has no field {', '.join(missing)}" if missing else None


def _has_field(root: Path, module: str, owner: ast.ClassDef, name: str) -> bool:
    for _, cls in with_bases(root, module, owner):
        if any(name in _names(node) for node in cls.body):
            return True
        for node in ast.walk(cls):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and node.attr == name
                and isinstance(node.value, ast.Name)
                and node.value.id == "self"
            ):
                return True
    return False


def _check_function(symbol: Symbol, function: ast.FunctionDef) -> str | None:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    num_required = len(positional) - len(arguments.defaults)
    required = [a.arg for a in positional[:num_required]]
    required += [
        a.arg
        for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    ]
    return compare_parameters(
        symbol,
        [a.arg for a in (*positional, *arguments.kwonlyargs)],
        required,
        arguments.vararg is not None or arguments.kwarg is not None,
    )


@cache
def _parse(root: Path, module: str) -> ast.Module | None:
    path = module_path(root, module)
    return None if path is None else ast.parse(path.read_text(encoding="utf-8"), str(path))


def module_path(root: Path, module: str) -> Path | None:
    """The file of a module or package below `root`, None if there is none."""
    base = root.joinpath(*module.split("."))
    candidates = (base.with_name(f"{base.name}.py"), base / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body, those under `if` and `try` included, in order."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try)):
            yield from _statements(node.body)
            yield from _statements(node.orelse)
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                yield from _statements(handler.body)


def _names(node: ast.stmt) -> tuple[str, ...]:
    """The names a statement binds, imports left out."""
    if isinstance(node, (*_Function, ast.ClassDef)):
        return (node.name,)
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return (node.target.id,)
    if isinstance(node, ast.Assign):
        return tuple(target.id for target in node.targets if isinstance(target, ast.Name))
    return ()


def _find_member(
    root: Path, module: str, owner: ast.Module | ast.ClassDef, name: str
) -> ast.stmt | None:
    """The statement that binds `name` in a module, or in a class or one of its bases.

    For a name that the module imports from another one below `root`, the statement there.
    """
    if isinstance(owner, ast.Module):
        for node in _statements(owner.body):
            if name in _names(node):
                return node
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                for alias in node.names:
                    if _bound_name(alias) == name:
                        return _follow(root, module, node, alias)
        return None
    for _, cls in with_bases(root, module, owner):
        for node in _statements(cls.body):
            if name in _names(node):
                return node
    return None


def _bound_name(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _follow(
    root: Path, module: str, node: ast.Import | ast.ImportFrom, alias: ast.alias
) -> ast.stmt | None:
    """What an import in `module` binds; itself where that is a module or lies elsewhere."""
    if isinstance(node, ast.Import):
        return node
    source = _source_of(root, module, node)
    tree = _parse(root, source)
    if tree is None or module_path(root, f"{source}.{alias.name}") is not None:
        return node
    return _find_member(root, source, tree, alias.name)


def _source_of(root: Path, module: str, node: ast.ImportFrom) -> str:
    """Full name of the module that a `from ... import` in `module` reads."""
    if node.level == 0:
        return node.module or ""
    path = module_path(root, module)
    parts = module.split(".")
    # A package is its own first level.
    num_dropped = node.level - (path is not None and path.name == "__init__.py")
    kept = parts[: len(parts) - num_dropped]
    return ".".join([*kept, *([node.module] if node.module else [])])


def find_class(root: Path, module: str, name: str) -> tuple[str, ast.ClassDef] | None:
    """(module, definition) of a class, following `from ... import`; nested classes by dots."""
    tree = _parse(root, module)
    if tree is None:
        return None
    first, *rest = name.split(".")
    for node in _statements(tree.body):
        if isinstance(node, ast.ClassDef) and node.name == first:
            for part in rest:
                node = next(
                    (n for n in node.body if isinstance(n, ast.ClassDef) and n.name == part), None
                )
                if node is None:
                    return None
            return module, node
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if _bound_name(alias) == first:
                    source = _source_of(root, module, node)
                    return find_class(root, source, ".".join([alias.name, *rest]))
    return None


def with_bases(root: Path, module: str, owner: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
    """A class and its bases inside the package, depth first."""
    yield module, owner
    for base in owner.bases:
        if isinstance(base, ast.Subscript):  # Generic[T]
            base = base.value
        if isinstance(base, ast.Name):
            found = find_class(root, module, base.id)
            if found is not None:
                yield from with_bases(root, *found)

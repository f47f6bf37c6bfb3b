"""Every name of vLLM's that this package takes has its line in the contract.

Claim: each name that is imported from vLLM or read off one of its modules, each member of a class
taken so, each method of such a class that a class here replaces, and each full name in a string is
in the contract, and each module has at least one line. If this breaks, a release that moved or
changed it is not found out before a user's server ends.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from contract.names_of_vllm import NamesOfVllm, names_of_vllm
from upstream_sources import RELEASES, SOURCES, source, version_of

import vllm_deepinfer
from vllm_deepinfer.contract import CONTRACT
from vllm_deepinfer.contract.kernels import kernel_lines
from vllm_deepinfer.contract.source_reader import (
    check_source,
    find_class,
    module_path,
    with_bases,
)
from vllm_deepinfer.contract.symbols import Symbol, uses

PACKAGE = Path(vllm_deepinfer.__file__).parent
# The contract itself names everything.
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.parent != PACKAGE / "contract"]
LINES = {*CONTRACT, *(line for release in RELEASES for line in kernel_lines(release.version))}
# Groups of entry points, in no module.
GROUPS = {("vllm", "platform_plugins"), ("vllm", "general_plugins")}
# Compiled, or nothing without what is; doctor puts an empty module in the place of each.
EXTENSIONS = {("vllm", "_C_stable_libtorch"), ("vllm", "vllm_flash_attn")}
# What names that are taken as objects are; None for what is not vLLM's.
CLASSES_OF = {
    ("vllm.config.vllm", "envs"): ("vllm.envs", ""),
    ("vllm.model_executor.models", "ModelRegistry"): (
        "vllm.model_executor.models.registry",
        "_ModelRegistry",
    ),
    ("vllm.platforms", "current_platform"): ("vllm.platforms.interface", "Platform"),
    ("vllm.renderers.registry", "RENDERER_REGISTRY"): (
        "vllm.renderers.registry",
        "RendererRegistry",
    ),
    ("vllm.triton_utils", "triton"): None,
}


def full_names(line: Symbol) -> set[str]:
    """What one line of the contract vouches for, each name with its module."""
    fields = line.parameters if line.form == "fields" else ()
    names = {line.name, line.name.partition(".")[0], *(f"{line.name}.{field}" for field in fields)}
    return {f"{line.module}:{name}" for name in names}


VOUCHED_FOR = set().union(*map(full_names, LINES))


@cache
def is_module(name: str) -> bool:
    """Whether a release has the module or package."""
    return any(
        module_path(source(release), name) is not None
        or source(release).joinpath(*name.split(".")).is_dir()
        for release in SOURCES
    )


@cache
def used() -> NamesOfVllm:
    """What all files of the package take."""
    found = NamesOfVllm()
    for path in FILES:
        of_file = names_of_vllm(ast.parse(path.read_text(encoding="utf-8")), is_module)
        for kind, names in vars(of_file).items():
            getattr(found, kind).update(names)
    return found


@cache
def owners(module: str, name: str) -> frozenset[tuple[str, str]]:
    """(module, class) of a class and its bases, in every release."""
    found = {(module, name)}
    for release in SOURCES:
        root = source(release)
        cls = find_class(root, module, name)
        if cls is not None:
            found.update((base_module, base.name) for base_module, base in with_bases(root, *cls))
    return frozenset(found)


def is_vouched_for(module: str, name: str, member: str) -> bool:
    of_class = CLASSES_OF.get((module, name), (module, name))
    if of_class is None:
        return True
    module, name = of_class
    if not name:
        return f"{module}:{member}" in VOUCHED_FOR
    return any(f"{m}:{c}.{member}" in VOUCHED_FOR for m, c in owners(module, name))


def test_names_that_are_taken_have_a_line():
    missing = {
        (m, n) for m, n in used().names - GROUPS - EXTENSIONS if f"{m}:{n}" not in VOUCHED_FOR
    }
    assert missing == set()


def test_members_of_classes_that_are_taken_have_a_line():
    assert {member for member in used().members if not is_vouched_for(*member)} == set()


def test_methods_that_are_replaced_have_a_line():
    unvouched = {method for method in used().methods if not is_vouched_for(*method)}
    lines = [uses(module, f"{name}.{method}") for module, name, method in unvouched]
    replaced = set()
    for release in SOURCES:
        absent = check_source(lines, source(release), version_of(release))
        replaced |= set(map(str, lines)) - {problem.partition(" ")[0] for problem in absent}
    assert replaced == set()


def test_modules_that_are_named_exist_and_have_a_line():
    modules = {line.module for line in LINES}
    missing = {
        name
        for name in used().modules
        if name not in modules and not any(other.startswith(f"{name}.") for other in modules)
    }
    assert missing <= {".".join(extension) for extension in EXTENSIONS}
    assert used().strings == set()


SAMPLE = """
import vllm.a.b
import vllm.a.c as renamed
from other import vllm_like

def function():
    import vllm
    from vllm.a import b as module, Taken
    from vllm.a.c import Base
    vllm.__version__, vllm.a.b.chained, renamed.by_alias, module.by_import, module.__name__
    getattr(module, "by_getattr", None)
    Taken.member
    class Derived(Base[int], vllm_like):
        def method(self): ...
    "vllm.a.b", "vllm.a.c.in_a_string", "vllm.gone.thing", "vllm.a is prose"
"""


def test_every_way_to_take_a_name_is_seen():
    found = names_of_vllm(
        ast.parse(SAMPLE), {"vllm", "vllm.a", "vllm.a.b", "vllm.a.c"}.__contains__
    )
    assert found.names == {
        ("vllm", "__version__"),
        ("vllm.a", "Taken"),
        ("vllm.a.b", "by_getattr"),
        ("vllm.a.b", "by_import"),
        ("vllm.a.b", "chained"),
        ("vllm.a.c", "Base"),
        ("vllm.a.c", "by_alias"),
        ("vllm.a.c", "in_a_string"),
    }
    assert found.members == {("vllm.a", "Taken", "member")}
    assert found.methods == {("vllm.a.c", "Base", "method")}
    assert found.modules == {"vllm", "vllm.a.b", "vllm.a.c"}
    assert found.strings == {"vllm.gone.thing"}

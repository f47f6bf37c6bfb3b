"""What torch's defaults are when the operations are first imported changes nothing.

vLLM imports the model while it loads it: the default dtype is the model's then, the default device
the accelerator. A forked worker has inherited the modules; a spawned one imports them there. If
this breaks, tables are rounded to bfloat16, or kernels write float32 into half the room it takes:
"malloc(): unaligned tcache chunk", only where workers are spawned.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import torch
from ops.imported_tensors import MODULES, import_all, imported_tensors

import vllm_deepinfer

ROOT = Path(vllm_deepinfer.__file__).parent
FLOAT_BY_DEFAULT = {"empty", "zeros", "ones", "rand", "randn", "linspace", "logspace", "eye"}


def test_imports_and_the_check_of_the_tile_unit_do_not_see_them():
    """Memory of the wrong device has no address, of the wrong dtype no room for the results."""
    ran = subprocess.run(
        [sys.executable, Path(__file__).with_name("imported_tensors.py"), "bfloat16", "meta"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert torch.get_default_dtype() == torch.float32
    import_all()
    expected = imported_tensors()
    assert expected, f"no tensor is made by importing {MODULES}"
    found = json.loads(ran.stdout.splitlines()[-1])
    assert {name: expected[name] for name in found} == found


def calls_without_a_dtype(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(ast.Attribute(ast.Name("torch"), name), _, keywords):
                named = {keyword.arg for keyword in keywords}
                if name in FLOAT_BY_DEFAULT and not named & {"dtype", None}:  # None: **options
                    found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def test_memory_names_its_dtype_throughout_the_package():
    files = {path: path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}
    found = {str(path): calls_without_a_dtype(source) for path, source in files.items()}
    assert {path: calls for path, calls in found.items() if calls} == {}

"""Checks every call of torch_npu against the real wheel, and writes down what was checked.

    python tests/npu_schema/check.py            (make test-npu-schema)

Runs where torch_npu is installed over empty libraries in CANN's place (acl_stub.py). Fails with
file, line and schema if a call does not fit its operator, if an operator's meta kernel refuses the
tensors of a small case or answers with other shapes or dtypes than the operation has, or if the
record of schemas that the tests use was out of date; the record is then the new one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch_npu

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from npu_schema.calls import Use, problem_of, uses  # noqa: E402
from npu_schema.evidence import RECORD, checked_calls, write_evidence  # noqa: E402

from vllm_deepinfer.ops.npu.calls import mc2  # noqa: E402
from vllm_deepinfer.ops.npu.probes import PROBES  # noqa: E402
from vllm_deepinfer.ops.npu.table import NATIVE, NOT_USED, REFERENCES  # noqa: E402


def schemas_of(names: set[str]) -> dict[str, list[str]]:
    """All overloads of the operators, as texts."""
    found: dict[str, list[str]] = {name: [] for name in sorted(names)}
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name.removeprefix("npu::")
        if schema.name.startswith("npu::") and name in found:
            found[name].append(str(schema))
    return {name: sorted(overloads) for name, overloads in found.items() if overloads}


def value_of(use: Use) -> Any:
    """What a name of torch_npu is: its number, or its kind."""
    found: Any = torch_npu
    for part in use.name.split("."):
        found = getattr(found, part)
    return found if isinstance(found, int) else type(found).__name__


def attributes_of(found: list[Use]) -> tuple[dict[str, Any], list[str]]:
    values, problems = {}, []
    for use in found:
        try:
            values[use.name] = value_of(use)
        except AttributeError:
            problems.append(f"{use.place}: torch_npu has no {use.name}")
    return dict(sorted(values.items())), problems


# -- meta kernels ---------------------------------------------------------------------------------


def on_meta(arguments: list[Any]) -> list[Any]:
    return [x.to("meta") if isinstance(x, torch.Tensor) else x for x in arguments]


def kinds(result: Any) -> list[tuple[torch.dtype, tuple[int, ...]]]:
    results = [] if result is None else [result] if isinstance(result, torch.Tensor) else result
    return [(x.dtype, tuple(x.shape)) for x in results]


def meta_problem(operation: str) -> str:
    """What the meta kernels say against an operation; empty if they agree."""
    entry = NATIVE[operation]
    compute = entry.load(operation)
    for case in PROBES[operation]:
        arguments = case()
        if not entry.takes(*arguments):
            continue
        wanted = kinds(REFERENCES[operation](*arguments))
        try:
            found = kinds(compute(*on_meta(arguments)))
        except Exception as failure:
            return f"{operation}: a meta kernel refuses it: {failure}"
        if found != wanted:
            return f"{operation}: on meta tensors gives {found} instead of {wanted}"
    return ""


def mc2_problem() -> str:
    """The same for the way to the experts and back."""
    tokens, width, inner, experts = 5, 256, 128, 16
    group = mc2.ExpertGroup("group", 2, 0, experts, capacity=8)
    held = experts // group.ranks

    def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")

    shapes = ((inner, width), (inner, width), (width, inner))
    stacks = [
        part
        for rows, columns in shapes
        for part in (
            empty(held, rows, columns // 2, dtype=torch.int8),
            empty(held, rows, columns // 32, dtype=torch.float8_e8m0fnu),
        )
    ]
    try:
        found = mc2.routed_experts(
            empty(tokens, width, dtype=torch.float8_e4m3fn),
            empty(tokens, width // 32, dtype=torch.uint8),
            empty(tokens, 6, dtype=torch.int64),
            empty(tokens, 6, dtype=torch.float32),
            mc2.ExpertStacks(*stacks),
            10.0,
            group,
        )
    except Exception as failure:
        return f"mc2: a meta kernel refuses it: {failure}"
    wanted = [(torch.bfloat16, (tokens, width))]
    return "" if kinds(found) == wanted else f"mc2: gives {kinds(found)} instead of {wanted}"


def main() -> int:
    found = uses(ROOT, ROOT / "vllm_deepinfer")
    operators = [use for use in found if use.is_operator]
    schemas = schemas_of({use.name for use in operators})
    attributes, problems = attributes_of([use for use in found if not use.is_operator])
    problems += [problem_of(use, schemas) for use in operators]
    absent = set(NOT_USED) - set(schemas_of(set(NOT_USED)))
    problems += [f"{operator} is not used, but torch_npu has none" for operator in sorted(absent)]
    problems += [meta_problem(operation) for operation in NATIVE] + [mc2_problem()]
    problems = [problem for problem in problems if problem]
    if problems:
        print("\n".join(problems))
        return 1
    write_evidence(torch_npu.__version__, checked_calls(operators, schemas))
    record = {
        "torch_npu": torch_npu.__version__,
        "schemas": schemas,
        "attributes": attributes,
    }
    text = json.dumps(record, indent=1) + "\n"
    stale = not RECORD.exists() or RECORD.read_text() != text
    RECORD.write_text(text)
    print(f"{len(operators)} calls of {len(schemas)} operators fit torch_npu {record['torch_npu']}")
    if stale:
        print(f"{RECORD.relative_to(ROOT)} was out of date and is written anew; look at its diff")
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())

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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch_npu

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "docs")]

from npu_schema.calls import Use, problem_of, uses  # noqa: E402
from pages import table  # noqa: E402

from vllm_deepinfer.ops.npu.calls import mc2  # noqa: E402
from vllm_deepinfer.ops.npu.probes import PROBES  # noqa: E402
from vllm_deepinfer.ops.npu.table import NATIVE, NOT_NATIVE, REFERENCES  # noqa: E402
from vllm_deepinfer.ops.npu.torch_forms import TORCH_FORMS  # noqa: E402

RECORD = ROOT / "tests/data/torch_npu_schemas.json"
EVIDENCE = ROOT / "docs/npu-conformance.json"
PAGE = ROOT / "docs/npu-conformance.md"
TEXT = """# Calls of torch_npu, checked against the wheel

Written by `make test-npu-schema` on a machine without an NPU and without CANN: torch_npu {version}
from its published wheel, over empty libraries in CANN's place. It has its schemas there, and the
meta kernels that answer with shapes and dtypes.

**Nothing here has run on an NPU.** What an operator computes is checked by the worker when it
starts, against the reference on the CPU; what is wrong there is refused by name.

## Operations

`meta` means that the whole operation ran on tensors without data, through the wheel's meta kernels,
and gave the operation's shapes and dtypes.

{operations}

## Calls

Bound to the operator's schema: names, number and written-down values of arguments.

{calls}
"""


@dataclass(frozen=True)
class CheckedCall:
    """A call that fits."""

    where: str
    operator: str
    arguments: list[str]
    schema: str


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
    tokens, width, ranks, experts = 5, 256, 2, 16
    group = mc2.ExpertGroup("group", ranks, 0, experts, capacity=8)
    x = torch.empty(tokens, width, dtype=torch.bfloat16, device="meta")
    chosen = torch.empty(tokens, 6, dtype=torch.int64, device="meta")
    try:
        sent = mc2.dispatch(x, chosen, torch.empty(tokens, 6, device="meta"), group)
        outputs = torch.empty_like(sent.rows, dtype=torch.bfloat16)
        found = kinds((sent.rows, sent.scales, sent.counts, sent.weights))
        back = kinds(mc2.combine(outputs, chosen, sent, group))
    except Exception as failure:
        return f"mc2: a meta kernel refuses it: {failure}"
    most = group.capacity * ranks * 6
    wanted = [
        (torch.float8_e4m3fn, (most, width)),
        (torch.uint8, (most, width // 32)),
        (torch.int64, (experts // ranks,)),
        (torch.float32, (most,)),
    ]
    if found != wanted or back != [(torch.bfloat16, (tokens, width))]:
        return f"mc2: on meta tensors gives {found} and {back} instead of {wanted}"
    return ""


# -- what is written ------------------------------------------------------------------------------


def checked_calls(found: list[Use], schemas: dict[str, list[str]]) -> list[CheckedCall]:
    calls = []
    for use in found:
        assert use.call is not None
        by_place = [str(number) for number in range(len(use.call.args))]
        names = [str(keyword.arg) for keyword in use.call.keywords]
        where = f"{use.file}, {use.function}"
        calls.append(CheckedCall(where, use.name, by_place + names, schemas[use.name][0]))
    return calls


def operation_rows() -> list[tuple[str, str, str]]:
    rows = []
    for operation in sorted(REFERENCES):
        entry = NATIVE.get(operation)
        if entry:
            calls = ", ".join(f"`{call}`" for call in entry.calls)
            rows.append((f"`{operation}`", f"{calls}: {entry.taken}", "meta"))
        else:
            what = "torch form" if operation in TORCH_FORMS else "torch reference"
            rows.append((f"`{operation}`", f"{what}: {NOT_NATIVE[operation]}", "-"))
    return rows


def write_evidence(calls: list[CheckedCall]) -> None:
    version = torch_npu.__version__
    operations = [list(row) for row in operation_rows()]
    evidence = {"torch_npu": version, "calls": [asdict(call) for call in calls]}
    evidence["operations"] = [
        {"operation": name.strip("`"), "computed_by": by, "checked": how}
        for name, by, how in operation_rows()
    ]
    EVIDENCE.write_text(json.dumps(evidence, indent=1) + "\n")
    rows = [(call.where, f"`{call.operator}`", ", ".join(call.arguments)) for call in calls]
    PAGE.write_text(
        TEXT.format(
            version=version,
            operations=table(("operation", "computed by", "checked"), operations, 3),
            calls=table(("where", "operator", "arguments, by place or name"), rows, 3),
        )
    )


def main() -> int:
    found = uses(ROOT, ROOT / "vllm_deepinfer")
    operators = [use for use in found if use.is_operator]
    schemas = schemas_of({use.name for use in operators})
    attributes, problems = attributes_of([use for use in found if not use.is_operator])
    problems += [problem_of(use, schemas) for use in operators]
    problems += [meta_problem(operation) for operation in NATIVE] + [mc2_problem()]
    problems = [problem for problem in problems if problem]
    if problems:
        print("\n".join(problems))
        return 1
    write_evidence(checked_calls(operators, schemas))
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

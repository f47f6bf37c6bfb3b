"""What is written down of the check: the record that tests use, and a page of the documentation."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from npu_schema.calls import Use

from vllm_deepinfer.ops.npu.table import NATIVE, NOT_NATIVE, NOT_USED, REFERENCES
from vllm_deepinfer.ops.npu.torch_forms import TORCH_FORMS

ROOT = Path(__file__).parents[2]
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

## Operators that are not used

{unused}

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


def checked_calls(found: list[Use], schemas: Mapping[str, Sequence[str]]) -> list[CheckedCall]:
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


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    spec = importlib.util.spec_from_file_location("pages", ROOT / "docs/pages.py")
    assert spec is not None and spec.loader is not None
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    return pages.table(header, rows, len(header))


def evidence_of(version: str, calls: list[CheckedCall]) -> dict[str, Any]:
    operations = [
        {"operation": name.strip("`"), "computed_by": by, "checked": how}
        for name, by, how in operation_rows()
    ]
    return {
        "torch_npu": version,
        "calls": [asdict(call) for call in calls],
        "operations": operations,
        "not_used": NOT_USED,
    }


def write_evidence(version: str, calls: list[CheckedCall]) -> None:
    EVIDENCE.write_text(json.dumps(evidence_of(version, calls), indent=1) + "\n")
    unused = [(f"`{operator}`", why) for operator, why in sorted(NOT_USED.items())]
    rows = [(call.where, f"`{call.operator}`", ", ".join(call.arguments)) for call in calls]
    PAGE.write_text(
        TEXT.format(
            version=version,
            operations=_table(("operation", "computed by", "checked"), operation_rows()),
            unused=_table(("operator", "why not"), unused),
            calls=_table(("where", "operator", "arguments, by place or name"), rows),
        )
    )

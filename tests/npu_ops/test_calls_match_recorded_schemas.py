"""Every call of torch_npu fits the schema that the real wheel gave for its operator.

If this fails, a worker on Ascend dies in the middle of a step with a TypeError. The record of
schemas is written by `make test-npu-schema`, which holds it against the wheel itself.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
import torch
from npu_ops import documented_torch_npu
from npu_schema.calls import Use, problem_of, uses
from npu_schema.evidence import EVIDENCE, RECORD, checked_calls, evidence_of

ROOT = Path(__file__).parents[2]
RECORDED = json.loads(RECORD.read_text())
SCHEMAS = RECORDED["schemas"]
REFRESH = "run `make test-npu-schema`"
LINEAR = ROOT / "vllm_deepinfer/ops/npu/calls/quantised.py"


def operator_uses(root: Path, folder: Path) -> list[Use]:
    return [use for use in uses(root, folder) if use.is_operator]


def problems(root: Path, folder: Path) -> list[str]:
    return [problem for use in operator_uses(root, folder) if (problem := problem_of(use, SCHEMAS))]


def test_every_call_fits_its_schema():
    assert problems(ROOT, ROOT / "vllm_deepinfer") == []


def test_the_record_holds_what_is_used_and_no_more():
    found = uses(ROOT, ROOT / "vllm_deepinfer")
    assert {use.name for use in found if use.is_operator} == set(SCHEMAS), REFRESH
    assert {use.name for use in found if not use.is_operator} == set(RECORDED["attributes"]), (
        REFRESH
    )


def test_the_written_evidence_is_that_of_these_sources():
    calls = checked_calls(operator_uses(ROOT, ROOT / "vllm_deepinfer"), SCHEMAS)
    assert json.loads(EVIDENCE.read_text()) == evidence_of(RECORDED["torch_npu"], calls), REFRESH


@pytest.mark.parametrize(
    ("right", "wrong", "reason"),
    [
        ("pertoken_scale=", "per_token_scale=", "has no argument 'per_token_scale'"),
        ("        layouts.linear_weight(weight),\n", "", "needs the argument 'scale'"),
        ("output_dtype=dtype,", "output_dtype='bf16',", "takes Optional[int] as 'output_dtype'"),
        (
            "        pertoken_scale=layouts",
            "        None,\n        pertoken_scale=layouts",
            "takes 3",
        ),
        ("        group_sizes=MX_GROUPS,", "        x1=x,", "gets 'x1' twice"),
        ("        group_sizes=MX_GROUPS,", "        **more,", "cannot be checked"),
        ("npu_quant_matmul(", "npu_quant_matmull(", "has no operator npu_quant_matmull"),
        ("torch_npu.npu_quant_matmul(", "torch.ops.npu.npu_quant_mm(", "no operator npu_quant_mm"),
    ],
)
def test_a_wrong_call_is_named_with_its_line_and_schema(tmp_path, right, wrong, reason):
    text = LINEAR.read_text()
    assert text.count(right) == 1
    changed = tmp_path / "changed.py"
    changed.write_text(text.replace(right, wrong))
    (problem,) = problems(tmp_path, tmp_path)
    place, line, _ = problem.split(":", 2)
    assert place == "changed.py" and "npu_quant" in changed.read_text().splitlines()[int(line) - 1]
    assert reason in problem
    assert "no operator" in reason or SCHEMAS["npu_quant_matmul"][0] in problem


def test_an_operator_that_is_handed_on_is_not_taken_for_checked(tmp_path):
    (tmp_path / "alias.py").write_text("import torch_npu\nnorm = torch_npu.npu_rms_norm\n")
    assert problems(tmp_path, tmp_path) == [
        "alias.py:2: npu_rms_norm is not called, so nothing can be checked"
    ]


@pytest.mark.parametrize("operator", documented_torch_npu.OPERATORS, ids=lambda o: o.__name__)
def test_the_stand_in_of_these_tests_takes_what_the_operator_takes(operator):
    schema = torch._C.parse_schema(SCHEMAS[operator.__name__][0])
    ours = list(inspect.signature(operator).parameters.values())
    assert [parameter.name for parameter in ours] == [a.name for a in schema.arguments]
    for parameter, argument in zip(ours, schema.arguments, strict=True):
        assert (parameter.kind is inspect.Parameter.KEYWORD_ONLY) == argument.kwarg_only
        required = parameter.default is inspect.Parameter.empty
        assert required != argument.has_default_value()
        assert required or parameter.default == argument.default_value


def test_the_stand_in_has_the_wheels_dtype_numbers():
    module, _ = documented_torch_npu.module()
    numbers = {name: value for name, value in RECORDED["attributes"].items() if type(value) is int}
    assert {name: getattr(module, name) for name in numbers} == numbers
    assert numbers


def test_names_of_the_device_are_found_however_they_are_written(tmp_path):
    lines = "torch.npu.one()", "self._npu.two(torch_npu.npu.three)", "npu.register(device)"
    (tmp_path / "device.py").write_text("\n".join(lines))
    found = [use.name for use in uses(tmp_path, tmp_path)]
    assert found == ["npu.one", "npu.two", "npu.three"]

"""An operator that computes something else than the model needs is refused by name at the start.

If this fails, a worker on Ascend serves garbled text: one public engine did for weeks, where the
operator that collapses the streams ignores the pre-mix it is given.
"""

from __future__ import annotations

import re
import sys

import pytest
import torch
from npu_ops import documented_torch_npu as documented

from vllm_deepinfer.config import OptionError
from vllm_deepinfer.ops import npu
from vllm_deepinfer.ops.npu import VendorMismatchError, selfcheck
from vllm_deepinfer.ops.npu.probes import PROBES, TOKENS
from vllm_deepinfer.ops.npu.table import NATIVE, REFERENCES, Implementation

CPU = torch.device("cpu")


@pytest.fixture
def registered(monkeypatch):
    """Which implementations were registered; nothing is, in fact."""
    found = {}
    monkeypatch.setattr(npu, "implement", lambda name, key, compute: found.update({name: key}))
    monkeypatch.setattr(npu, "_registered", {})
    return found


def swapped_pairs(call):
    """The bytes of a pair in the other order, where a call returns or takes pairs."""

    def swapped(x):
        return x.flip(-1).contiguous() if isinstance(x, torch.Tensor) and x.dim() == 3 else x

    return lambda *arguments, **keywords: tuple(swapped(x) for x in call(*arguments, **keywords))


def with_argument(call, **changed):
    return lambda *arguments, **keywords: call(*arguments, **{**keywords, **changed})


def result_by(change, call):
    """A call whose first result is changed."""

    def changed(*arguments, **keywords):
        result = call(*arguments, **keywords)
        if isinstance(result, torch.Tensor):
            return change(result)
        return type(result)([change(result[0]), *result[1:]])

    return changed


def other_nibble_first(x, weight, **keywords):
    swapped = [((part << 4) | (part >> 4)).transpose(1, 2).contiguous() for part in weight]
    return documented.npu_grouped_matmul(x, [part.transpose(1, 2) for part in swapped], **keywords)


def weight_scales_by_row(x1, x2, scale, **keywords):
    return documented.npu_quant_matmul(x1, x2, scale.roll(1, 0), **keywords)


def half_rotation(x, r1, r2, rotary_mode):
    first, second = x.chunk(2, -1)
    return r1 * x + r2 * torch.cat([-second, first], -1)


def sinkhorn_of_positive(x, *, eps, num_iters):
    return documented.npu_mhc_sinkhorn(x.exp().log1p(), eps=eps, num_iters=num_iters)


def transposed_comb(x, h_res, h_out, h_post):
    return documented.npu_mhc_post(x, h_res.transpose(1, 2), h_out, h_post)


def raises(*arguments, **keywords):
    raise RuntimeError("EZ1001: dtype is not in the support list")


MX, NORM = documented.npu_dynamic_mx_quant, documented.npu_rms_norm
WRONG = [
    ("scale pairs in the other order", "npu_dynamic_mx_quant", swapped_pairs(MX), "quantise_fp8"),
    (
        "scales rounded down",
        "npu_dynamic_mx_quant",
        with_argument(MX, scale_alg=0, max_low_bound=0.0),
        "quantise_fp8",
    ),
    ("no floor", "npu_dynamic_mx_quant", with_argument(MX, max_low_bound=0.0), "quantise_fp8"),
    (
        "another dtype",
        "npu_dynamic_mx_quant",
        result_by(lambda x: x.float().to(torch.float8_e5m2), MX),
        "quantise_fp8",
    ),
    ("not a number", "npu_rms_norm", result_by(lambda x: x * float("nan"), NORM), "rms_norm"),
    ("float32 results", "npu_rms_norm", result_by(torch.Tensor.float, NORM), "rms_norm"),
    ("its own epsilon", "npu_rms_norm", with_argument(NORM, epsilon=1e-2), "rms_norm"),
    ("scales of other groups", "npu_quant_matmul", weight_scales_by_row, "fp8_linear"),
    ("other nibble first", "npu_grouped_matmul", other_nibble_first, "fp4_experts"),
    (
        "no limit",
        "npu_clipped_swiglu",
        with_argument(documented.npu_clipped_swiglu, limit=1e9),
        "clamped_swiglu",
    ),
    ("halves instead of pairs", "npu_rotary_mul", half_rotation, "rotate"),
    ("no softmax before", "npu_mhc_sinkhorn", sinkhorn_of_positive, "stream_mixes"),
    ("combination transposed", "npu_mhc_post", transposed_comb, "expand_streams"),
    (
        "coefficients in bfloat16",
        "npu_mhc_pre",
        lambda *a, **k: tuple(x.bfloat16().float() for x in documented.npu_mhc_pre(*a, **k)),
        "stream_mixes",
    ),
    ("not for this chip", "npu_quant_matmul", raises, "fp8_linear"),
]


def test_what_is_documented_is_accepted(torch_npu, registered):
    computed_by = npu.register(CPU)
    assert set(computed_by) == set(REFERENCES) == set(registered)
    assert set(registered.values()) == {"PrivateUse1"}
    for operation, entry in NATIVE.items():
        assert all(f"torch_npu.{call}" in computed_by[operation] for call in entry.calls)
    assert "npu_mhc_pre collapses with" in computed_by["mix_streams"]


@pytest.mark.parametrize(
    ("operator", "theirs", "operation"),
    [case[1:] for case in WRONG],
    ids=[case[0] for case in WRONG],
)
def test_wrong_operators_are_refused(torch_npu, registered, operator, theirs, operation):
    setattr(torch_npu, operator, theirs)
    with pytest.raises(VendorMismatchError) as refused:
        npu.register(CPU)
    message = str(refused.value)
    assert re.search(rf"^- {operation} \(torch_npu\.", message, re.MULTILINE), message
    assert re.search(r"allowed: \d|instead of|fails on a small case", message), message
    assert registered == {}
    assert npu._registered == {}
    cure = re.search(r'"npu_torch_ops": "([a-z0-9_,]+)"', message)
    assert cure and operation in cure[1].split(",")
    # What the message says to do is enough.
    assert npu.register(CPU, torch_ops=cure[1])[operation].endswith(", by npu_torch_ops")


def test_an_operator_that_ignores_the_pre_mix_is_refused(torch_npu):
    """The streams collapsed as npu_mhc_pre does, with the pre-mix it computes itself."""
    projection, scale, base = torch.zeros(24, 1024), torch.ones(3), torch.zeros(24)

    def collapse(streams, pre, dtype):
        return torch_npu.npu_mhc_pre(streams, projection, scale, base)[0]

    chosen = {"mix_streams": Implementation(collapse, "torch_npu.npu_mhc_pre", native=True)}
    with pytest.raises(VendorMismatchError, match=r"mix_streams \(torch_npu.npu_mhc_pre\) differs"):
        selfcheck.check(chosen, CPU)


@pytest.mark.parametrize("operation", NATIVE)
def test_no_operator_gets_an_empty_tensor(operation, torch_npu):
    """A rank without tokens joins the others' step; torch_npu takes no empty tensors."""
    arguments = PROBES[operation][0]()
    none = [x[:0] if isinstance(x, torch.Tensor) and len(x) == TOKENS else x for x in arguments]
    wanted = REFERENCES[operation](*[x.clone() if isinstance(x, torch.Tensor) else x for x in none])
    chosen = npu.implementations()[operation]
    found = chosen.compute(*none)
    as_list = [x if isinstance(x, tuple) else (x,) for x in (found, wanted)]
    for ours, right in zip(*as_list, strict=True):
        assert ours is right is None or (ours.shape, ours.dtype) == (right.shape, right.dtype)
    assert not torch_npu.calls
    chosen.compute(*arguments)
    assert torch_npu.calls


def test_all_that_is_wrong_is_named_at_once(torch_npu, registered):
    torch_npu.npu_rms_norm = raises
    torch_npu.npu_mhc_post = raises
    with pytest.raises(VendorMismatchError, match='"npu_torch_ops": "expand_streams,rms_norm"'):
        npu.register(CPU)


def test_an_operator_that_this_torch_npu_lacks_is_refused(torch_npu, registered):
    del torch_npu.npu_clipped_swiglu
    with pytest.raises(VendorMismatchError, match="clamped_swiglu .* fails .*AttributeError"):
        npu.register(CPU)


def test_wrong_torch_operators_are_refused_without_a_way_round(registered, monkeypatch):
    def forgets_scales(cache, rows, kind, width):
        return REFERENCES["load_rows"](cache, rows, kind, width).clamp(-1, 1)

    chosen = npu.implementations(native=False)
    chosen["load_rows"] = Implementation(forgets_scales, "torch reference")
    monkeypatch.setattr(npu, "implementations", lambda native, torch_ops: chosen)
    with pytest.raises(
        VendorMismatchError, match=r"(?s)load_rows \(torch reference\) .* install versions of CANN"
    ) as refused:
        npu.register(CPU, native=False)
    assert "npu_torch_ops" not in str(refused.value)


# -- registration ---------------------------------------------------------------------------------


def test_without_torch_npu_nothing_is_silently_torch(registered):
    with pytest.raises(ImportError, match="torch_npu"):
        npu.register(CPU)
    assert registered == {}


def test_a_device_without_a_vendor_gets_torch_alone(registered):
    computed_by = npu.register(CPU, native=False)
    assert set(computed_by.values()) == {"torch form", "torch reference"}
    assert "torch_npu" not in sys.modules


def test_operations_left_to_torch_must_be_ones_that_torch_npu_has(registered):
    with pytest.raises(OptionError, match="npu_torch_ops names mix_streams, norm; allowed: "):
        npu.register(CPU, torch_ops="norm, mix_streams,rms_norm")


def test_a_process_has_one_choice(registered):
    first = npu.register(CPU, native=False)
    registered.clear()
    assert npu.register(CPU, native=False) is first and registered == {}
    with pytest.raises(RuntimeError, match="registered already"):
        npu.register(CPU, native=False, torch_ops="rms_norm")


def test_reference_operations_are_what_the_variable_says(registered, monkeypatch):
    monkeypatch.setenv("DEEPINFER_REFERENCE_OPS", "1")
    assert set(npu.register(CPU).values()) == {"torch reference (DEEPINFER_REFERENCE_OPS)"}
    assert registered == {}

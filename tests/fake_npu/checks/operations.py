"""Every operation gives on the device what it gives on the CPU, in the same dtype, shape and bytes.

If this fails, the device is wrong, and engine tests on it say nothing.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import fake_npu.for_deepinfer  # noqa: F401
from vllm_deepinfer.ops.norm import rms_norm

A = torch.arange(-64.0, 64.0).view(8, 16) / 7
B = torch.arange(512.0).remainder(13).view(16, 32) - 6
W = A[0].bfloat16()
ROWS = torch.tensor([0, 3, 3, 7, 1])
E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu


def put(d):
    x = A.to(d).clone()
    x[ROWS.to(d)] = 5.0
    x[:, ROWS.to(d)] += 1
    return x


def scattered(d):
    index = ROWS[:, None].expand(5, 16).to(d)
    return torch.zeros(8, 16, device=d).scatter_(0, index, A[:5].to(d))


def resized_output(d):
    out = torch.empty(0, device=d)
    torch.matmul(A.to(d), B.to(d), out=out)
    return out


def output_into_a_view(d):
    whole = torch.zeros(16, 16, device=d)
    torch.add(A.to(d), 1, out=whole[4:12])
    return whole


def two_outputs(d):
    values, indices = torch.empty(8, device=d), torch.empty(8, dtype=torch.int64, device=d)
    torch.max(A.to(d), dim=1, out=(values, indices))
    return values, indices


def grown(d):
    x = torch.zeros(1, device=d)
    x.resize_(2, 2).fill_(1)
    return x


def strided_copy(d):
    x = torch.zeros(8, 16, device=d)
    x[:, ::2].copy_(A.to(d)[:, 1::2])
    return x, x.t()[1:3].contiguous()


def attended(d):
    q = A.view(1, 2, 4, 16).to(d)
    return F.scaled_dot_product_attention(q, q, q, is_causal=True)


CASES = {
    "arithmetic": lambda d: (A.to(d) * 2 + 1, A.to(d) / 3, 1 - A.to(d), A.to(d) > 0),
    "makers": lambda d: (
        torch.zeros(3, device=d),
        torch.ones(2, 2, device=d),
        torch.full((2,), 7, device=d),
        torch.arange(5, device=d),
        torch.tensor([1.0, 2.0], device=d),
        torch.eye(3, device=d),
    ),
    "matmul": lambda d: A.to(d) @ B.to(d),
    "linear": lambda d: F.linear(A.bfloat16().to(d), B.t().bfloat16().to(d)),
    "bmm": lambda d: torch.bmm(A.to(d)[None], B.to(d)[None]),
    "einsum": lambda d: torch.einsum("ij,jk->ik", A.to(d), B.to(d)),
    "softmax": lambda d: A.to(d).softmax(-1),
    "sums": lambda d: (A.to(d).sum(), A.to(d).mean(-1, keepdim=True), A.to(d).amax(0)),
    "index": lambda d: (A.to(d)[ROWS.to(d)], A.to(d)[:, ROWS.to(d)], A.to(d)[2, 3]),
    "index_put": put,
    "mask": lambda d: A.to(d)[A.to(d) > 0],
    "index_select": lambda d: A.to(d).index_select(0, ROWS.to(d)),
    "gather": lambda d: A.to(d).gather(0, ROWS[:, None].expand(5, 16).to(d)),
    "scatter": scattered,
    "index_add": lambda d: torch.zeros(8, 16, device=d).index_add_(0, ROWS.to(d), A.to(d)[:5]),
    "topk": lambda d: A.to(d).topk(3),
    "sort": lambda d: B.to(d).sort(dim=-1, stable=True),
    "cumsum": lambda d: A.to(d).cumsum(0),
    "joins": lambda d: (torch.cat([A.to(d)] * 2), torch.stack([A.to(d)] * 2), *A.to(d).split(3)),
    "where": lambda d: torch.where(A.to(d) > 0, A.to(d), torch.tensor(0.5)),
    "norms": lambda d: (F.layer_norm(A.to(d), (16,)), F.rms_norm(A.to(d), (16,))),
    "embedding": lambda d: F.embedding(ROWS.to(d), A.to(d)),
    "attention": attended,
    "fp8": lambda d: (A.to(d).to(E4M3).float(), A.to(d).to(E4M3).view(torch.uint8)),
    "scales": lambda d: torch.tensor([1.0, 2.0, 4.0], device=d).to(E8M0).view(torch.uint8),
    "bytes": lambda d: A.to(d).view(torch.uint8).view(torch.int16),
    "complex": lambda d: torch.view_as_real(torch.view_as_complex(A.to(d).view(8, 8, 2)) * 2),
    "conjugate": lambda d: torch.polar(A.to(d)[0].abs(), A.to(d)[1]).conj().imag,
    "unfold": lambda d: A.to(d).unfold(0, 2, 1),
    "out_resized": resized_output,
    "out_view": output_into_a_view,
    "outs": two_outputs,
    "resize": grown,
    "strided_copy": strided_copy,
    "nonzero": lambda d: (A.to(d) > 0).nonzero(),
    "repeat": lambda d: torch.repeat_interleave(
        A.to(d), torch.arange(8, device=d), dim=0, output_size=28
    ),
    "foreach": lambda d: torch._foreach_add([A.to(d), B.to(d)], 1.0),
    "searchsorted": lambda d: torch.searchsorted(torch.arange(8.0, device=d), A.to(d)[0]),
    "masked_fill": lambda d: A.to(d).masked_fill(A.to(d) > 0, -1),
    "bincount": lambda d: torch.bincount(ROWS.to(d), minlength=9),
    "unique": lambda d: B.to(d).unique(),
    "pad": lambda d: F.pad(A.to(d), (1, 2)),
    "clone_expanded": lambda d: A.to(d)[:1].expand(8, 16).clone(),
    "of_set_storage": lambda d: torch.empty(0, device=d).set_(A.to(d).untyped_storage()),
    "of_this_package": lambda d: rms_norm(A.to(d), W.to(d), 1e-6, torch.bfloat16),
}


# torch has one kernel for these on the CPU and several operations for other devices.
NEARLY = {"norms", "attention"}


def compare(on_npu, on_cpu, exact=True):
    if isinstance(on_cpu, tuple | list):
        assert len(on_npu) == len(on_cpu)
        for one, other in zip(on_npu, on_cpu, strict=True):
            compare(one, other, exact)
        return
    assert on_npu.device.type == "npu"
    assert (on_npu.shape, on_npu.dtype) == (on_cpu.shape, on_cpu.dtype)
    if exact:
        assert on_npu.stride() == on_cpu.stride()
        assert torch.equal(on_npu.cpu(), on_cpu)
    else:
        torch.testing.assert_close(on_npu.cpu(), on_cpu)


@pytest.mark.parametrize("name", CASES)
def test_as_on_the_cpu(name):
    compare(CASES[name]("npu"), CASES[name]("cpu"), exact=name not in NEARLY)


def views():
    """Functions that give a view of an [8, 16] tensor, of any strides and offset."""
    return st.lists(
        st.one_of(
            st.tuples(st.just("slice"), st.integers(0, 3), st.integers(4, 8), st.integers(1, 3)),
            st.tuples(st.just("transpose")),
            st.tuples(st.just("expand"), st.integers(1, 3)),
            st.tuples(st.just("select"), st.integers(0, 1)),
            st.tuples(st.just("flatten")),
        ),
        max_size=4,
    ).map(lambda steps: lambda tensor: viewed(tensor, steps))


def viewed(tensor, steps):
    for name, *numbers in steps:
        if name == "slice":
            begin, end, step = numbers
            tensor = tensor[begin:end:step]
        elif name == "transpose":
            tensor = tensor.movedim(0, -1)
        elif name == "expand":
            tensor = tensor.unsqueeze(0).expand(numbers[0], *tensor.shape)
        elif name == "select" and tensor.dim() > 1 and len(tensor) > numbers[0]:
            tensor = tensor[numbers[0]]
        elif name == "flatten":
            tensor = tensor.reshape(-1)
    return tensor


@given(views())
def test_views_show_the_same_elements(view):
    compare(view(A.to("npu")), view(A))


CHANGES = {
    "add": lambda t: t.add_(2),
    "fill": lambda t: t.fill_(3),
    "clamp": lambda t: t.clamp_(-1, 1),
    "copy": lambda t: t.copy_(torch.arange(t.numel(), device=t.device).view(t.shape)),
}


@given(views(), st.sampled_from(sorted(CHANGES)))
def test_changes_through_a_view_reach_the_whole(view, change):
    def changed(device):
        whole = A.to(device).clone()
        part = view(whole)
        # Elements that share memory cannot be written to.
        shared = [stride == 0 and part.shape[n] > 0 for n, stride in enumerate(part.stride())]
        part = part[tuple(0 if is_shared else slice(None) for is_shared in shared)]
        CHANGES[change](part)
        return whole, part

    compare(changed("npu"), changed("cpu"))


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@given(views(), st.integers(0, 4))
def test_outputs_are_resized_as_on_the_cpu(view, length):
    def output(device):
        out = torch.full((length,), 9.0, device=device)
        torch.mul(view(A.to(device)), 2, out=out)
        return out

    compare(output("npu"), output("cpu"))


def test_operations_of_this_package_are_one_operation_each():
    torch.ops.fake_npu.count_operations(True)
    CASES["of_this_package"]("npu")
    counts = torch.ops.fake_npu.operation_counts()
    torch.ops.fake_npu.count_operations(False)
    assert {name: n for name, n in counts.items() if "deepinfer" in name} == {
        "vllm_deepinfer::rms_norm": 1
    }


def test_gradients():
    x = A.to("npu").requires_grad_()
    (x @ B.to("npu")).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), B.sum(1).expand(8, 16))


@pytest.mark.parametrize(
    "mix",
    [
        lambda: A.to("npu") + A,
        lambda: A.to("npu") @ B,
        lambda: torch.cat([A.to("npu"), A]),
        lambda: A.to("npu").copy_(A).index_copy_(0, ROWS, A[:5].to("npu")),
        lambda: rms_norm(A.to("npu"), W, 1e-6, torch.bfloat16),
    ],
)
def test_tensors_of_the_host_are_refused(mix):
    with pytest.raises(RuntimeError, match="same device"):
        mix()


def test_scalars_of_the_host_are_taken():
    compare(A.to("npu") * torch.tensor(2.0), A * 2)

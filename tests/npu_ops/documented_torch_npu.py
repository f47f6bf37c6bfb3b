"""A module in the place of torch_npu whose operators compute on the CPU what its documents say.

Written from the documentation of torch_npu 2.13.0 (signatures and shapes: its schemas and meta
kernels), not from this package: scales are found by logarithms in float64, products are float64,
one group after the other. Where the documents are silent, the choice is stated.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

FLOAT8_E4M3FN, FLOAT8_E8M0FNU, FLOAT4_E2M1FN_X2 = 292, 293, 296
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]).double()


@cache
def _e2m1_on(device: torch.device) -> Tensor:
    return E2M1.to(device)


# -- MX formats -----------------------------------------------------------------------------------


def npu_dynamic_mx_quant(
    input,
    *,
    axis=-1,
    round_mode="rint",
    dst_type=296,
    block_size=32,
    scale_alg=0,
    dst_type_max=0.0,
    max_low_bound=0.0,
):
    """e4m3 along the last axis; ``scale_alg`` 1 is cuBLAS's: the scale is rounded up."""
    assert axis in (-1, input.dim() - 1) and round_mode == "rint" and block_size == 32
    assert dst_type == FLOAT8_E4M3FN and scale_alg in (0, 1) and dst_type_max == 0.0
    assert max_low_bound == 0.0 or scale_alg == 1
    groups = input.double().unflatten(-1, (-1, 32))
    amax = groups.abs().amax(-1).clamp_min(max_low_bound)
    if scale_alg == 1:
        exponent = torch.ceil(torch.log2(amax / 448.0))
    else:
        exponent = torch.floor(torch.log2(amax)) - 8
    exponent = exponent.clamp(-127, 127)
    codes = (groups / exponent.exp2().unsqueeze(-1)).clamp(-448, 448).float()
    scales = (exponent + 127).to(torch.uint8)
    scales = torch.nn.functional.pad(scales, (0, scales.shape[-1] % 2))
    return codes.flatten(-2).to(torch.float8_e4m3fn), scales.unflatten(-1, (-1, 2))


def _power(byte: Tensor) -> Tensor:
    return (byte.view(torch.uint8).double() - 127).exp2()


def _row_values(codes: Tensor, pairs: Tensor) -> Tensor:
    """``[M, K]`` of e4m3 codes with a scale per row and 32 columns, pairs ``[M, K / 64, 2]``."""
    per_column = _power(pairs).flatten(-2).repeat_interleave(32, -1)
    return codes.double() * per_column[..., : codes.shape[-1]]


def npu_quant_matmul(
    x1,
    x2,
    scale,
    *,
    offset=None,
    pertoken_scale=None,
    bias=None,
    output_dtype=None,
    x1_dtype=None,
    x2_dtype=None,
    pertoken_scale_dtype=None,
    scale_dtype=None,
    group_sizes=None,
    y_scale=None,
):
    """MX form: ``x2`` is ``[K, N]``, its scales ``[K / 64, N, 2]``."""
    assert scale_dtype == pertoken_scale_dtype == FLOAT8_E8M0FNU and group_sizes == [1, 1, 32]
    assert x1.is_contiguous() and x2.t().is_contiguous() and x1.dtype == torch.float8_e4m3fn
    assert scale.shape == (pertoken_scale.shape[1], x2.shape[1], 2)
    assert offset is bias is x1_dtype is x2_dtype is y_scale is None
    weight = _row_values(x2.t(), scale.transpose(0, 1))
    return (_row_values(x1, pertoken_scale) @ weight.t()).to(output_dtype)


def npu_grouped_matmul(
    x,
    weight,
    *,
    bias=None,
    scale=None,
    offset=None,
    antiquant_scale=None,
    antiquant_offset=None,
    per_token_scale=None,
    group_list=None,
    activation_input=None,
    activation_quant_scale=None,
    activation_quant_offset=None,
    split_item=0,
    group_type=None,
    group_list_type=0,
    act_type=0,
    tuning_config=None,
    output_dtype=None,
    x_dtype=None,
    weight_dtype=None,
    scale_dtype=None,
    per_token_scale_dtype=None,
):
    """e4m3 rows, packed e2m1 weights ``[experts, K / 2, N]`` whose scales are ``[experts, N, K /
    64, 2]``; the even element is in the low nibble. What is behind the last group is NaN."""
    assert weight_dtype == FLOAT4_E2M1FN_X2 and per_token_scale_dtype == FLOAT8_E8M0FNU
    assert (split_item, group_type, group_list_type) == (2, 0, 0)
    (rows,), (packed,), (scales,), (pairs,) = x, weight, antiquant_scale, per_token_scale
    assert packed.dtype == torch.uint8 and scales.dtype == torch.float8_e8m0fnu
    values, table = _row_values(rows, pairs), _e2m1_on(rows.device)
    out = rows.new_full((len(rows), packed.shape[2]), float("nan"), dtype=output_dtype)
    number, start = torch.arange(len(rows), device=rows.device), 0
    for expert, end in enumerate(group_list):
        codes = packed[expert].t().long()
        elements = torch.stack([table[codes & 15], table[codes >> 4]], -1).flatten(-2)
        factor = _power(scales[expert]).flatten(-2).repeat_interleave(32, -1)
        product = (values @ (elements * factor[:, : elements.shape[1]]).t()).to(output_dtype)
        out = torch.where(((number >= start) & (number < end)).unsqueeze(1), product, out)
        start = end
    return [out]


# -- rows -----------------------------------------------------------------------------------------


def npu_rms_norm(input, gamma, epsilon=1e-6):
    assert input.dtype == gamma.dtype
    x = input.double()
    factor = torch.rsqrt((x * x).mean(-1, keepdim=True) + epsilon)
    return (x * factor * gamma.double()).to(input.dtype), factor.float()


def npu_rotary_mul(input, r1, r2, rotary_mode="half", rotate=None):
    """BSND with ``r1`` and ``r2`` 1S1D."""
    assert rotary_mode == "interleave" and rotate is None and input.dim() == 4
    assert r1.shape == r2.shape == (1, input.shape[1], 1, input.shape[3])
    assert input.shape[0] * input.shape[2] < 1000 and input.dtype == r1.dtype
    swapped = torch.stack([-input[..., 1::2], input[..., 0::2]], -1).flatten(-2)
    return r1 * input + r2 * swapped


def npu_clipped_swiglu(
    x, *, group_index=None, dim=-1, alpha=1.702, limit=7.0, bias=1.0, interleaved=True
):
    assert group_index is None and dim == -1 and not interleaved and x.is_contiguous()
    gate, up = x.double().chunk(2, -1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (gate * torch.sigmoid(alpha * gate) * (up + bias)).to(x.dtype)


# -- hyper-connections ----------------------------------------------------------------------------


def npu_mhc_pre(
    x, phi, alpha, bias, *, gamma=None, norm_eps=1e-6, hc_eps=1e-6, out_flag=0, inner_precise=0
):
    """``h_res`` comes before its projection to doubly stochastic matrices."""
    assert x.dtype == torch.bfloat16 and gamma is None
    count = x.shape[1]
    flat = x.double().flatten(1)
    inverse = torch.rsqrt((flat * flat).mean(-1, keepdim=True) + norm_eps)
    mixes = flat @ phi.double().t()
    pre, post, res = (mixes * inverse).split([count, count, count * count], -1)
    pre_bias, post_bias, res_bias = bias.double().split([count, count, count * count])
    pre = torch.sigmoid(pre * alpha[0] + pre_bias) + hc_eps
    post = 2 * torch.sigmoid(post * alpha[1] + post_bias)
    res = (res * alpha[2] + res_bias).unflatten(-1, (count, count))
    h_in = (pre.unsqueeze(-1) * x.double()).sum(1).to(x.dtype)
    results = [h_in, post.float(), res.float()]
    if not out_flag:
        return (*results, None, None, None)
    return (*results, inverse.squeeze(1).float(), mixes.float(), pre.float())


def npu_mhc_sinkhorn(x, *, eps=1e-6, num_iters=20, out_flag=0):
    """Begins with the rows' softmax: its ``2 * num_iters`` norms of the meta kernel count it."""
    assert x.shape[-1] in (4, 6, 8) and 0 < num_iters <= 100 and not out_flag
    comb = torch.softmax(x.double(), -1) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(num_iters - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return comb.float(), None, None


def npu_mhc_post(x, h_res, h_out, h_post):
    assert x.dtype == h_out.dtype == torch.bfloat16
    mixed = h_res.double().transpose(1, 2) @ x.double()
    return (mixed + h_post.double().unsqueeze(-1) * h_out.double().unsqueeze(1)).to(x.dtype)


OPERATORS = (
    npu_clipped_swiglu,
    npu_dynamic_mx_quant,
    npu_grouped_matmul,
    npu_mhc_post,
    npu_mhc_pre,
    npu_mhc_sinkhorn,
    npu_quant_matmul,
    npu_rms_norm,
    npu_rotary_mul,
)


def module() -> tuple[ModuleType, Counter[str]]:
    """The module, and how often each of its operators was called."""
    found, calls = ModuleType("torch_npu"), Counter()
    found.float8_e4m3fn = FLOAT8_E4M3FN
    found.float8_e8m0fnu = FLOAT8_E8M0FNU
    found.float4_e2m1fn_x2 = FLOAT4_E2M1FN_X2

    def counted(operator):
        def call(*arguments, **keywords):
            calls[operator.__name__] += 1
            return operator(*arguments, **keywords)

        return call

    for operator in OPERATORS:
        setattr(found, operator.__name__, counted(operator))
    return found, calls

# ruff: noqa: N803 -- Triton's convention for compile-time parameters
"""Kernels around upstream's device functions, so that the oracle can show what they return."""

from __future__ import annotations

from vllm.triton_utils import tl, triton
from vllm.v1.worker.gpu.sample.gumbel import (
    _log1p_neg_stable,
    murmur3_uniform32,
    murmur3_uniform64,
)


@triton.jit
def uniform_kernel(
    out32_ptr, out64_ptr, log1p_ptr, seeds_ptr, pos_ptr, vocab_size, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    seed = tl.load(seeds_ptr + row)
    pos = tl.load(pos_ptr + row)
    for start in range(0, vocab_size, BLOCK):
        token = start + tl.arange(0, BLOCK)
        place = row * vocab_size + token
        mask = token < vocab_size
        uniform = murmur3_uniform32(seed, pos, token)
        tl.store(out32_ptr + place, uniform, mask=mask)
        tl.store(log1p_ptr + place, _log1p_neg_stable(uniform), mask=mask)
        tl.store(out64_ptr + place, murmur3_uniform64(seed, pos, token), mask=mask)

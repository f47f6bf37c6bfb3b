"""Linear kernels give the reference's sums, for both targets, ragged shapes and all kinds of rows.

If this fails, a layer reads a weight, a scale or a row that is not its own, or sums in less than
float32.
"""

from __future__ import annotations

import pytest
import torch
from triton_kernels.errors import relative_error, uneven

from vllm_deepinfer.ops import formats, reference_linear

TARGETS = ["sm_90a", "sm_100a"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("tokens", "out", "columns", "groups"),
    [(1, 40, 32, 1), (5, 160, 288, 1), (3, 128, 64, 4), (18, 64, 32, 1)],
)
def test_quantised_rows_times_blocks(interpreter, target, tokens, out, columns, groups):
    x, scales = reference_linear.quantise_fp8(uneven(tokens, groups * columns))
    arguments = (x, scales, *formats.quantise_fp8_blocks(uneven(out, columns)))
    found = interpreter.run("fp8_linear", *arguments, torch.float32, groups=groups, target=target)
    wanted = reference_linear.fp8_linear(*arguments, torch.float32, groups)
    assert relative_error(found, wanted) <= 1e-6
    rounded = interpreter.run(
        "fp8_linear", *arguments, torch.bfloat16, groups=groups, target=target
    )
    assert torch.equal(rounded, found.to(torch.bfloat16))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_plain_rows_times_blocks(interpreter, dtype):
    x = uneven(3, 2 * 96).to(dtype)
    arguments = (x, None, *formats.quantise_fp8_blocks(uneven(128, 96)), torch.float32, 2)
    found = interpreter.run("fp8_linear", *arguments)
    assert relative_error(found, reference_linear.fp8_linear(*arguments)) <= 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_times_plain_weights(interpreter, dtype):
    x, weight = uneven(17, 100).to(dtype), uneven(70, 100).to(torch.bfloat16)
    found = interpreter.run("plain_linear", x, weight)
    assert relative_error(found, reference_linear.plain_linear(x, weight)) <= 1e-6


def test_no_tokens_make_no_rows(interpreter):
    weight = torch.ones(8, 32, dtype=torch.bfloat16)
    assert interpreter.run("plain_linear", torch.empty(0, 32), weight).shape == (0, 8)


def test_row_alone_has_the_bits_it_has_in_a_batch(interpreter):
    """In batch-invariant mode; otherwise a wider tile may add in another order."""
    x, scales = reference_linear.quantise_fp8(uneven(40, 96))
    weight = formats.quantise_fp8_blocks(uneven(64, 96))

    def rows(part: slice) -> torch.Tensor:
        return interpreter.run(
            "fp8_linear", x[part], scales[part], *weight, torch.float32, batch_invariant=True
        )

    batch = rows(slice(None))
    for row in (0, 17, 39):
        assert torch.equal(rows(slice(row, row + 1))[0], batch[row])
    assert torch.equal(rows(slice(5, 11)), batch[5:11])

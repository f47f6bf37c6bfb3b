"""In the model's own forward pass, every kernel computes what its reference does.

If this fails, a kernel is right on the cases of its own test and wrong on what the model hands it:
strided caches, sliced scales, rows that are not stored.
"""

from __future__ import annotations

from triton_kernels.model_run import run_model

NEVER_NEEDED = {"candidate_blocks", "index_scores", "load_rows", "select_rows"}
"""Where all rows are chosen and attention reads the caches itself."""


def test_every_kernel_equals_its_reference_in_a_forward_pass(interpreter):
    errors = interpreter.submit(run_model, "sm_100a", [17, 4, 99])
    assert {name for name, found in errors.items() if not found} == NEVER_NEEDED
    bounds = {"torch.bfloat16": 2e-3, "torch.float32": 1e-6}
    for name, found in errors.items():
        for dtype, error in found:
            assert error <= bounds.get(dtype, 0.0), f"{name}: {dtype} is off by {error:.1e}"

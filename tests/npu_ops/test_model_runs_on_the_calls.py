"""The model's own forward passes, computed by the calls of torch_npu, give the references' results.

If this fails, a call is right on the small case of the check and wrong on what the model hands it:
strided caches, rows that are not stored, slots of experts elsewhere, a prompt longer than what is
selected. Run over torch_npu as documented; nothing here says what an NPU computes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from vllm_deepinfer.models.deepseek_v41.standalone import Chunk, StandaloneModel
from vllm_deepinfer.ops import npu
from vllm_deepinfer.ops.norm import rms_norm
from vllm_deepinfer.ops.npu.selfcheck import relative_error, written_arguments
from vllm_deepinfer.ops.npu.table import NATIVE, REFERENCES
from vllm_deepinfer.ops.numerics import Numerics

pytestmark = pytest.mark.filterwarnings("ignore:Warning only once for all operators")
MODEL = Path(__file__).parents[1] / "data" / "v41_tiny"
BF16 = torch.bfloat16
PROMPT = torch.randint(10, 500, (170,), generator=torch.Generator().manual_seed(3)).tolist()
NOT_IN_A_FORWARD_PASS = {"load_rows"}
"""Attention reads the caches itself."""


@contextmanager
def instead_of_the_cpus(compute: dict[str, Callable]) -> Iterator[None]:
    """CPU tensors take these implementations for a while."""
    library = torch.library.Library("vllm_deepinfer", "IMPL")
    try:
        for operation, theirs in compute.items():
            library.impl(operation, theirs, "CPU", allow_override=True)
        yield
    finally:
        library._destroy()


def compared(operation: str, compute: Callable, errors: list[float]) -> Callable:
    """``compute``, noting how far each of its results is off."""
    written = written_arguments(operation)

    def tensors(result, arguments):
        results = (
            () if result is None else (result,) if isinstance(result, torch.Tensor) else result
        )
        return [*results, *(arguments[number] for number in written)]

    def computed(*arguments):
        before = [x.clone() if number in written else x for number, x in enumerate(arguments)]
        wanted = tensors(REFERENCES[operation](*before), before)
        result = compute(*arguments)
        for found, right in zip(tensors(result, arguments), wanted, strict=True):
            assert (found.dtype, found.shape) == (right.dtype, right.shape), operation
            errors.append(relative_error(found, right))
        return result

    return computed


def run(model: StandaloneModel) -> torch.Tensor:
    """Logits of a prompt in two chunks and two tokens after it, beside a second request."""
    model.reset()
    steps = (
        [Chunk(0, PROMPT[:150])],
        [Chunk(0, PROMPT[150:]), Chunk(1, PROMPT[40:60])],
        [Chunk(0, [17]), Chunk(1, [18, 19])],
    )
    return torch.cat([model.logits(model.compute(chunks)) for chunks in steps])


@pytest.fixture(scope="module")
def model():
    return StandaloneModel.load(MODEL, Numerics(), max_requests=2, max_tokens=256)


@pytest.mark.parametrize("native", [True, False], ids=["torch_npu", "torch alone"])
def test_every_operation_equals_its_reference_on_what_the_model_hands_it(native, model, torch_npu):
    errors: dict[str, list[float]] = defaultdict(list)
    chosen = npu.implementations(native=native)
    with instead_of_the_cpus(
        {name: compared(name, each.compute, errors[name]) for name, each in chosen.items()}
    ):
        logits = run(model)
    assert logits.isfinite().all()
    assert {name for name in chosen if not errors[name]} == NOT_IN_A_FORWARD_PASS
    loose = {"fp4_experts": 2e-2, "store_rotated": 1e-2}
    for name, found in errors.items():
        assert max(found, default=0.0) <= loose.get(name, 3e-3), name
    if native:
        used = torch_npu.calls.copy()
        rms_norm(torch.ones(1, 32, dtype=BF16), torch.ones(32, dtype=BF16), 1e-6, BF16)
        assert torch_npu.calls == used, "the CPU's own implementations are not back"
        assert set(torch_npu.calls) == {call for entry in NATIVE.values() for call in entry.calls}


def test_model_without_quantisers_runs_on_torch_where_no_operator_takes_its_rows(torch_npu):
    """float32 rows, the mode in which implementations are compared most strictly."""
    plain = StandaloneModel.load(
        MODEL, Numerics(torch.float32, quantised=False), max_requests=2, max_tokens=256
    )
    wanted = run(plain)
    chosen = npu.implementations()
    with instead_of_the_cpus({name: each.compute for name, each in chosen.items()}):
        found = run(plain)
    assert relative_error(found, wanted) < 1e-5
    assert set(torch_npu.calls) == {"npu_rotary_mul"}

"""Random shapes, bits and thread counts for minutes: `make fuzz`, not part of `make test`.

Claim: a kernel neither reads nor writes outside its arguments (with the address sanitizer's build
of csrc/kernels, which `make fuzz` passes as `--extension`), makes no NaN of finite input and stays
within 1e-6 of the reference.

    python tests/kernels/fuzz.py --seconds 600 [--extension build/asan/.../_kernels.so]

Every function in FUZZERS takes hypothesis's `data`; other operations add theirs.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXTENSION = "vllm_deepinfer._kernels"
SANITIZED = b"__asan_report_store"  # what instrumented stores call
EXAMPLES_AT_ONCE = 200


def use_extension(path: str) -> None:
    """Load the extension at `path` in place of the installed one."""
    spec = importlib.util.spec_from_file_location(EXTENSION, path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise SystemExit(f"--extension is {path}; allowed: the path of a built _kernels extension.")
    if SANITIZED not in Path(path).read_bytes():
        raise SystemExit(f"--extension {path} was not compiled with -fsanitize=address.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[EXTENSION] = module
    spec.loader.exec_module(module)


def prepare(data: Any) -> None:
    """Seed, thread count and version of one example."""
    from vllm_deepinfer import _kernels

    torch.manual_seed(data.draw(st.integers(0, 2**32)))
    torch.set_num_threads(data.draw(st.integers(1, 3)))
    _kernels.choose_isa(data.draw(st.sampled_from(_kernels.available_isas().split())))


def random_bits(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Any finite values of a dtype, up to 2**40 so that sums stay finite."""
    x = torch.randn(*shape) * 2.0 ** torch.randint(-60, 40, shape)
    x.view(-1)[torch.rand(x.numel()) < 0.05] = 0.0
    return x.to(dtype)


def near(found: torch.Tensor, wanted: torch.Tensor, size: torch.Tensor) -> None:
    """Within 1e-6 of the sum of magnitudes that a result was added from."""
    assert found.isfinite().all(), "NaN or infinity from finite input"
    assert ((found.double() - wanted).abs() <= 1e-6 * size + 2.0**-120).all()


def quantiser(data: Any) -> None:
    from vllm_deepinfer.ops import reference_linear
    from vllm_deepinfer.ops.quantise import quantise_fp8

    prepare(data)
    rows, groups = data.draw(st.integers(0, 70)), data.draw(st.integers(1, 12))
    dtype = data.draw(st.sampled_from([torch.bfloat16, torch.float32]))
    x = random_bits(rows, 32 * groups, dtype=dtype)
    codes, scales = quantise_fp8(x)
    wanted_codes, wanted_scales = reference_linear.quantise_fp8(x)
    assert torch.equal(codes.view(torch.uint8), wanted_codes.view(torch.uint8))
    assert torch.equal(scales, wanted_scales)


def fp8_layer(data: Any) -> None:
    from kernels.quantised_operands import fp8_weight

    from vllm_deepinfer.ops import formats
    from vllm_deepinfer.ops.linear import fp8_linear
    from vllm_deepinfer.ops.quantise import quantise_fp8

    prepare(data)
    rows, chunks = data.draw(st.integers(0, 50)), data.draw(st.integers(1, 40))
    groups = data.draw(st.sampled_from([1, 1, 2, 3]))
    outputs = data.draw(st.integers(1, 90)) if groups == 1 else 32 * groups
    weight, scale = fp8_weight(outputs, 32 * chunks, (90, 160))
    x, scales = random_bits(rows, groups * 32 * chunks, dtype=torch.bfloat16), None
    values = x.double()
    if data.draw(st.booleans()):
        x, scales = quantise_fp8(x)
        values = formats.dequantise_fp8_rows(x, scales).double()
    elif data.draw(st.booleans()):
        x = x.float()
    found = fp8_linear(x, scales, weight, scale, torch.float32, groups)
    matrix = formats.dequantise_fp8_blocks(weight, scale).double().unflatten(0, (groups, -1))
    values = values.unflatten(-1, (groups, -1)).transpose(0, 1)

    def product(a, b):
        return torch.bmm(a, b.transpose(1, 2)).transpose(0, 1).flatten(1)

    near(found, product(values, matrix), product(values.abs(), matrix.abs()))


def plain_layer(data: Any) -> None:
    from vllm_deepinfer.ops.linear import plain_linear

    prepare(data)
    rows, outputs = data.draw(st.integers(0, 40)), data.draw(st.integers(1, 70))
    columns = data.draw(st.integers(1, 400))
    dtype = data.draw(st.sampled_from([torch.bfloat16, torch.float32]))
    x, weight = (
        random_bits(rows, columns, dtype=dtype),
        random_bits(outputs, columns, dtype=torch.bfloat16),
    )
    found = plain_linear(x, weight)
    near(found, x.double() @ weight.double().T, x.double().abs() @ weight.double().abs().T)


def experts(data: Any) -> None:
    from kernels.quantised_operands import activations, fp4_stack

    from vllm_deepinfer.ops import reference_linear
    from vllm_deepinfer.ops.experts import fp4_experts

    prepare(data)
    tokens, per_token = data.draw(st.integers(0, 30)), data.draw(st.integers(1, 4))
    hidden, inter = (32 * data.draw(st.integers(1, 9)) for _ in range(2))
    held, first = data.draw(st.integers(1, 5)), data.draw(st.integers(0, 3))
    x, scales = activations(tokens, hidden, data.draw(st.sampled_from(["codes", "float32"])))
    chosen = torch.randint(0, 8, (tokens, per_token))
    shapes = ((held, inter, hidden), (held, inter, hidden), (held, hidden, inter))
    stacks = [tensor for shape in shapes for tensor in fp4_stack(*shape)]
    arguments = (
        x, scales, chosen, torch.rand(tokens, per_token), *stacks, first, 10.0, torch.float32,
    )  # fmt: skip
    found, wanted = fp4_experts(*arguments), reference_linear.fp4_experts(*arguments)
    assert found.isfinite().all(), "NaN or infinity from finite input"
    bound = 0.05 if scales is not None else 1e-4  # an inner value may take the code next to it
    assert (found - wanted).norm() <= bound * wanted.norm().clamp_min(1e-6)


def model_operations(data: Any) -> None:
    from kernels import model_cases
    from kernels.quantised_operands import relative, same_bits

    prepare(data)
    case = model_cases.CASES[data.draw(st.sampled_from(sorted(model_cases.CASES)))]
    width, block_rows = 32 * data.draw(st.integers(1, 9)), data.draw(st.integers(1, 70))
    pairs = data.draw(st.integers(0, width // 2))
    model_cases.resize(width, data.draw(st.integers(1, 20)), pairs, block_rows)
    rows = data.draw(st.integers(1, 40))
    part = slice(data.draw(st.integers(0, rows)), rows)
    run, seed = case.make(rows), data.draw(st.integers(0, 2**32))
    torch.manual_seed(seed)
    found = run(False, part)
    torch.manual_seed(seed)
    for ours, wanted in zip(found, run(True, part), strict=True):
        assert not ours.is_floating_point() or not ours.isnan().any(), "NaN from finite input"
        if case.exact or not ours.is_floating_point():
            assert same_bits(ours, wanted)
            continue
        finite = wanted.isfinite()
        assert torch.equal(ours[~finite], wanted[~finite])
        if finite.any():
            assert relative(ours[finite], wanted[finite]) < 5e-6


FUZZERS: list[Callable[[Any], None]] = [
    quantiser,
    fp8_layer,
    plain_layer,
    experts,
    model_operations,
]


def fuzz(check: Callable[[Any], None], seconds: float) -> int:
    """Examples tried."""
    end, tried = time.monotonic() + seconds, 0
    quiet = settings(
        max_examples=EXAMPLES_AT_ONCE,
        deadline=None,
        database=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
    )
    while time.monotonic() < end:
        quiet(given(st.data())(check))()
        tried += EXAMPLES_AT_ONCE
    return tried


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="for all operations together")
    parser.add_argument(
        "--extension", help="a built extension to load instead of the installed one"
    )
    options = parser.parse_args()
    if options.extension:
        use_extension(options.extension)
    for check in FUZZERS:
        tried = fuzz(check, options.seconds / len(FUZZERS))
        print(f"{check.__name__}: {tried} examples", flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()

"""The parts of ``gpu_check.py``; each runs in a process of its own.

    python benchmarks/gpu_parts.py NAME

Prints a line ``RESULT {...}`` with "state", "reason" and "lines" for people.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Helpers shared with the tests are the tests'; the package need not be installed.
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

TINY = ROOT / "tests" / "data" / "v41_tiny"
BOUNDS = {"torch.bfloat16": 2e-3, "torch.float32": 1e-5}
"""Relative L2 error of a kernel to its reference; other dtypes must be equal."""
MODEL_BOUND = 3e-2
# More rows than attention reads without choosing: the indexer takes part.
PROMPT_TOKENS, MAX_TOKENS = 900, 1024


def report(state: str, reason: str = "", lines: list[str] | None = None) -> dict[str, Any]:
    return {"state": state, "reason": reason, "lines": lines or []}


def prompt(length: int, seed: int = 0) -> list[int]:
    return [3 + (seed * 131 + 7 * k + k * k // 5) % 500 for k in range(length)]


def load_model(device: str, max_requests: int = 1) -> Any:
    import torch

    from vllm_deepinfer.models.deepseek_v41.standalone import StandaloneModel
    from vllm_deepinfer.ops.numerics import Numerics

    torch.manual_seed(0)
    with torch.device(device):
        return StandaloneModel.load(TINY, Numerics(), max_requests, MAX_TOKENS)


def compute(model: Any, device: str, chunks: list[tuple[int, list[int]]]) -> Any:
    import torch

    from vllm_deepinfer.models.deepseek_v41.standalone import Chunk

    with torch.device(device):
        return model.compute([Chunk(*chunk) for chunk in chunks])


def kernels(device: str = "cuda") -> dict[str, Any]:
    """Every Triton kernel equals its reference on all that the tiny model hands it."""
    import torch
    from triton_kernels.model_run import compared, reference_of

    from vllm_deepinfer.ops import library
    from vllm_deepinfer.ops.triton import OPERATIONS, launcher

    model = load_model(device)
    errors: dict[str, list[tuple[str, float]]] = {name: [] for name in OPERATIONS}
    for name in OPERATIONS:
        kernel = compared(launcher(name), reference_of(name), errors[name])
        library.implement(name, device.upper(), kernel)
    compute(model, device, [(0, prompt(PROMPT_TOKENS))])
    for token in range(3):
        compute(model, device, [(0, [token + 5])])
    # Read by the model only where it looks into itself.
    with torch.device(device):
        for cache in model.decoder.all_caches():
            cache.load(torch.arange(16))
    lines, wrong, unused = [], [], []
    for name, found in errors.items():
        worst = {dtype: max(e for d, e in found if d == dtype) for dtype, _ in found}
        lines.append(f"{name:<18} {len(found):>4} results, " + _shown(worst))
        if not found:
            unused.append(name)
        wrong += [name for dtype, error in worst.items() if not error <= BOUNDS.get(dtype, 0.0)]
    if wrong:
        return report("failed", f"differ from their reference: {', '.join(wrong)}", lines)
    reason = f"{len(errors) - len(unused)} kernels equal their references"
    return report("ok", reason + (f"; not reached: {', '.join(unused)}" if unused else ""), lines)


def _shown(worst: dict[str, float]) -> str:
    parts = [f"{dtype.removeprefix('torch.')} off by {error:.1e}" for dtype, error in worst.items()]
    return ", ".join(parts) or "not reached"


def model(device: str = "cuda") -> dict[str, Any]:
    """The tiny model on the GPU gives the logits of the reference on the CPU."""
    os.environ["DEEPINFER_REFERENCE_OPS"] = "1"  # before the operations are defined
    import torch

    from vllm_deepinfer.ops import triton

    if device == "cuda":
        triton.register()
    logits = {}
    for where in ("cpu", device):
        built = load_model(where)
        hidden = compute(built, where, [(0, prompt(PROMPT_TOKENS))])
        with torch.device(where):
            logits[where] = built.logits(hidden).double().cpu()
    wanted, found = logits["cpu"], logits[device]
    error = float((found - wanted).norm() / wanted.norm())
    agree = float((found.argmax(-1) == wanted.argmax(-1)).double().mean())
    said = f"logits off by {error:.1e}, {agree:.1%} of {len(found)} greedy tokens equal"
    return report("ok" if error <= MODEL_BOUND else "failed", said)


def invariance(device: str = "cuda") -> dict[str, Any]:
    """With batch-invariant tiles a request's rows have the same bits in any batch and in chunks."""
    import torch

    from vllm_deepinfer.ops import triton

    if device == "cuda":
        triton.register(batch_invariant=True)
    ids, built = prompt(PROMPT_TOKENS), load_model(device, max_requests=3)

    def rows(*steps: list[tuple[int, list[int]]]) -> Any:
        """Hidden states of request 0 over all steps, in which it comes first."""
        with torch.device(device):
            built.reset()
        parts = [compute(built, device, step)[: len(step[0][1])] for step in steps]
        return torch.cat(parts).cpu()

    alone = rows([(0, ids)])
    others = [(1, prompt(37, 1)), (2, prompt(300, 2))]
    cuts = (0, 1, 6, 134, 500, PROMPT_TOKENS)
    chunks = [[(0, ids[a:b])] for a, b in zip(cuts, cuts[1:], strict=False)]
    wrong = [
        name
        for name, found in (
            ("in a batch", rows([(0, ids), *others])),
            ("in chunks", rows(*chunks)),
            ("token by token at the end", rows([(0, ids[:-4])], *([(0, [t])] for t in ids[-4:]))),
        )
        if not torch.equal(found, alone)
    ]
    if wrong:
        return report("failed", f"other bits {', '.join(wrong)}")
    return report("ok", "same bits in a batch, in chunks and token by token")


def engine(device: str = "cuda") -> dict[str, Any]:
    """vLLM serves the tiny model by this package's class; drafts and plans change no token.

    With the guard against waits on "error", which ends the engine at the first one.
    """
    if importlib.util.find_spec("vllm") is None:
        return report("not run", "vLLM is not installed")
    if importlib.util.find_spec("vllm._C_stable_libtorch") is None:
        return report("not run", "the installed vLLM is not a build for CUDA")
    os.environ.update(DEEPINFER_PLATFORM="sm100", VLLM_ENABLE_V1_MULTIPROCESSING="0")
    from gpu_engine import greedy_tokens

    from vllm_deepinfer.checkpoint_maker.maker import make_tiny_checkpoint

    prompts = [prompt(length, seed) for seed, length in enumerate((5, 40, 300))]
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "tiny"
        make_tiny_checkpoint(checkpoint)
        found = {
            name: greedy_tokens(checkpoint, prompts, drafts, {"model": "deepinfer", **options})
            for name, drafts, options in (
                ("plain", 0, {"sync_guard": "error"}),
                ("drafts", 3, {"sync_guard": "error"}),
                ("planned", 3, {"sync_guard": "error", "verification": "adaptive"}),
            )
        }
    different = [name for name in found if found[name] != found["plain"]]
    if different:
        return report("failed", f"other tokens with {', '.join(different)}")
    return report("ok", f"{sum(map(len, found['plain']))} tokens equal plain, drafted and planned")


def speed(device: str = "cuda") -> dict[str, Any]:
    """Matrix kernels at the published shapes, beside torch's bfloat16 product of the same shape."""
    from gpu_speed import measure_all

    lines = measure_all(device)
    return report("ok", f"{len(lines) - 1} measured", lines)


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "kernels": kernels,
    "model": model,
    "invariance": invariance,
    "engine": engine,
    "speed": speed,
}

if __name__ == "__main__":
    print("RESULT", json.dumps(PARTS[sys.argv[1]]()))

"""Registers the operations on the npu device of tests, and captures and replays each.

    python device_graphs.py torch | torch_npu

Runs in a process of its own: the device changes torch for good. Capturing fails where the host is
asked for a value, and a replay on other values is wrong where one was read.
"""

from __future__ import annotations

import sys

import fake_npu.device  # noqa: F401
import torch
from npu_ops import documented_torch_npu

NPU = torch.device("npu", 0)


def overwrite(arguments: list, values: list) -> None:
    for held, value in zip(arguments, values, strict=True):
        if isinstance(held, torch.Tensor):
            held.copy_(value)


def replayed(operation, arguments: list, values: list) -> list[torch.Tensor]:
    """What a graph captured on some arguments gives on others."""
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        result = operation(*arguments)
    overwrite(arguments, values)
    graph.replay()
    results = [] if result is None else [result] if isinstance(result, torch.Tensor) else result
    return [x.cpu() for x in results]


def main(native: bool) -> None:
    from vllm_deepinfer.ops import npu
    from vllm_deepinfer.ops.npu.probes import PROBES
    from vllm_deepinfer.ops.npu.selfcheck import BOUNDS, relative_error, written_arguments
    from vllm_deepinfer.ops.npu.table import REFERENCES

    torch.npu.set_device(NPU)
    computed_by = npu.register(NPU, native=native)
    for name, cases in PROBES.items():
        operation = getattr(torch.ops.vllm_deepinfer, name).default
        written = written_arguments(name)
        for case in cases:
            held = [x.to(NPU) if isinstance(x, torch.Tensor) else x for x in case()]
            wanted_arguments = case(seed=7)
            found = replayed(operation, held, wanted_arguments)
            found += [held[number].cpu() for number in written]
            result = REFERENCES[name](*wanted_arguments)
            results = [result] if isinstance(result, torch.Tensor) else list(result or ())
            wanted = results + [wanted_arguments[number] for number in written]
            for ours, right in zip(found, wanted, strict=True):
                error = relative_error(ours, right)
                bound = 1e-2 if name in ("fp4_experts", "store_rotated") else None
                bound = BOUNDS.get(right.dtype, 0.0) if bound is None else bound
                assert error <= bound, f"{name} ({computed_by[name]}) replays {error:.1e} off"
    check_scales()
    print(len(computed_by), "operations replay")


def check_scales() -> None:
    """Every UE8M0 byte is on the device what it is on the CPU."""
    from vllm_deepinfer.ops.formats import decode_ue8m0

    every = torch.arange(256, dtype=torch.uint8).view(16, 16)
    wanted, found = decode_ue8m0(every), decode_ue8m0(every.to(NPU)).cpu()
    assert torch.equal(wanted.nan_to_num(-1), found.nan_to_num(-1))


if __name__ == "__main__":
    is_native = sys.argv[1] == "torch_npu"
    if is_native:
        sys.modules["torch_npu"], _ = documented_torch_npu.module()
    main(is_native)

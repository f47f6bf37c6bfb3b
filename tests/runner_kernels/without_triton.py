"""Run by test_registration.py in a process that has no Triton: registers and launches kernels."""

from __future__ import annotations

import importlib
import pkgutil
import sys

sys.modules["triton"] = None  # imports of it fail, find_spec finds nothing

import torch  # noqa: E402
from vllm.triton_utils import HAS_TRITON, triton  # noqa: E402

from vllm_deepinfer import runner_kernels  # noqa: E402


def expect_refusal(launch) -> str:
    try:
        launch()
    except NotImplementedError as refusal:
        return str(refusal)
    raise AssertionError("a kernel without a torch form was launched")


def launch_through_upstream_wrappers() -> None:
    from vllm.v1.worker.gpu.block_table import BlockTables
    from vllm.v1.worker.gpu.input_batch import post_update

    device = torch.device("cpu")
    tables = BlockTables([4, 2], 3, 16, [5, 9], device)
    tables.append_block_ids(2, ([11, 12], [21, 22, 23]), overwrite=True)
    tables.append_block_ids(0, ([13], [24]), overwrite=True)
    tables.apply_staged_writes()
    for table in tables.input_block_tables:
        table.fill_(99)
    rows = torch.tensor([2, 0])
    first, second = tables.gather_block_tables(rows, num_reqs_padded=3)
    assert first[:, :2].tolist() == [[11, 12], [13, 99], [0, 0]], first
    assert second[:, :3].tolist() == [[21, 22, 23], [24, 99, 99], [0, 0, 0]], second
    slots = tables.compute_slot_mappings(
        rows,
        torch.tensor([0, 2, 3, 3], dtype=torch.int32),
        torch.tensor([4, 5, 1]),
        num_tokens_padded=4,
    )
    assert slots.tolist() == [[48, 49, 53, -1], [46, 47, 49, -1]], slots

    # Launched with the option num_warps.
    state = torch.zeros(3, dtype=torch.int32)
    sampled, total = torch.tensor([[7], [8]]), torch.ones(3, dtype=torch.int32)
    all_tokens, ones = torch.zeros(3, 4, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
    last = torch.zeros(3, 1, dtype=torch.int64)
    post_update(
        rows, state, last, None, sampled, ones, torch.zeros_like(ones), None, all_tokens, total
    )
    assert last.view(-1).tolist() == [8, 0, 7] and total.tolist() == [2, 1, 2]


def main() -> None:
    assert not HAS_TRITON
    runner_kernels.register()
    runner_kernels.register()
    package = importlib.import_module("vllm.v1.worker.gpu")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    assert triton.next_power_of_2(5) == 8
    launch_through_upstream_wrappers()

    from vllm.v1.worker.gpu.sample.batch_shard import _pack_logprobs_kernel

    message = expect_refusal(lambda: _pack_logprobs_kernel[(1,)](None, num_warps=4))
    assert "_pack_logprobs_kernel" in message and "--enable-batch-sharded-sampling" in message


if __name__ == "__main__":
    main()

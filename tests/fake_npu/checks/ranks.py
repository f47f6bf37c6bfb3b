"""Collectives among two ranks, at once and in a replayed graph: run as `ranks.py STORE RANK`.

If this fails, data-parallel engines on this device exchange something else than on hardware.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

import fake_npu.device  # noqa: F401

SIZE = 2


def npu(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype, device="npu")


def check_each(rank):
    other = 1 - rank
    total = npu(rank + 1.0, 2.0)
    dist.all_reduce(total)
    assert total.tolist() == [3.0, 4.0]

    gathered = torch.empty(4, device="npu")
    dist.all_gather_into_tensor(gathered, npu(rank, rank + 10))
    assert gathered.tolist() == [0, 10, 1, 11]

    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.int32, torch.bool):
        parts = [torch.empty(3, dtype=dtype, device="npu") for _ in range(SIZE)]
        dist.all_gather(parts, npu(rank, 1, 0).to(dtype))
        assert [part.float().tolist() for part in parts] == [[0, 1, 0], [1, 1, 0]]

    share = torch.empty(2, device="npu")
    dist.reduce_scatter_tensor(share, torch.arange(4.0, device="npu"))
    assert share.tolist() == [4 * rank, 4 * rank + 2]
    dist.reduce_scatter(share, [npu(1, 1), npu(2, 2)])
    assert share.tolist() == [2 * (rank + 1)] * 2

    received = torch.empty(2, 3, dtype=torch.bfloat16, device="npu")
    dist.all_to_all_single(received, (torch.arange(6.0) + 10 * rank).view(2, 3).bfloat16().npu())
    assert received[other].tolist() == [10 * other + 3 * rank + n for n in range(3)]

    uneven = torch.empty(2 if rank == 0 else 4, device="npu")
    dist.all_to_all_single(uneven, npu(0, 1, 2) + 10 * rank, [rank + 1] * 2, [1, 2])
    assert uneven.tolist() == ([0, 10] if rank == 0 else [1, 2, 11, 12])

    parts = [torch.empty(n + 1, device="npu") for n in range(SIZE)]
    dist.all_to_all(parts, [npu(*[rank + 1.0] * (rank + 1)) for _ in range(SIZE)])
    assert [part.tolist() for part in parts] == [[1.0], [2.0, 2.0]]

    root = npu(rank, rank, dtype=torch.int64)
    dist.broadcast(root, 1)
    assert root.tolist() == [1, 1]

    if rank == 0:
        dist.send(npu(42.0), 1)
    else:
        arrived = torch.empty(1, device="npu")
        dist.recv(arrived, 0)
        assert arrived.tolist() == [42.0]

    group = dist.new_group([0, 1], backend="hccl")
    ones = torch.ones(1, device="npu")
    dist.all_reduce(ones, group=group)
    assert ones.item() == 2
    dist.barrier()


def check_in_a_graph(rank):
    own, gathered = npu(rank), torch.empty(2, device="npu")

    def step():
        dist.all_gather_into_tensor(gathered, own * 2)
        return gathered.sum()

    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        total = step()
    for start in (5, 7):
        own.fill_(start + rank)
        graph.replay()
        assert gathered.tolist() == [2 * start, 2 * start + 2]
        assert total.item() == 4 * start + 2


def check_refusals():
    for tensor, reason in ((torch.ones(4), "on an npu"), (npu(1, 2, 3)[::2], "contiguous")):
        try:
            dist.broadcast(tensor, 0)
        except ValueError as refusal:
            assert reason in str(refusal)
        else:
            raise AssertionError(f"a tensor was taken that is not {reason}")


def main(store, rank):
    torch.npu.set_device(rank)
    dist.init_process_group(
        "hccl",
        store=dist.FileStore(store, SIZE),
        rank=rank,
        world_size=SIZE,
    )
    check_each(rank)
    check_in_a_graph(rank)
    check_refusals()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

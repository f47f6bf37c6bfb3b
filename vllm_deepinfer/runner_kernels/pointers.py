"""Pointers of the upstream kernels, said with tensors.

Offsets to the pointer of a tensor are places in a flat view of it (`flat`).

Some kernels take a table of raw addresses (uint64) instead: the block tables of the cache groups,
the segments of the KV cache. The tensors behind the addresses belong to objects a kernel
implementation cannot reach. This module is the one place that turns addresses into tensors, without
a copy; nothing else in the package touches an address.

Such a kernel is told no length either. A view made of an address therefore reaches further than the
memory it stands for, and, exactly as upstream, nobody checks an index that is too large. No element
is touched unless an index names it.

Addresses are read on the host. For tables that their owner fills once (see `memory_of`) this
happens once, and an accelerator is waited for; elsewhere it is one synchronisation per call there.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from vllm_deepinfer.worker.sync_guard import allow_sync

# More than any allocation holds, less than the address space of 64-bit user processes leaves free.
REACH_BYTES = 1 << 42


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """One-dimensional view of the memory `tensor` spans, so that `flat(t)[row * stride + column]`
    is what a kernel reads at `t_ptr + row * stride + column`. Needs non-negative strides."""
    if tensor.dim() == 1 and tensor.stride(0) == 1:
        return tensor
    if tensor.is_contiguous():
        return tensor.view(-1)
    if tensor.numel() == 0:
        return tensor.as_strided((0,), (1,))
    span = 1 + sum(
        (size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor.as_strided((span,), (1,))


class AddressedMemory(NamedTuple):
    """Memory behind a table of addresses, seen as one long vector.

    window: [n], begins at the lowest address of the table.
    offsets: int64 [num_addresses], where in `window` each address lies; on the table's device.
    """

    window: torch.Tensor
    offsets: torch.Tensor


def tensor_at(
    address: int, num_elements: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """One-dimensional tensor over the memory at `address`, which must stay allocated meanwhile.

    Raises:
        ValueError: the address is null, negative or not aligned to `dtype`.
    """
    if address <= 0 or address % dtype.itemsize:
        raise ValueError(
            f"address {address:#x} cannot hold {dtype} elements: it must be positive and a "
            f"multiple of {dtype.itemsize}; check the tensor its owner took it from"
        )
    # The only constructor from an address that serves every device type.
    storage = torch._C._construct_storage_from_data_pointer(
        address, device, num_elements * dtype.itemsize
    )
    return torch.empty(0, dtype=dtype, device=device).set_(storage, 0, (num_elements,), (1,))


def read_once(numbers: torch.Tensor) -> list[int]:
    """The numbers, for a caller that keeps what it makes of them: the one wait that is meant."""
    with allow_sync():
        return numbers.tolist()


def memory_of(addresses: torch.Tensor, dtype: torch.dtype) -> AddressedMemory:
    """The memory behind `addresses` (uint64 [num_addresses], not empty), as `dtype` elements.

    The result is kept on the tensor `addresses` itself: only for tables whose owner makes a new
    tensor when an address changes, as `BlockTables` and `KVBlockZeroer` do.
    """
    kept = getattr(addresses, "_deepinfer_memory", None)
    if kept is not None and kept.window.dtype == dtype:
        return kept
    numbers = read_once(addresses)
    lowest = min(numbers)
    reach = max(numbers) - lowest + REACH_BYTES
    window = tensor_at(lowest, reach // dtype.itemsize, dtype, addresses.device)
    offsets = [_elements_between(lowest, number, dtype) for number in numbers]
    with allow_sync():
        on_device = torch.tensor(offsets, dtype=torch.int64, device=addresses.device)
    memory = AddressedMemory(window, on_device)
    addresses._deepinfer_memory = memory
    return memory


def _elements_between(lowest: int, address: int, dtype: torch.dtype) -> int:
    distance = address - lowest
    if distance % dtype.itemsize:
        raise ValueError(
            f"address {address:#x} is not a whole number of {dtype} elements away from "
            f"{lowest:#x}; all tensors of one table must share their element size"
        )
    return distance // dtype.itemsize

"""What waits for the device is counted, warned of or refused; what need not wait, does not.

If this fails, a hidden wait in the decode path goes unnoticed, or a harmless call is blamed.
"""

from __future__ import annotations

import warnings

import pytest
import torch

import fake_npu.device  # noqa: F401

WAITS = {
    "item": lambda x: x.sum().item(),
    "tolist": lambda x: x.tolist(),
    "bool": lambda x: bool(x[0, 0] > 0),
    "cpu": lambda x: x.cpu(),
    "copy_to_host": lambda x: torch.empty(4, 4).copy_(x),
    "copy_from_host": lambda x: x.copy_(torch.ones(4, 4)),
    "tensor": lambda x: torch.tensor([1, 2], device="npu"),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "write_by_mask": lambda x: x.__setitem__(x > 0, torch.ones(16, device="npu")),
    "index_of_the_host": lambda x: x[torch.tensor([0, 1])],
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x),
    "repeats": lambda x: x.repeat_interleave(torch.arange(4, device="npu"), 0),
    "synchronize": lambda x: torch.npu.synchronize(),
    "accelerator": lambda x: torch.accelerator.synchronize(),
    "stream": lambda x: torch.npu.current_stream().synchronize(),
}
# torch lets go of Python while it waits so, and prints warnings instead of raising them there.
WITHOUT_THE_INTERPRETER = ("synchronize", "accelerator")
GOES_ON = {
    "matmul": lambda x: x @ x,
    "fill_by_mask": lambda x: x.__setitem__(x > 0, 0.0),
    "late_copy_to_host": lambda x: x.to("cpu", non_blocking=True),
    "late_copy_from_host": lambda x: x.copy_(torch.ones(4, 4).pin_memory(), non_blocking=True),
    "views": lambda x: x[1:].t().expand(2, 4, 3),
    "makers": lambda x: (torch.zeros(3, device="npu"), torch.arange(4, device="npu")),
    "event": lambda x: torch.npu.Event().record(),
    "topk": lambda x: x.topk(2),
}


@pytest.fixture
def tensor():
    return torch.arange(1.0, 17.0).view(4, 4).to("npu")


@pytest.fixture
def mode():
    yield torch.npu.set_sync_debug_mode
    torch.npu.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_is_counted_warned_of_and_refused(name, tensor, mode):
    wait = WAITS[name]
    before = torch.ops.fake_npu.num_waits()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wait(tensor)
    assert torch.ops.fake_npu.num_waits() > before
    mode("warn")
    if name in WITHOUT_THE_INTERPRETER:
        wait(tensor)
    else:
        with pytest.warns(UserWarning, match="synchronizing operation"):
            wait(tensor)
    mode("error")
    with pytest.raises(RuntimeError, match="synchronizing operation"):
        wait(tensor)


@pytest.mark.parametrize("name", GOES_ON)
def test_what_need_not_wait_does_not(name, tensor, mode):
    before = torch.ops.fake_npu.num_waits()
    mode("error")
    GOES_ON[name](tensor)
    assert torch.ops.fake_npu.num_waits() == before


def test_modes_are_named_as_torch_names_them(mode):
    for number, name in enumerate(("default", "warn", "error")):
        mode(name)
        assert torch.npu.get_sync_debug_mode() == number
        mode(number)
        assert torch.npu.get_sync_debug_mode() == number
    with pytest.raises(RuntimeError, match="'loud'"):
        mode("loud")
    with pytest.raises(ValueError, match="is 3"):
        mode(3)


def test_a_late_copy_arrives_when_it_is_waited_for(tensor):
    host = tensor.to("cpu", non_blocking=True)
    done = torch.npu.Event()
    done.record()
    tensor.zero_()  # later in the stream: the copy has the value from before
    assert host.isnan().all()
    done.synchronize()
    assert host.flatten().tolist() == [float(n) for n in range(1, 17)]


def test_an_event_brings_what_came_before_it_only(tensor):
    first = tensor.to("cpu", non_blocking=True)
    done = torch.npu.Event()
    done.record()
    second = tensor.long().to("cpu", non_blocking=True)
    assert done.query()
    assert first[0, 0] == 1.0
    assert second[0, 0] > 1 << 60
    torch.npu.synchronize()
    assert second[0, 0] == 1


def test_a_copy_from_the_host_brings_no_late_one(tensor):
    host = tensor.to("cpu", non_blocking=True)
    tensor.copy_(torch.ones(4, 4).pin_memory(), non_blocking=True)
    assert host.isnan().all()


def test_a_late_copy_is_in_stream_order_for_the_device(tensor):
    host = torch.empty(4, 4).pin_memory()
    host.copy_(tensor, non_blocking=True)
    again = torch.empty(4, 4, device="npu").copy_(host, non_blocking=True)
    assert torch.equal(again, tensor)


def test_memory_that_is_freed_gets_no_late_copy(tensor):
    for _ in range(50):
        tensor.to("cpu", non_blocking=True)
        other = torch.full((4, 4), 3.0).pin_memory()
        torch.npu.synchronize()
        assert (other == 3.0).all()

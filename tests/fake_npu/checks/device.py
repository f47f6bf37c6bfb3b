"""Memory, devices, streams and random numbers behave as an accelerator's do.

If this fails, code that leaks, reads what nobody wrote or mixes devices passes on this device.
"""

from __future__ import annotations

import gc
import io

import pytest
import torch

import fake_npu.device  # noqa: F401


def test_torch_takes_it_for_the_accelerator():
    assert torch.accelerator.current_accelerator().type == "npu"
    assert torch.accelerator.device_count() == torch.npu.device_count() == 2
    assert torch.zeros(1, device="npu").device == torch.device("npu:0")
    assert torch.npu.is_available()
    assert torch.npu.get_soc_version() == 260


def test_memory_is_counted_while_it_is_held():
    gc.collect()
    before = torch.npu.memory_allocated()
    x = torch.empty(1 << 20, dtype=torch.uint8, device="npu")
    y = x + 1  # allocated by a kernel of the CPU
    view = y[5:]
    assert torch.npu.memory_allocated() - before == 2 << 20
    del x, y
    assert torch.npu.memory_allocated() - before == 1 << 20
    torch.npu.reset_peak_memory_stats()
    torch.empty(1 << 22, dtype=torch.uint8, device="npu")
    del view
    assert torch.npu.memory_allocated() == before
    assert torch.npu.max_memory_allocated() - before == (1 << 20) + (1 << 22)
    free, total = torch.npu.mem_get_info()
    assert total - free == before
    assert torch.accelerator.memory_stats()["allocated_bytes.all.current"] == before


def test_there_is_no_more_memory_than_it_has():
    total = torch.npu.mem_get_info()[1]
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        torch.empty(total + 1, dtype=torch.uint8, device="npu")


def test_memory_that_nobody_wrote_is_no_use():
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn):
        assert torch.empty(8, dtype=dtype, device="npu").float().isnan().all()
    assert (torch.empty(8, dtype=torch.int32, device="npu") > 1 << 30).all()


def test_devices_have_memory_of_their_own():
    before = torch.npu.memory_allocated(1)
    x = torch.ones(1 << 20, dtype=torch.uint8, device="npu:1")
    assert torch.npu.memory_allocated(1) - before == 1 << 20
    assert (x * 2).device == torch.device("npu:1")
    with torch.npu.device(1):
        assert torch.npu.current_device() == 1
        assert torch.ones(1, device="npu").device == x.device
    assert torch.npu.current_device() == 0
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(1 << 20, dtype=torch.uint8, device="npu:0")
    assert (x.to("npu:0") == 1).all()
    with pytest.raises(RuntimeError, match="npu:5"):
        torch.npu.set_device(5)


def test_streams_and_events():
    stream = torch.npu.Stream()
    assert torch.npu.current_stream() == torch.npu.default_stream() != stream
    with torch.npu.stream(stream):
        assert torch.npu.current_stream() == stream
        x = torch.ones(3, device="npu")
    assert torch.npu.current_stream() == torch.npu.default_stream()
    begin, end = (torch.npu.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.npu.current_stream().wait_stream(stream)
    end.record()
    stream.wait_event(end)
    end.synchronize()
    assert 0 <= begin.elapsed_time(end) < 1e4
    assert x.sum().item() == 3


def test_random_numbers_depend_on_the_devices_seed_alone():
    torch.npu.manual_seed_all(5)
    first = torch.rand(4, device="npu")
    torch.manual_seed(5)  # seeds every device
    torch.rand(100)
    assert torch.equal(torch.rand(4, device="npu"), first)
    state = torch.npu.get_rng_state()
    second = torch.randn(4, device="npu")
    torch.npu.set_rng_state(state)
    assert torch.equal(torch.randn(4, device="npu"), second)
    one, other = (torch.Generator(device="npu").manual_seed(9) for _ in range(2))
    drawn = [torch.empty(4, device="npu").exponential_(generator=g) for g in (one, other)]
    assert torch.equal(*drawn)
    assert not torch.equal(drawn[0], torch.empty(4, device="npu").exponential_(generator=one))


def test_pinned_memory_is_known_as_such():
    pinned = torch.ones(4).pin_memory()
    assert pinned.is_pinned() and pinned[1:].is_pinned()
    assert not torch.ones(4).is_pinned()
    assert torch.empty(4, pin_memory=True).is_pinned()
    torch.accelerator.empty_host_cache()


def test_tensors_are_saved_and_loaded():
    buffer = io.BytesIO()
    torch.save({"x": torch.arange(6, device="npu").view(2, 3)[:, 1:]}, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer)["x"]
    assert loaded.device.type == "npu"
    assert loaded.tolist() == [[1, 2], [4, 5]]
    buffer.seek(0)
    assert torch.load(buffer, map_location="cpu")["x"].device.type == "cpu"


def test_modules_move():
    layer = torch.nn.Linear(4, 2).to("npu")
    assert layer.weight.device.type == "npu"
    x = torch.ones(1, 4)
    assert torch.equal(layer(x.npu()).cpu(), layer.to("cpu")(x))


def test_default_device():
    with torch.device("npu"):
        assert torch.nn.Linear(2, 2).weight.device.type == "npu"


def test_an_address_is_memory():
    x = torch.arange(4.0, device="npu")
    storage = torch._C._construct_storage_from_data_pointer(x.data_ptr(), x.device, 16)
    assert torch.empty(0, device="npu").set_(storage, 0, (4,), (1,)).tolist() == [0, 1, 2, 3]

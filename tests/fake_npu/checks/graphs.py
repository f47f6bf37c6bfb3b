"""A replay computes what was captured: on tensors as they are now, with the host's values of then.

If this fails, a captured decode step that reads a Python number or a freed buffer passes here and
gives wrong tokens on hardware.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fake_npu.device  # noqa: F401
from fake_npu import graphs


def captured(function):
    """The graph of a call, and what the call gave."""
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        result = function()
    return graph, result


@pytest.fixture
def x():
    return torch.arange(16.0, device="npu").view(4, 4)


def test_a_replay_reads_its_inputs_and_writes_its_outputs_where_they_were(x):
    out = torch.empty(4, 2, device="npu")
    weight = torch.ones(4, 4, device="npu")

    def step():
        hidden = torch.relu(x @ weight)
        out.copy_(hidden[:, :2])
        return hidden.softmax(-1), hidden.view(-1)[3:5]

    graph, (probabilities, part) = captured(step)
    addresses = [t.data_ptr() for t in (out, probabilities, part)]
    for scale in (1.0, -1.0, 3.0):
        x.copy_(torch.eye(4) * scale)
        graph.replay()
        hidden = torch.relu(torch.eye(4) * scale @ torch.ones(4, 4))
        assert torch.equal(out.cpu(), hidden[:, :2])
        assert torch.equal(probabilities.cpu(), hidden.softmax(-1))
        assert torch.equal(part.cpu(), hidden.view(-1)[3:5])
    assert addresses == [t.data_ptr() for t in (out, probabilities, part)]


def test_numbers_of_the_host_stay_as_they_were_captured(x):
    """The classic fault: a length read on the host, right in every eager step."""
    length, scalar = 2, torch.tensor(10.0)
    out = torch.empty(4, 4, device="npu")

    def step():
        out.fill_(length)
        return out + scalar

    graph, total = captured(step)
    length = 3
    scalar.fill_(20.0)
    graph.replay()
    assert out.unique().tolist() == [2.0]
    assert total.unique().tolist() == [12.0]


def test_numbers_of_the_device_are_read_in_the_replay(x):
    length = torch.tensor([2], device="npu")
    graph, mask = captured(lambda: torch.arange(4, device="npu") < length)
    length.fill_(3)
    graph.replay()
    assert mask.tolist() == [True, True, True, False]


def test_results_of_a_capture_are_no_use_before_a_replay(x):
    """Such as a table that the model makes at its first call and keeps."""
    out = torch.zeros(4, 4, device="npu")
    graph, (total, table) = captured(lambda: (out.copy_(x).sum(0), torch.arange(4, device="npu")))
    assert total.isnan().all()
    assert (x.cpu() == torch.arange(16.0).view(4, 4)).all()
    graph.replay()
    assert total.tolist() == [24.0, 28.0, 32.0, 36.0]
    assert table.tolist() == [0, 1, 2, 3]


def test_the_memory_of_a_graph_stays_its_own(x):
    graph, total = captured(lambda: (x * 2).sum(0))
    others = [torch.full((4,), 7.0, device="npu") for _ in range(20)]
    x.fill_(1.0)
    graph.replay()
    assert total.tolist() == [8.0] * 4
    assert all((other == 7.0).all() for other in others)


FORBIDDEN = {
    "item": lambda x, event: x.sum().item(),
    "cpu": lambda x, event: x.cpu(),
    "nonzero": lambda x, event: x.nonzero(),
    "mask": lambda x, event: x[x > 0],
    "tensor": lambda x, event: torch.tensor([1.0, 2.0], device="npu"),
    "index_of_the_host": lambda x, event: x[torch.tensor([0, 1])],
    "synchronize": lambda x, event: torch.npu.synchronize(),
    "event_wait": lambda x, event: event.synchronize(),
    "event_query": lambda x, event: event.query(),
    "empty_cache": lambda x, event: torch.npu.empty_cache(),
    "memory_not_pinned": lambda x, event: x.copy_(torch.ones(4, 4), non_blocking=True),
    "another_capture": lambda x, event: captured(lambda: x + 1),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_waits_is_refused_in_a_capture(name, x):
    event = torch.npu.Event()
    event.record()
    with pytest.raises(RuntimeError, match="captured"), torch.npu.graph(torch.npu.NPUGraph()):
        FORBIDDEN[name](x, event)
    assert not torch.npu.is_current_stream_capturing()


def test_pinned_memory_is_read_in_the_replay(x):
    host = torch.ones(4, 4).pin_memory()
    graph, _ = captured(lambda: x.copy_(host, non_blocking=True))
    host.fill_(5.0)
    graph.replay()
    assert x.unique().tolist() == [5.0]


def test_shapes_that_depend_on_data_are_noticed():
    counts = torch.tensor([1, 2], device="npu")
    graph, _ = captured(lambda: torch.repeat_interleave(counts, output_size=3))
    counts.fill_(5)
    with pytest.raises(RuntimeError, match="allocated size|shape depends on data"):
        graph.replay()


def test_random_numbers_differ_in_every_replay():
    graph, numbers = captured(lambda: torch.rand(4, device="npu"))
    torch.npu.manual_seed(3)
    graph.replay()
    first = numbers.tolist()
    graph.replay()
    assert numbers.tolist() != first
    torch.npu.manual_seed(3)
    graph.replay()
    assert numbers.tolist() == first


def test_replays_are_counted_and_graphs_tell_their_size(x):
    before = graphs.num_replays()
    graph, _ = captured(lambda: x + 1 + 1)
    assert graph.num_operations == 2
    graph.replay()
    graph.replay()
    assert graphs.num_replays() - before == 2
    graph.reset()
    with pytest.raises(RuntimeError, match="nothing has been captured"):
        graph.replay()


def test_the_default_stream_is_not_captured():
    with pytest.raises(RuntimeError, match="default stream"):
        torch.npu.NPUGraph().capture_begin()


def test_another_thread_is_not_captured(x):
    from threading import Thread

    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        x + 1
        thread = Thread(target=lambda: (x * 2).sum().item())
        thread.start()
        thread.join()
    assert graph.num_operations == 1


def test_a_call_into_python_is_repeated(x):
    calls = []
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        graphs.call_in_graphs(lambda: calls.append(1))
    assert len(calls) == 1
    graph.replay()
    assert len(calls) == 2


STEPS = {
    "add": lambda t: t.add_(1),
    "scale": lambda t: t * 0.5,
    "relu": lambda t: torch.relu(t),
    "sort": lambda t: t.sort(-1).values,
    "roll": lambda t: t.roll(1, 0),
    "view": lambda t: t.t(),
    "part": lambda t: t.index_fill(1, torch.zeros(1, dtype=torch.int64, device=t.device), 2.0),
    "sum": lambda t: t.cumsum(0),
    "write": lambda t: t.masked_fill_(t > 3, -1.0),
}


@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6), st.integers(-9, 9))
def test_a_replay_is_the_eager_call(steps, start):
    def run(t):
        for name in steps:
            t = STEPS[name](t)
        return t

    inputs = torch.zeros(4, 4, device="npu")
    graph, result = captured(lambda: run(inputs.clone()))
    values = (torch.arange(16.0) + start).view(4, 4)
    inputs.copy_(values)
    graph.replay()
    assert torch.equal(result.cpu(), run(values.clone()))

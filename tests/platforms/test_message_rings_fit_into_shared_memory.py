"""The rings between engine and worker fit into /dev/shm, or a server says that they cannot.

Claim: the chunk chosen for any free space and any number of ranks fits, is the largest that does
and no larger than vLLM's; a user's choice stays; processes of a server keep what it decided; and
messages larger than a chunk arrive whole in both directions. If this breaks, a server in a
container with 64 MiB of /dev/shm ends at its start, or is killed by a bus error in a full one.
"""

from __future__ import annotations

import inspect
import os
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import vllm.envs
from hypothesis import given
from hypothesis import strategies as st
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue, ShmRingBuffer
from vllm.v1.executor import multiproc_executor

from vllm_deepinfer.platforms import message_rings
from vllm_deepinfer.platforms.message_rings import (
    CHUNK_MIB,
    DEFAULT_CHUNK_MIB,
    SharedMemoryError,
    choose_chunk_mib,
    fit,
    max_ranks,
    rank_bytes,
    ring_bytes,
    users_chunk_mib,
)

MIB = 1 << 20
SIZES = st.integers(0, 4096 * MIB)
RANKS = st.integers(1, 16)


def chosen(free_bytes, num_ranks):
    """The chunk in MiB; 0 where no chunk fits."""
    try:
        chunk_mib = choose_chunk_mib(free_bytes, num_ranks)
    except SharedMemoryError:
        return 0
    return DEFAULT_CHUNK_MIB if chunk_mib is None else chunk_mib


@pytest.mark.parametrize(
    ("free_mib", "num_ranks", "chunk_mib"),
    [
        (64, 1, 3),
        (64, 2, 1),
        (64, 3, 1),
        (256, 1, 12),
        (256, 2, 6),
        (1024, 1, None),
        (1024, 2, None),
    ],
)
def test_usual_sizes(free_mib, num_ranks, chunk_mib):
    assert choose_chunk_mib(free_mib * MIB, num_ranks) == chunk_mib


@given(SIZES, RANKS)
def test_what_is_chosen_fits_and_the_next_size_does_not(free_bytes, num_ranks):
    chunk_mib = chosen(free_bytes, num_ranks)
    assert 0 <= chunk_mib <= DEFAULT_CHUNK_MIB
    if chunk_mib == DEFAULT_CHUNK_MIB:
        assert num_ranks * rank_bytes(None) <= free_bytes
    else:
        assert num_ranks * rank_bytes(chunk_mib) <= free_bytes or chunk_mib == 0
        larger = chunk_mib + 1 if chunk_mib + 1 < DEFAULT_CHUNK_MIB else None
        assert num_ranks * rank_bytes(larger) > free_bytes
    assert (chunk_mib > 0) == (num_ranks <= max_ranks(free_bytes))


@given(SIZES, SIZES, RANKS, RANKS)
def test_more_room_or_fewer_ranks_never_mean_smaller_chunks(one, other, few, many):
    low, high = sorted((one, other))
    few, many = sorted((few, many))
    assert chosen(low, many) <= chosen(high, many) <= chosen(high, few)


@given(SIZES, RANKS, st.integers(1, 64))
def test_a_users_chunk_is_kept_or_refused(free_bytes, num_ranks, users_mib):
    if ring_bytes(users_mib) <= free_bytes:
        assert choose_chunk_mib(free_bytes, num_ranks, users_mib) == users_mib
    else:
        with pytest.raises(SharedMemoryError, match=f"{CHUNK_MIB}={users_mib}; unset it"):
            choose_chunk_mib(free_bytes, num_ranks, users_mib)


@pytest.mark.parametrize(("num_ranks", "size"), [(1, "256m"), (40, "1024m")])
def test_a_refusal_names_bytes_and_remedies(num_ranks, size):
    with pytest.raises(SharedMemoryError) as refusal:
        choose_chunk_mib(5 * MIB, num_ranks)
    text = str(refusal.value)
    for word in (str(5 * MIB), str(num_ranks * rank_bytes(1)), f"--shm-size={size}", "--ipc=host"):
        assert word in text
    assert ("fewer data-parallel ranks" in text) == (num_ranks > 1)
    assert choose_chunk_mib(int(size[:-1]) * MIB, num_ranks) != 0


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "16MB"])
def test_a_chunk_that_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match=CHUNK_MIB):
        users_chunk_mib({CHUNK_MIB: text})


def test_sizes_are_those_of_vllm(monkeypatch):
    monkeypatch.delenv(CHUNK_MIB, raising=False)
    assert vllm.envs.environment_variables[CHUNK_MIB]() == DEFAULT_CHUNK_MIB
    defaults = inspect.signature(MessageQueue.__init__).parameters
    assert defaults["max_chunk_bytes"].default == message_rings.DEFAULT_RESULT_CHUNK_MIB * MIB
    assert defaults["max_chunks"].default == message_rings.NUM_CHUNKS
    ring = ShmRingBuffer(1, 3 * MIB, message_rings.NUM_CHUNKS)
    assert ring.total_bytes_of_buffer == ring_bytes(3)


@pytest.fixture
def server(monkeypatch):
    """Decides for a server in this process, with some MiB free."""
    monkeypatch.setattr(message_rings, "_last", None)
    monkeypatch.setenv(CHUNK_MIB, "restored afterwards")
    monkeypatch.delenv(CHUNK_MIB)

    def decide(free_mib, num_ranks=1, backend="mp"):
        free = None if free_mib is None else free_mib * MIB
        monkeypatch.setattr(message_rings, "free_bytes", lambda: free)
        fit(
            SimpleNamespace(
                parallel_config=SimpleNamespace(
                    distributed_executor_backend=backend, data_parallel_size_local=num_ranks
                )
            )
        )
        return os.environ.get(CHUNK_MIB)

    return decide


def test_the_newest_configuration_decides(server):
    for free_mib, num_ranks, chunk in [(64, 1, "3"), (64, 2, "1"), (2048, 2, None), (64, 1, "3")]:
        for _ in range(2):
            assert server(free_mib, num_ranks) == chunk


def test_a_server_without_rings_or_shared_memory_decides_nothing(server):
    assert server(1, backend="uni") is None
    assert server(None) is None


def test_a_users_chunk_stays(server, monkeypatch):
    monkeypatch.setenv(CHUNK_MIB, "2")
    for free_mib in (64, 2048):
        assert server(free_mib) == "2"
    with pytest.raises(SharedMemoryError, match=f"{CHUNK_MIB}=2"):
        server(19)


@pytest.mark.parametrize("free_mib", [64, 2048])
def test_a_servers_processes_keep_what_it_decided(server, monkeypatch, free_mib):
    """By then its own rings lie in /dev/shm."""
    chunk = server(free_mib)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert server(1) == chunk


def test_a_spawned_process_takes_what_it_inherits(server, monkeypatch):
    chunk = server(64, 3)
    monkeypatch.setattr(message_rings, "_last", None)
    assert server(60, 3) == chunk


@pytest.fixture
def queues(monkeypatch):
    """The two queues of a worker with chunks of 1 MiB, made by vLLM's own methods."""
    monkeypatch.setattr(multiproc_executor, "MessageQueue", MessageQueue)
    message_rings.shrink_results({CHUNK_MIB: "1"})
    steps = multiproc_executor.MessageQueue(1, 1, max_chunk_bytes=MIB)
    worker = SimpleNamespace(worker=SimpleNamespace(rank=0))
    config = SimpleNamespace(parallel_config=SimpleNamespace(nnodes_within_dp=1))
    multiproc_executor.WorkerProc._init_message_queues(worker, steps.export_handle(), config)
    results = multiproc_executor.MessageQueue.create_from_handle(
        worker.worker_response_mq.export_handle(), 0
    )
    return [(steps, worker.rpc_broadcast_mq), (worker.worker_response_mq, results)]


def test_the_ring_of_results_is_as_small_as_that_of_steps(queues):
    for writer, reader in queues:
        assert writer.buffer.max_chunk_bytes == reader.buffer.max_chunk_bytes == MIB


@pytest.mark.parametrize("chunk", [None, "24", "32"])
def test_the_ring_of_results_is_vllms_where_it_may_be(monkeypatch, chunk):
    message_rings.shrink_results({} if chunk is None else {CHUNK_MIB: chunk})
    assert multiproc_executor.MessageQueue is MessageQueue


def test_messages_larger_than_a_chunk_arrive_whole_and_in_order(queues):
    messages = [
        [1, 2, 3],
        list(range(700_000)),
        {"logprobs": np.arange(600_000, dtype=np.float32), "tokens": [7]},
        torch.arange(500_000),
        b"x" * (MIB - 100),
        *range(2 * message_rings.NUM_CHUNKS),
    ]
    for writer, reader in queues:
        wait_until_connected(writer, reader)
        for message in messages:
            writer.enqueue(message)
            assert as_plain(reader.dequeue(timeout=20)) == as_plain(message)


def wait_until_connected(writer, reader):
    thread = Thread(target=writer.wait_until_ready)
    thread.start()
    reader.wait_until_ready()
    thread.join()


def as_plain(message):
    if isinstance(message, dict):
        return {name: as_plain(value) for name, value in message.items()}
    return message.tolist() if hasattr(message, "tolist") else message

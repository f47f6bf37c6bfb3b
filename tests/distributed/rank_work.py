"""What ranks do in the tests here: functions that ``Ranks.run`` finds by name.

Every rank draws the inputs of all ranks from one seed, so that each can check its own outputs.
"""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from vllm_deepinfer.distributed import agreement
from vllm_deepinfer.distributed.exchange import GroupExchange
from vllm_deepinfer.models.deepseek_v41.engram import Engram, EngramConstants
from vllm_deepinfer.models.deepseek_v41.engram_lookup import EngramLookup
from vllm_deepinfer.models.deepseek_v41.expert_exchange import LocalExperts
from vllm_deepinfer.models.deepseek_v41.moe import ExpertCounts, MixtureOfExperts
from vllm_deepinfer.models.deepseek_v41.step import Step
from vllm_deepinfer.ops.numerics import Numerics
from vllm_deepinfer.worker import step_profile

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8)
SHAPES = ((), (1,), (3,), (2, 5), (4, 0))


def draw(generator: torch.Generator, dtype: torch.dtype, *shape: int) -> Tensor:
    """Small whole numbers: their sums are exact in every dtype."""
    return torch.randint(0, 17, shape, generator=generator).to(dtype)


def draw_sizes(choice: random.Random, num_ranks: int) -> list[int]:
    return [choice.choice((0, 0, 1, 2, 7)) for _ in range(num_ranks)]


def gathers(communicator: Any, seed: int, cases: int) -> None:
    choice, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    ranks, own = range(communicator.world_size), communicator.rank_in_group
    for _ in range(cases):
        sizes, dim = draw_sizes(choice, len(ranks)), choice.choice((0, 0, 1))
        inputs = []  # by tensor, by rank
        for _ in range(choice.choice((1, 3))):
            dtype, shape = choice.choice(DTYPES), choice.choice(SHAPES[1:])
            rows = [draw(generator, dtype, size, *shape) for size in sizes]
            inputs.append([tensor.movedim(0, dim) for tensor in rows])
        mine = [by_rank[own] for by_rank in inputs]
        single = len(mine) == 1 and choice.random() < 0.5
        found = communicator.all_gatherv(mine[0] if single else mine, dim, sizes)
        for tensor, by_rank in zip([found] if single else found, inputs, strict=True):
            assert_same(tensor, torch.cat(by_rank, dim))


def scatters(communicator: Any, seed: int, cases: int) -> None:
    choice, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    ranks, own = range(communicator.world_size), communicator.rank_in_group
    for _ in range(cases):
        sizes, dim = draw_sizes(choice, len(ranks)), choice.choice((0, 0, 1, -1))
        dtype, shape = choice.choice(DTYPES), choice.choice(SHAPES[1:])
        inputs = [draw(generator, dtype, sum(sizes), *shape).movedim(0, dim) for _ in ranks]
        before = inputs[own].clone()
        found = communicator.reduce_scatterv(inputs[own], dim, sizes)
        assert_same(inputs[own], before)
        start = sum(sizes[:own])
        total = sum(inputs[1:], inputs[0].clone())
        assert_same(found, total.narrow(dim, start, sizes[own]))


def equal_sizes(communicator: Any) -> None:
    own, ranks = communicator.rank_in_group, communicator.world_size
    gathered = communicator.all_gatherv(torch.full((2, 3), own))
    assert gathered[:, 0].tolist() == [rank for rank in range(ranks) for _ in range(2)]
    scattered = communicator.reduce_scatterv(torch.arange(2 * ranks), 0)
    assert scattered.tolist() == [2 * own * ranks, (2 * own + 1) * ranks]


def wrong_sizes(communicator: Any) -> list[str]:
    """The errors of sizes that do not fit; none of them starts a collective."""
    rows, errors = torch.zeros(2, 3), []
    calls = (
        lambda: communicator.all_gatherv(rows, 0, [1] * communicator.world_size),
        lambda: communicator.all_gatherv(rows, 0, [2]),
        lambda: communicator.all_gatherv([rows, rows[:1]]),
        lambda: communicator.reduce_scatterv(rows, 0, [2] * communicator.world_size),
        lambda: communicator.reduce_scatterv(torch.zeros(communicator.world_size + 1), 0),
    )
    for call in calls:
        try:
            call()
        except ValueError as error:
            errors.append(str(error))
    return errors


def different_passes(communicator: Any) -> str:
    """The error of ranks that run different passes."""
    own = "target" if communicator.rank_in_group == 0 else "draft"
    try:
        GroupExchange(communicator, own).row_counts(1)
    except RuntimeError as error:
        return str(error)
    return ""


def experts_equal_local(
    communicator: Any, config: Any, counts: ExpertCounts, sizes: list[int], favoured: list[int]
) -> int:
    """Compares with one rank that holds every expert; returns how many experts are held here.

    favoured: if not empty, the only experts any token chooses.
    """
    numerics, own = Numerics(), communicator.rank_in_group
    exchange = GroupExchange(communicator, "target")
    whole = MixtureOfExperts(config, 0, counts, numerics, LocalExperts())
    spread = MixtureOfExperts(config, 0, counts, numerics, exchange)
    fill(whole, spread, favoured)
    rows = torch.randn(sum(sizes), config.hidden_size).to(torch.bfloat16)
    first = sum(sizes[:own])
    mine = slice(first, first + sizes[own])
    rank_rows = exchange.row_counts(sizes[own])
    assert rank_rows == tuple(sizes)

    activation = numerics.activation(rows)
    chosen, weights = whole.gate.choose(rows, None)
    if favoured:
        assert set(chosen.flatten().tolist()) <= set(favoured)
    wanted = whole.experts(activation, chosen, weights)
    found = spread.routed(activation[mine], chosen[mine], weights[mine], rank_rows)
    assert_same(found, wanted[mine])
    # All of the layer, over passes in which some ranks have no token and only join.
    for index in range(max(sizes)):
        rank_rows = tuple(int(index < size) for size in sizes)
        if rank_rows[own]:
            row = rows[first + index : first + index + 1]
            assert_same(spread(row, rank_rows), whole(row))
        else:
            spread.join(rank_rows)
    return len(spread.experts.held)


def fill(whole: MixtureOfExperts, spread: MixtureOfExperts, favoured: list[int]) -> None:
    """Random weights for all experts, and those of a rank's own."""
    torch.manual_seed(0)
    held = spread.experts.held
    own = dict(spread.named_parameters())
    for name, parameter in whole.named_parameters():
        if parameter.dtype.itemsize == 1:
            scale = parameter.dtype == torch.float8_e8m0fnu
            low, high = (118, 122) if scale else (0, 120)
            parameter.view(torch.uint8).random_(low, high)
        else:
            parameter.copy_(torch.randn(parameter.shape) / 16)
        if name == "gate.bias" and favoured:
            parameter[favoured] += 100
        rows = slice(held.start, held.stop) if name.startswith("experts.") else slice(None)
        own[name].view(torch.uint8).copy_(parameter[rows].view(torch.uint8))


def tables_equal_one(
    communicator: Any, config: Any, bucket_rows: list[int], sizes: list[int]
) -> list[int]:
    """Compares with one rank that holds every row; returns how many rows are held here.

    bucket_rows: rows of each hash bucket, by layer.
    """
    own, exchange = communicator.rank_in_group, GroupExchange(communicator, "target")
    whole = lookup_of(config, bucket_rows, LocalExperts())
    spread = lookup_of(config, bucket_rows, exchange)
    torch.manual_seed(1)
    ngrams = torch.randint(-1, 30, (sum(sizes), config.engram_max_ngram_size))
    mine = slice(sum(sizes[:own]), sum(sizes[: own + 1]))
    check_rows(spread, whole, ngrams[mine], exchange.row_counts(sizes[own]))
    # Passes in which some ranks have no token and only join.
    for index in range(max(sizes)):
        rank_rows = tuple(int(index < size) for size in sizes)
        if rank_rows[own]:
            check_rows(spread, whole, ngrams[mine][index : index + 1], rank_rows)
        else:
            spread.join(rank_rows)
    return [len(engram.embed.held) for engram in spread.engrams]


def check_rows(spread: Any, whole: Any, ngrams: Tensor, rank_rows: tuple[int, ...]) -> None:
    """Every bit of the rows, and of the streams that take them up."""
    count, width = whole.engrams[0].q_weight.shape
    streams = torch.randn(len(ngrams), count, width).to(torch.bfloat16)
    step = Step(torch.arange(len(ngrams)), [0, len(ngrams)], [len(ngrams)], ngrams, {})
    step.rank_rows = rank_rows
    found, wanted = spread.find(step), whole.find(step)
    assert found.keys() == wanted.keys()
    for engram in whole.engrams:
        rows, exact = found[engram.layer], wanted[engram.layer]
        assert_same(rows.weight[rows.numbers], exact.weight[exact.numbers])
        assert_same(rows.scale[rows.numbers], exact.scale[exact.numbers])
        assert_same(engram(streams, rows), engram(streams, exact))


def lookup_of(config: Any, bucket_rows: list[int], exchange: Any) -> EngramLookup:
    """Engram layers with the same random weights on every rank; a table keeps its share.

    Of a table, every byte occurs: numbers that are none are moved like all others.
    """
    heads, size = config.engram_n_heads, config.engram_max_ngram_size
    engrams = []
    for layer, rows in enumerate(bucket_rows):
        generator = torch.Generator().manual_seed(layer)
        total = rows * (size - 1) * heads
        held = exchange.held(total)
        engram = Engram(config, layer, held, Numerics())
        for name, parameter in engram.named_parameters():
            shape = [total if name.startswith("embed.") else len(parameter), *parameter.shape[1:]]
            if parameter.dtype.itemsize == 1:
                low, high = (0, 256) if name.startswith("embed.") else (110, 120)
                drawn = torch.randint(low, high, shape, generator=generator, dtype=torch.uint8)
            else:
                drawn = torch.randn(shape, generator=generator).to(parameter.dtype)
            drawn = drawn[held.start : held.stop] if name.startswith("embed.") else drawn
            parameter.view(torch.uint8).copy_(drawn.view(torch.uint8))
        buckets = torch.arange((size - 1) * heads).view(size - 1, heads)
        engram.constants = EngramConstants(
            token_map=torch.arange(29),
            pad_id=0,
            multipliers=torch.arange(1, 2 * size, 2) * 7919,
            primes=torch.full_like(buckets, rows),
            offsets=buckets * rows,
        )
        engrams.append(engram)
    return EngramLookup(engrams, exchange)


def assert_same(found: Tensor, wanted: Tensor) -> None:
    """Equal in dtype, shape and every bit."""
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    as_bytes = [tensor.contiguous().flatten().view(torch.uint8) for tensor in (found, wanted)]
    assert torch.equal(*as_bytes)


def asks(communicator: Any, yes: list[list[bool]]) -> list[bool]:
    """What every rank is told for each question; ``yes`` holds every rank's own answers."""
    agreement.get_dp_group = lambda: communicator
    return [agreement.any_rank(answers[communicator.rank_in_group]) for answers in yes]


def profiles(communicator: Any, step_s: float, budget_s: float) -> list[int]:
    """The sizes timed where the last rank's clock runs ten times slower than the others'."""
    agreement.get_dp_group = lambda: communicator
    is_slow = communicator.rank_in_group == communicator.world_size - 1
    clock = SteadyClock(step_s * (10 if is_slow else 1))
    with mock.patch.object(step_profile.time, "perf_counter", clock.now_s):
        timed = step_profile.profile_forward(
            clock.run, clock, [1, 2, 4, 8, 16], budget_s, agreement.any_rank
        )
    return [size for size, _ in timed]


class SteadyClock:
    """Time that passes with work only: ``step_s`` for each token."""

    def __init__(self, step_s: float) -> None:
        self.step_s, self.spent_s, self.taken_s = step_s, 0.0, 0.0

    def now_s(self) -> float:
        return self.spent_s

    def run(self, num_tokens: int) -> None:
        self.spent_s += self.step_s * num_tokens

    def take_ms(self) -> float:
        taken_s, self.taken_s = self.spent_s - self.taken_s, self.spent_s
        return 1e3 * taken_s

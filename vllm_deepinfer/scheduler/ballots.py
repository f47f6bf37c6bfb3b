"""The exchange of ballots between data-parallel ranks: one small all-reduce.

Every rank fills its own row of a zero table and the sum is the table that all of them see. Each row
also carries what must be equal everywhere, so that ranks out of step are named instead of deciding
from ballots of different steps.
"""

from __future__ import annotations

import operator
import zlib
from datetime import timedelta
from functools import cache

import torch
from torch.distributed import AllreduceOptions, ProcessGroup, ReduceOp

from vllm_deepinfer.scheduler.vote import Ballot, VoteError, VoteSettings

_HEADER = ("round", "settings")


class ExchangeError(RuntimeError):
    """Ballots could not be exchanged, or those that arrived are of different steps."""


def exchange_ballots(
    ballot: Ballot,
    group: ProcessGroup,
    timeout_s: float,
    *,
    round_number: int,
    settings: VoteSettings | None = None,
) -> list[Ballot]:
    """Gives this rank's ballot to all ranks and returns those of all, in rank order.

    Collective: every rank of `group` calls it at the same point of its loop.

    Args:
        ballot: this rank's, integers only.
        group: a gloo group, one process per rank.
        timeout_s: longest wait for the slowest rank.
        round_number: equal on all ranks and at least 1, such as the number of the step.
        settings: those that this rank votes by; all ranks must have the same.

    Raises:
        VoteError: the ballot or the round is not an integer in range.
        ExchangeError: a rank did not answer in time or went away, or ranks are out of step. After
            a failed wait the group is broken.
    """
    if round_number < 1:
        raise VoteError(f"round_number is {round_number}; it must be at least 1.")
    row = [round_number, _fingerprint(settings), *_integers(ballot)]
    table = torch.zeros((group.size(), len(row)), dtype=torch.int64)
    table[group.rank()] = torch.tensor(row, dtype=torch.int64)
    _sum_over_ranks(table, group, timeout_s)
    rows = table.tolist()
    for column, name in enumerate(_HEADER):
        _check_equal(name, [row[column] for row in rows])
    return [Ballot(*row[len(_HEADER) :]) for row in rows]


def _integers(ballot: Ballot) -> list[int]:
    """The fields, checked: torch would cut a fraction off without a word."""
    values = []
    for name, value in zip(Ballot._fields, ballot, strict=True):
        try:
            values.append(operator.index(value))
        except TypeError:
            raise VoteError(f"{name} of a ballot is {value!r}; it must be an integer.") from None
        if not 0 <= values[-1] < 2**62:
            raise VoteError(f"{name} of a ballot is {value}; allowed: 0 to 2**62 - 1.")
    return values


@cache
def _fingerprint(settings: VoteSettings | None) -> int:
    return 0 if settings is None else zlib.crc32(repr(settings).encode())


def _sum_over_ranks(table: torch.Tensor, group: ProcessGroup, timeout_s: float) -> None:
    options = AllreduceOptions()
    options.reduceOp = ReduceOp.SUM
    # The collective's own limit: it ends the exchange itself, not only the wait for it.
    options.timeout = timedelta(seconds=timeout_s)
    try:
        group.allreduce([table], options).wait()
    except RuntimeError as error:
        raise ExchangeError(
            f"rank {group.rank()} could not exchange ballots with all {group.size()} "
            f"data-parallel ranks within {timeout_s:g} s: {error}. A rank stopped, hangs, or runs "
            f"longer than that in one step: look at the logs of the other ranks for the first "
            f"error. If they were only slow, raise --cpu-distributed-timeout-seconds."
        ) from error


def _check_equal(name: str, values: list[int]) -> None:
    if len(set(values)) == 1:
        return
    seen = ", ".join(f"rank {rank}: {value}" for rank, value in enumerate(values))
    advice = {
        "round": "The ranks ran different numbers of steps; restart all of them",
        "settings": "Give every rank the same vote options (these are checksums of them)",
    }[name]
    raise ExchangeError(
        f"ballots of {len(values)} data-parallel ranks differ in {name} ({seen}). {advice}."
    )

"""Compares a torch implementation with the upstream kernel in Triton's interpreter."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from runner_kernels.interpreter_oracle import (
    InterpreterOracle,
    PointerTable,
    copy_argument,
    launch_form,
)
from upstream_sources import FETCHED, fetched_folder

from vllm_deepinfer.runner_kernels import VERSION, extents, kernels_of

Tolerance = tuple[float, float]  # relative, absolute
Version = tuple[int, int]

# Folders that hold the package `vllm` of releases that are not the installed one.
SOURCES: dict[Version, Path] = {r.version: fetched_folder(r.tag) for r in FETCHED}
SOURCES.pop(VERSION, None)
RELEASES: list[Version] = [VERSION, *SOURCES]


def run_ours(
    kernel: str,
    grid: tuple[int, ...],
    arguments: dict[str, Any],
    on_host: bool,
    version: Version = VERSION,
) -> dict[str, Any]:
    """Arguments as the torch implementation leaves them. `on_host=False` makes it choose the shapes
    it would choose on an accelerator, where reading a number from a tensor is not free."""
    after = {name: copy_argument(value) for name, value in arguments.items()}
    launched = {name: launch_form(value) for name, value in after.items()}
    implementation = kernels_of(version)[kernel]
    if "grid" in inspect.signature(implementation).parameters:
        launched["grid"] = grid
    with mock.patch.object(extents, "is_host", lambda tensor: on_host):
        implementation(**launched)
    return after


def check(
    oracle: InterpreterOracle,
    kernel: str,
    grid: tuple[int, ...],
    arguments: dict[str, Any],
    close: dict[str, Tolerance] | None = None,
    version: Version = VERSION,
) -> dict[str, Any]:
    """Every argument must end up as upstream's kernel of `version` leaves it, bit for bit unless
    `close` names it."""
    root = SOURCES.get(version)
    assert root is None or root.is_dir(), f"{root} is missing: run `make upstream-source`"
    expected = oracle.run(kernel, grid, arguments, root)
    for on_host in (True, False):
        actual = run_ours(kernel, grid, arguments, on_host, version)
        for name, value in expected.items():
            place = f"{kernel.rsplit('.', 1)[1]}, {name}, on_host={on_host}"
            _compare(place, actual[name], value, (close or {}).get(name))
    return expected


def _compare(place: str, actual: Any, expected: Any, tolerance: Tolerance | None) -> None:
    if isinstance(expected, PointerTable):
        for number, pair in enumerate(zip(actual.tensors, expected.tensors, strict=True)):
            _compare(f"{place}[{number}]", *pair, tolerance)
    elif isinstance(expected, torch.Tensor) and tolerance is not None:
        torch.testing.assert_close(
            actual, expected, rtol=tolerance[0], atol=tolerance[1], equal_nan=True, msg=None
        )
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(
            actual,
            expected,
            rtol=0,
            atol=0,
            equal_nan=True,
            msg=lambda difference: f"{place}: {difference}",
        )


class Batch:
    """A random batch: `num_reqs` rows over `max_num_reqs` request slots, then padding rows."""

    def __init__(
        self, seed: int, num_reqs: int, max_num_reqs: int = 9, max_len: int = 40, max_query: int = 6
    ) -> None:
        self.random = np.random.default_rng(seed)
        self.num_reqs, self.max_num_reqs, self.max_len = num_reqs, max_num_reqs, max_len
        self.idx_mapping = torch.from_numpy(self.random.permutation(max_num_reqs)[:num_reqs])
        lengths = self.random.integers(1, max_query + 1, num_reqs)
        self.num_tokens = int(lengths.sum())
        self.query_start_loc = torch.full((max_num_reqs + 1,), self.num_tokens, dtype=torch.int32)
        self.query_start_loc[0] = 0
        self.query_start_loc[1 : num_reqs + 1] = torch.from_numpy(lengths.cumsum())
        self.query_lens = torch.from_numpy(lengths)

    def verification_rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Request slots and local positions of logit rows, one to four to a request."""
        counts = torch.from_numpy(self.random.integers(1, 5, self.num_reqs))
        local_pos = [torch.arange(count, dtype=torch.int32) for count in counts.tolist()]
        slots = torch.repeat_interleave(self.idx_mapping, counts)
        return slots, torch.cat([torch.zeros(0, dtype=torch.int32), *local_pos])

    def integers(
        self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int32
    ) -> torch.Tensor:
        """Random integers, `high` included."""
        return torch.from_numpy(self.random.integers(low, high + 1, shape)).to(dtype)

    def normal(
        self, *shape: int, row_padding: int = 0, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """Random numbers; with `row_padding`, rows lie further apart than they are long."""
        whole = 3 * self.random.standard_normal((*shape[:-1], shape[-1] + row_padding))
        return torch.from_numpy(whole).to(dtype)[..., : shape[-1]]

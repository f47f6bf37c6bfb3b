"""A KV cache whose rows tell which prefix they belong to, and the vectors that carry such rows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vllm_deepinfer.models.deepseek_v41.cache import Cache, CacheKind
from vllm_deepinfer.models.deepseek_v41.step import Step
from vllm_deepinfer.ops.records import PlainRecord

TOKEN, POSITION, CHECKSUM = range(3)
ROW_WIDTH = 3
START_CHECKSUM = 1
_MODULUS = 8388593  # largest prime below 2**23, so that float32 holds every checksum
_DIGIT = 256  # bfloat16 holds integers up to it
_DIGITS_PER_NUMBER = 3
HIDDEN_WIDTH = ROW_WIDTH * _DIGITS_PER_NUMBER


def extended(checksum: np.ndarray, token: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Checksum of a prefix from that of the prefix one token shorter."""
    return (checksum * 1103 + token * 7919 + position * 13 + 1) % _MODULUS


class Journal:
    """Rows (token, position, checksum of the prefix) in one window cache."""

    def __init__(self, name: str, window_tokens: int) -> None:
        record = PlainRecord(ROW_WIDTH, torch.float32)
        self.cache = Cache(name, CacheKind.WINDOW, record)
        self.window_tokens = window_tokens

    def append(self, step: Step, tokens: np.ndarray) -> np.ndarray:
        """Store the step's rows after those before them; int64 ``[T, 3]``."""
        positions = step.positions.cpu().numpy()
        starts = np.array(step.query_starts)
        before = torch.from_numpy(positions[starts[:-1]] - 1)
        requests = torch.arange(len(before))
        found = self._load(step, requests, before.unsqueeze(1))[:, 0, CHECKSUM]
        checksum = np.where(before.numpy() < 0, START_CHECKSUM, found)
        rows = np.stack([tokens, positions, tokens], 1)
        for offset in range(int(np.diff(starts).max())):
            live = np.flatnonzero(starts[:-1] + offset < starts[1:])
            index = starts[live] + offset
            checksum[live] = extended(checksum[live], tokens[index], positions[index])
            rows[index, CHECKSUM] = checksum[live]
        self.store(step.write_rows(self.cache).rows, torch.from_numpy(rows).float())
        return rows

    def windows(self, step: Step, requests: Tensor, newest: Tensor) -> np.ndarray:
        """Rows ``[n, W, 3]`` of the windows that end at ``newest`` ``[n]``, zero before the start.

        ``requests`` ``[n]`` of the step they belong to.
        """
        back = torch.arange(1 - self.window_tokens, 1)
        return self._load(step, requests, newest.unsqueeze(1) + back)

    def is_dry_run(self, step: Step) -> bool:
        """Whether the step stores nothing: vLLM's warm-ups compute on blocks nobody owns."""
        return not (step.write_rows(self.cache).rows >= 0).any()

    def are_whole(self, windows: np.ndarray, newest: np.ndarray) -> np.ndarray:
        """Whether each of ``windows`` holds one unbroken prefix up to its newest position."""
        expected = newest[:, None] + np.arange(1 - self.window_tokens, 1)
        exists = expected >= 0
        token, position, checksum = np.moveaxis(windows, -1, 0)
        before = np.concatenate([np.full((len(windows), 1), -1), checksum[:, :-1]], 1)
        before[expected == 0] = START_CHECKSUM
        linked = extended(before, token, position) == checksum
        linked[:, 0] |= expected[:, 0] != 0  # what it continues has left the window
        return ((position == expected) & linked | ~exists).all(1)

    def store(self, rows: Tensor, values: Tensor) -> None:
        """Put ``values`` ``[n, 3]`` into cache rows ``[n]``; negative rows are skipped."""
        kept = rows >= 0
        block, row = self._place(rows[kept])
        self.cache.storage[block, row] = values[kept].contiguous().view(torch.uint8)

    def _load(self, step: Step, requests: Tensor, positions: Tensor) -> np.ndarray:
        blocks, row = self._place(positions)
        block = step.paging[self.cache.name].block_table[requests.unsqueeze(1), blocks].long()
        values = self.cache.storage[block, row].view(torch.float32).nan_to_num(-1)
        values.masked_fill_((positions < 0)[..., None], 0)
        return values.clamp(-1, 2**24).numpy().astype(np.int64)

    def _place(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Block and row within it; the first of all for negative rows."""
        rows = rows.clamp_min(0)
        return rows // self.cache.rows_per_block, rows % self.cache.rows_per_block


def to_hidden(rows: np.ndarray, width: int, dtype: torch.dtype) -> Tensor:
    """Integers below 2**24, ``[T, n]``, as base-256 digits in the first columns ``[T, width]``."""
    powers = _DIGIT ** np.arange(_DIGITS_PER_NUMBER)
    digits = rows[:, :, None] // powers % _DIGIT
    hidden = torch.zeros(len(rows), width, dtype=dtype)
    hidden[:, : digits[0].size] = torch.from_numpy(digits.reshape(len(rows), -1)).to(dtype)
    return hidden


def from_hidden(hidden: Tensor, count: int) -> np.ndarray:
    """The ``count`` integers ``[T, count]`` that ``to_hidden`` laid out."""
    digits = hidden[:, : count * _DIGITS_PER_NUMBER].float().numpy().astype(np.int64)
    powers = _DIGIT ** np.arange(_DIGITS_PER_NUMBER)
    return (digits.reshape(len(digits), count, _DIGITS_PER_NUMBER) * powers).sum(-1)

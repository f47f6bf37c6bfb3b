"""The uniform number behind each acceptance test: Philox 4x32 of 10 rounds, as Triton's `tl.rand`.

Counter-based: a function of the request's seed (the key) and the position (the counter). Bit-equal
to upstream's.

The steps are written with operators on int64 only, so that they take numpy arrays as well: on the
host numpy needs a third of torch's time for the few numbers of a batch.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch

from vllm_deepinfer.ops.runner.extents import is_host

_NUM_ROUNDS = 10
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WORD = 0xFFFFFFFF
# The largest float32 whose product with 2**31 - 1 is below 1, and the least number upstream uses.
_SCALE = 4.6566127342e-10

_Words = TypeVar("_Words", torch.Tensor, np.ndarray)


def acceptance_uniform(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Uniform numbers in (0, 1), float32, one for each position.

    seeds int64 [num_rows, 1] or the shape of positions; positions int64 [num_rows, num_steps].
    """
    if is_host(positions):
        words = torch.from_numpy(_first_word(seeds.numpy(), positions.numpy()))
    else:
        words = _first_word(seeds, positions)
    # As upstream: the word as a signed number, folded onto the non-negative ones.
    words = words.to(torch.int32)
    words = words ^ (words >> 31)
    return words.float().mul_(_SCALE).clamp_(min=_SCALE)


def _first_word(seeds: _Words, positions: _Words) -> _Words:
    """First of the four output words, as int64 in 0..2**32 - 1."""
    keys = (seeds & _WORD, (seeds >> 32) & _WORD)
    even, odd = (positions & _WORD, positions * 0), ((positions >> 32) & _WORD, positions * 0)
    for round_number in range(_NUM_ROUNDS):
        # The product of two words may wrap into the sign; its bits are right all the same.
        first, second = (word * factor for word, factor in zip(even, _MULTIPLIERS, strict=True))
        low_key, high_key = (
            (key + step * round_number) & _WORD for key, step in zip(keys, _KEY_STEPS, strict=True)
        )
        even = (
            ((second >> 32) & _WORD) ^ odd[0] ^ low_key,
            ((first >> 32) & _WORD) ^ odd[1] ^ high_key,
        )
        odd = (second & _WORD, first & _WORD)
    return even[0]

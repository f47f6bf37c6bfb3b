# ruff: noqa: N803 -- parameters carry the names of the kernels' arguments
"""Torch form of Gumbel-max sampling (`vllm.v1.worker.gpu.sample.gumbel`).

Randomness is counter-based: the noise of a token is a function of the request's seed, the position
being sampled and the token id, through a 32-bit hash (MurmurHash3 over seed, position and token).
The hash and the uniform number made from it are bit-equal to upstream's; the two logarithms that
turn it into Gumbel noise are those of torch and may differ in the last bits.

Signed 32-bit integers stand in for unsigned ones: products and sums wrap alike, and a right shift
is masked to be logical.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial, reduce
from typing import TypeVar

import numpy as np
import torch

from vllm_deepinfer.runner_kernels.extents import is_host, may_hold, replace_inactive

SAMPLE = "vllm.v1.worker.gpu.sample"

# Keeps the noise of drafting apart from the noise of verifying.
DRAFT_POSITION_OFFSET = 1 << 30
_HIGH_WORD_DOMAIN = 0x9E3779B9
_NUM_KEY_WORDS = 4
_LARGEST_BELOW_ONE = 1.0 - 2.0**-53


def _signed(word: int) -> int:
    """The int32 with the bits of the 32-bit unsigned `word`."""
    return word - (1 << 32) if word & 0x80000000 else word


_MIX_FIRST, _MIX_SECOND, _MIX_ADD = (_signed(word) for word in (0xCC9E2D51, 0x1B873593, 0xE6546B64))
_FINAL_FIRST, _FINAL_SECOND = _signed(0x85EBCA6B), _signed(0xC2B2AE35)


# The hash steps are written with operators only, so that they take numpy arrays as well: on the
# host numpy needs a third of torch's time for the few words of a seed and a position.
_Words = TypeVar("_Words", torch.Tensor, np.ndarray)


def _shift_right(words: _Words, bits: int) -> _Words:
    shifted = words >> bits
    shifted &= (1 << (32 - bits)) - 1
    return shifted


def _rotate_left(words: _Words, bits: int) -> _Words:
    rotated = words << bits
    rotated |= _shift_right(words, 32 - bits)
    return rotated


def _scramble(words: _Words) -> _Words:
    """The part of MurmurHash3's mixing step that depends on the mixed-in word alone."""
    scrambled = _rotate_left(words * _MIX_FIRST, 15)
    scrambled *= _MIX_SECOND
    return scrambled


def _mix(state: _Words, scrambled: _Words) -> _Words:
    mixed = _rotate_left(state ^ scrambled, 13)
    mixed *= 5
    mixed += _MIX_ADD
    return mixed


@lru_cache(maxsize=4)
def _scrambled_token_ids(vocab_size: int, device: torch.device) -> torch.Tensor:
    with torch.inference_mode(False):
        return _scramble(torch.arange(vocab_size, dtype=torch.int32, device=device))


def _request_state(seeds: torch.Tensor, positions: torch.Tensor, domain: int) -> torch.Tensor:
    """Hash state, int32 [num_rows], after seed and position (int64 [num_rows])."""
    # The low 32 bits of an int64 survive the cast; arithmetic shift keeps the high ones.
    words = torch.stack((seeds, seeds >> 32, positions)).to(torch.int32)
    if not is_host(words):
        first, *others = _scramble(words)
        return reduce(_mix, others, _mix(torch.full_like(first, domain), first))
    first, *others = _scramble(words.numpy())
    return torch.from_numpy(reduce(_mix, others, _mix(np.full_like(first, domain), first)))


def _hash_words(
    seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int, domain: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low halves, int32 [num_rows, vocab_size] in 0..65535, of the hash of every token.

    seeds, positions: int64 [num_rows].
    """
    state = _request_state(seeds, positions, _signed(domain)).unsqueeze(1)
    hashed = _mix(state, _scrambled_token_ids(vocab_size, seeds.device))
    hashed ^= 4 * _NUM_KEY_WORDS
    hashed ^= _shift_right(hashed, 16)
    hashed *= _FINAL_FIRST
    hashed ^= _shift_right(hashed, 13)
    hashed *= _FINAL_SECOND
    # The final step, h ^ (h >> 16), leaves the high half as it is.
    high = _shift_right(hashed, 16)
    return high, hashed.bitwise_xor_(high).bitwise_and_(0xFFFF)


def uniform32(seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Uniform numbers in (0, 1], float32 [num_rows, vocab_size]: (hash + 0.5) / 2**32, rounded
    once. seeds, positions: int64 [num_rows]."""
    high, low = _hash_words(seeds, positions, vocab_size, 0)
    # Both products are exact, so the sum is the only rounding.
    return high.float().mul_(2.0**-16).add_(low.float().add_(0.5).mul_(2.0**-32))


def uniform64(seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Uniform numbers in (0, 1), float64 [num_rows, vocab_size], from 53 bits of two hashes."""
    low_word = _hash_words(seeds, positions, vocab_size, 0)
    high_word = _hash_words(seeds, positions, vocab_size, _HIGH_WORD_DOMAIN)
    bits = high_word[0].long() << 37
    bits += high_word[1].long() << 21
    bits += low_word[0].long() << 5
    bits += low_word[1] >> 11
    return bits.double().add_(0.5).mul_(2.0**-53).clamp_(max=_LARGEST_BELOW_ONE)


def gumbel_noise(
    seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int, use_fp64: bool
) -> torch.Tensor:
    """Gumbel noise, float32 or float64 [num_rows, vocab_size]; seeds, positions int64 [num_rows].

    The float32 form takes the large values, which decide an argmax, from u near 0, where float32 is
    finest: -log(-log1p(-u)), with log1p as a polynomial below 0.25.
    """
    if use_fp64:
        return uniform64(seeds, positions, vocab_size).log_().neg_().log_().neg_()
    u = uniform32(seeds, positions, vocab_size)
    series = u * 0.125
    for denominator in range(7, 0, -1):
        series.add_(1.0 / denominator).mul_(u)
    direct = (1.0 - u).clamp_(min=2.0**-24).log_().neg_()
    return torch.where(u < 0.25, series, direct).log_().neg_()


def gumbel_sample(
    local_argmax_ptr: torch.Tensor,
    local_argmax_stride: int,
    local_max_ptr: torch.Tensor,
    local_max_stride: int,
    logits_cache_ptr: torch.Tensor | None,
    logits_cache_stride_0: int,
    logits_cache_stride_1: int,
    logits_cache_col_ptr: torch.Tensor | None,
    logits_cache_source_ptr: torch.Tensor | None,
    logits_cache_source_stride: int,
    logits_ptr: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    seeds_ptr: torch.Tensor,
    pos_ptr: torch.Tensor,
    temp_ptr: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int,
    IS_DRAFTING: bool,
    APPLY_TEMPERATURE: bool,
    USE_FP64: bool,
    PER_TOKEN_COL: bool,
    *,
    step_in_seed: bool = False,
) -> None:
    """Best token and its noisy logit within each vocabulary block of BLOCK_SIZE tokens.

    logits float [num_rows, vocab_size]; expanded_idx_mapping int64 [num_rows], negative for a row
    without a request, which is treated as greedy; seeds int64 and temp float32 [max_num_reqs]; pos
    int64 [num_rows]. Writes local_argmax int64 and local_max float32 (float64 if USE_FP64)
    [num_rows, num_blocks]; the lowest token wins a tie. With `logits_cache` [max_num_reqs,
    num_cols, >= vocab_size], each request's row of `logits_cache_source` [num_rows, vocab_size] is
    also kept in column `logits_cache_col` ([num_rows] if PER_TOKEN_COL, else one for all).
    `step_in_seed` (vLLM 0.33) gives each column of the cache noise of its own.
    """
    if logits_ptr.shape[0] == 0:
        return
    valid = expanded_idx_mapping_ptr >= 0
    slot = expanded_idx_mapping_ptr.clamp(min=0)
    if logits_cache_ptr is not None:
        _keep_logits(logits_cache_ptr, logits_cache_col_ptr, logits_cache_source_ptr, slot, valid)
    # As the kernel does, divide in float32 and only then widen.
    logits = logits_ptr[:, :vocab_size].float()
    temp = temp_ptr.index_select(0, slot).float().masked_fill_(~valid, 0.0)
    is_random = temp != 0.0
    if APPLY_TEMPERATURE and may_hold(is_random):
        logits = logits / temp.masked_fill(~is_random, 1.0).unsqueeze(1)
    seeds = seeds_ptr.index_select(0, slot)
    if step_in_seed and logits_cache_ptr is not None:
        seeds ^= logits_cache_col_ptr.long() << 32
    position = pos_ptr + DRAFT_POSITION_OFFSET if IS_DRAFTING else pos_ptr
    scores = _with_noise(logits, is_random, seeds, position, USE_FP64)
    _blockwise_max(scores, BLOCK_SIZE, local_max_ptr, local_argmax_ptr)


def _with_noise(
    logits: torch.Tensor,
    is_random: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    use_fp64: bool,
) -> torch.Tensor:
    """Logits plus the noise of their tokens in the rows that are random, float32 or float64.

    logits float32 [num_rows, vocab_size], is_random bool, seeds and positions int64 [num_rows].
    """
    if not may_hold(is_random):
        return logits
    noise = gumbel_noise(seeds, positions, logits.shape[1], use_fp64)
    if may_hold(~is_random):
        noise.masked_fill_(~is_random.unsqueeze(1), 0.0)
    return noise.add_(logits)


def _vocabulary_blocks(rows: torch.Tensor, block_size: int) -> Iterator[tuple[slice, torch.Tensor]]:
    """Views of rows [num_rows, vocab_size] as blocks of tokens: all full blocks, [num_rows,
    num_full, block_size], then the short last one, [num_rows, 1, rest]; each where there is one,
    with its slice of the blocks."""
    num_full = rows.shape[1] // block_size
    width = num_full * block_size
    if num_full:
        yield slice(0, num_full), rows[:, :width].unflatten(1, (num_full, block_size))
    if width < rows.shape[1]:
        yield slice(num_full, num_full + 1), rows[:, width:].unsqueeze(1)


def _blockwise_max(
    scores: torch.Tensor, block_size: int, best: torch.Tensor, best_token: torch.Tensor
) -> None:
    """Maximum of scores [num_rows, vocab_size] and its first token (int64) in each block of
    tokens, into best and best_token [num_rows, num_blocks]."""
    for columns, blocks in _vocabulary_blocks(scores, block_size):
        values, tokens = blocks.max(dim=2)
        best[:, columns] = values
        first_token = torch.arange(columns.start, columns.stop, device=scores.device) * block_size
        best_token[:, columns] = tokens.add_(first_token)


def _keep_logits(
    cache: torch.Tensor,
    column: torch.Tensor,
    source: torch.Tensor,
    slot: torch.Tensor,
    valid: torch.Tensor,
) -> None:
    """cache[slot, column] = source, row by row where `valid`."""
    rows = replace_inactive(valid)
    place = (slot.index_select(0, rows), column.expand(slot.shape[0]).index_select(0, rows).long())
    kept = cache[place]
    width = source.shape[1]
    is_kept = valid.index_select(0, rows).unsqueeze(1)
    kept[:, :width] = torch.where(is_kept, source.index_select(0, rows), kept[:, :width])
    cache[place] = kept


KERNELS = {f"{SAMPLE}.gumbel._gumbel_sample_kernel": gumbel_sample}
KERNELS_SINCE = {
    (0, 33): {f"{SAMPLE}.gumbel._gumbel_sample_kernel": partial(gumbel_sample, step_in_seed=True)}
}

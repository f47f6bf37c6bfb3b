"""A token's n-gram is the text before it, whether that lies in the step or in the history.

``gather_ngrams`` against a plain loop, for several requests with prompts, drafts and short
histories. If it fails, engram looks up another text than the one being continued.
"""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_deepinfer.models.deepseek_v41.model_state import gather_ngrams

STALE = 777  # what a history holds where this step's tokens have yet to be written


@st.composite
def requests(draw):
    """Per request: its whole text, this step's tokens included, and how many those are."""
    found = []
    for _ in range(draw(st.integers(1, 5))):
        text = draw(st.lists(st.integers(0, 500), min_size=1, max_size=12))
        found.append((text, draw(st.integers(1, len(text)))))
    return found


def by_a_loop(found, size):
    ngrams = []
    for text, num_new in found:
        for position in range(len(text) - num_new, len(text)):
            places = range(position, position - size, -1)
            ngrams.append([text[place] if place >= 0 else -1 for place in places])
    return ngrams


@given(requests(), st.integers(1, 4), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_equals_a_loop(found, size, random):
    rows = random.sample(range(len(found) + 2), len(found))
    history = torch.full((len(found) + 2, 13), STALE, dtype=torch.int32)
    token_ids, positions, row_of_token, first_tokens = [], [], [], []
    for (text, num_new), row in zip(found, rows, strict=True):
        start = len(text) - num_new
        history[row, :start] = torch.tensor(text[:start], dtype=torch.int32)
        row_of_token += [row] * num_new
        first_tokens += [len(token_ids)] * num_new
        token_ids += text[start:]
        positions += range(start, len(text))
    ngrams = gather_ngrams(
        history,
        torch.tensor(row_of_token),
        torch.tensor(token_ids, dtype=torch.int32),
        torch.tensor(positions),
        torch.tensor(first_tokens),
        size,
    )
    assert ngrams.dtype == torch.int64
    assert ngrams.tolist() == by_a_loop(found, size)


def test_drafts_of_the_step_come_before_the_history():
    """A rejected draft is still in the history; the next step's own tokens replace it."""
    history = torch.tensor([[10, 11, 12, 99, 98, 0]])
    ngrams = gather_ngrams(
        history,
        torch.zeros(3, dtype=torch.int64),
        torch.tensor([13, 14, 15]),
        torch.tensor([3, 4, 5]),
        torch.zeros(3, dtype=torch.int64),
        3,
    )
    assert ngrams.tolist() == [[13, 12, 11], [14, 13, 12], [15, 14, 13]]

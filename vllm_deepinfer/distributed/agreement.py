"""Decisions that all data-parallel ranks must take alike."""

from __future__ import annotations

import torch
from vllm.distributed.parallel_state import get_dp_group


def any_rank(says_yes: bool) -> bool:
    """Whether any data-parallel rank says yes. All ranks must ask at the same time."""
    group = get_dp_group()
    if group.world_size == 1:
        return says_yes
    answers = group.all_gather(torch.tensor([int(says_yes)]), dim=0)
    return bool(answers.any())

"""What the kernels that verify drafts share: where a request's drafts are, and how likely.

Row l of the logits belongs to one position of one request. A request with n drafts has n + 1 rows,
the last for the bonus token; the draft that row l judges is the input token of row l + 1. Logits
are summarised per vocabulary block: maximum, its token, and the sum of exp(logit - maximum).

    target_logits [num_logits, >= vocab_size]              after temperature, -inf where filtered
    draft_logits  [max_num_reqs, num_steps, >= vocab_size] before temperature, or None: then the
                                                           draft was certain
"""

from __future__ import annotations

import torch

from vllm_deepinfer.ops.runner.extents import is_host, ragged_rows, store
from vllm_deepinfer.ops.runner.layout import flat


def log_sum_exp(block_max: torch.Tensor, block_sum: torch.Tensor) -> torch.Tensor:
    """log of the sum of exp over the vocabulary, float32 [num_rows], from the maxima and sums of
    its blocks [num_rows, num_blocks]."""
    highest = block_max.amax(dim=1, keepdim=True)
    total = (block_max - highest).exp_().mul_(block_sum).sum(dim=1)
    return total.log_().add_(highest.squeeze(1))


def best_token(block_max: torch.Tensor, block_argmax: torch.Tensor) -> torch.Tensor:
    """Token of the highest block maximum, int64 [num_rows], from maxima and tokens [num_rows,
    num_blocks]; the first wins a tie, a NaN counts as -inf."""
    lowest = block_max.masked_fill(block_max.isnan(), float("-inf"))
    return block_argmax.gather(1, lowest.argmax(dim=1, keepdim=True)).squeeze(1)


def tempered_draft_logits(
    draft_logits: torch.Tensor, slot: torch.Tensor, step: torch.Tensor, temp: torch.Tensor
) -> torch.Tensor:
    """Draft logits after temperature, float32 [n, vocab_size]: row `step` (out of range: the last)
    of request slot `slot`, both int [n]; temp float32 [n]."""
    step = step.clamp(min=0, max=draft_logits.shape[1] - 1)
    return draft_logits[slot, step].float().div_(temp.unsqueeze(1))


class Drafts:
    """The drafts of a batch, [num_reqs, num_steps], num_steps covering the longest.

    present: whether the request has that many. proposed: whether it is a token, too.
    token: int64, 0 where not proposed. row, next_row: int64, the row that judges it and the one
    behind, always valid ones.
    first_row, count: int64 [num_reqs]. slot: int64 [num_reqs]. temp: float32 [num_reqs].
    is_greedy: bool [num_reqs, 1].
    """

    def __init__(
        self,
        cu_num_logits: torch.Tensor,
        draft_sampled: torch.Tensor,
        idx_mapping: torch.Tensor,
        temp: torch.Tensor,
        most_steps: int | None,
    ) -> None:
        """cu_num_logits int32 [> num_reqs], draft_sampled int [num_logits], idx_mapping int64
        [num_reqs], num_reqs > 0, temp [max_num_reqs]. `most_steps` bounds num_steps on an
        accelerator, which otherwise has to synchronise to learn it."""
        num_reqs = idx_mapping.shape[0]
        self._cu_num_logits = cu_num_logits
        self.slot = idx_mapping
        self.temp = temp.index_select(0, idx_mapping).float()
        self.is_greedy = (self.temp == 0.0).unsqueeze(1)
        ends = cu_num_logits[: num_reqs + 1].long()
        self.first_row = ends[:-1]
        self.count = torch.diff(ends) - 1
        if is_host(cu_num_logits) or most_steps is None:
            self.num_steps = max(int(self.count.max()), 0)
        else:
            self.num_steps = most_steps
        self.step = torch.arange(self.num_steps, device=idx_mapping.device)
        self.present = self.step < self.count.unsqueeze(1)
        row = self.first_row.unsqueeze(1) + self.step
        self.row = row.clamp_(max=max(draft_sampled.shape[0] - 2, 0))
        self.next_row = (self.row + 1).clamp_(max=draft_sampled.shape[0] - 1)
        tokens = draft_sampled[self.next_row].long()
        self.proposed = self.present & (tokens >= 0)
        self.token = tokens.masked_fill_(~self.proposed, 0)

    def log_probabilities(
        self,
        target_logits: torch.Tensor,
        draft_logits: torch.Tensor | None,
        target_log_sum: torch.Tensor,
        draft_log_sum: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | float]:
        """log-probability of each draft with the target and with the drafter, float32 [num_reqs,
        num_steps]; the drafter's is 0 without draft logits. Log-sums float32 [num_logits]. Means
        nothing for drafts not proposed and greedy requests."""
        place = self.row * target_logits.stride(0) + self.token
        target = flat(target_logits)[place].float() - target_log_sum[self.row]
        if draft_logits is None:
            return target, 0.0
        request, step = draft_logits.stride()[:2]
        place = (self.slot * request).unsqueeze(1) + self.step * step + self.token
        draft = flat(draft_logits)[place].float().div_(self.temp.unsqueeze(1))
        return target, draft.sub_(draft_log_sum[self.row])

    def store_on_rows(
        self, output: torch.Tensor, values: torch.Tensor, written: torch.Tensor
    ) -> None:
        """output[row of a draft] = values of the draft, where `written`; output [num_logits],
        the others [num_reqs, num_steps], num_steps > 0."""
        rows = ragged_rows(self._cu_num_logits, values.shape[0], output.shape[0])
        step = rows.item - self.first_row.index_select(0, rows.row)
        place = (rows.row, step.clamp(max=self.num_steps - 1))
        taken = written[place] & (step < self.num_steps)
        if rows.present is not None:
            taken &= rows.present
        store(output[: rows.size], values[place], taken)

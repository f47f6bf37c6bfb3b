"""What this package adds to vLLM's schedulers: it watches drafts, and never copies ``schedule``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.metrics.shared_counters import SharedCounters, counter_file
from vllm_deepinfer.scheduler.confidences import attached
from vllm_deepinfer.scheduler.drafting import DraftLedger, counter_names


class DeepInferMixin:
    """Settles each verified block with what the drafter had said of it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.draft_ledger: DraftLedger | None = None
        if self.vllm_config.speculative_config is not None:
            self.draft_ledger = make_ledger(self.vllm_config)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self.draft_ledger is not None:
            # After super(), which settles the blocks drafted before this step.
            self.draft_ledger.receive(attached(model_runner_output))
            self.draft_ledger.forget(scheduler_output.finished_req_ids)
        return outputs

    def make_spec_decoding_stats(
        self,
        spec_decoding_stats: Any,
        num_draft_tokens: int,
        num_accepted_tokens: int,
        num_invalid_spec_tokens: dict[str, int] | None,
        request_id: str,
    ) -> Any:
        if self.draft_ledger is not None and num_draft_tokens:
            invalid = (num_invalid_spec_tokens or {}).get(request_id, 0)
            offered = num_draft_tokens - invalid
            self.draft_ledger.settle(request_id, offered, num_accepted_tokens)
        return super().make_spec_decoding_stats(
            spec_decoding_stats,
            num_draft_tokens,
            num_accepted_tokens,
            num_invalid_spec_tokens,
            request_id,
        )

    def shutdown(self) -> None:
        if self.draft_ledger is not None:
            self.draft_ledger.close()
        super().shutdown()


class DeepInferScheduler(DeepInferMixin, Scheduler):
    """The synchronous scheduler."""


class DeepInferAsyncScheduler(DeepInferMixin, AsyncScheduler):
    """The asynchronous scheduler."""


def make_ledger(vllm_config: Any) -> DraftLedger:
    """The ledger of this engine core, its counters named by instance and rank."""
    rank = vllm_config.parallel_config.data_parallel_index
    names = counter_names(vllm_config.speculative_config.num_speculative_tokens)
    counters = SharedCounters(counter_file(vllm_config.instance_id, rank), names, create=True)
    records = DeepInferConfig.from_vllm(vllm_config).draft_records
    return DraftLedger(counters, Path(records) if records else None)

"""vLLM's manager of adaptive verification on a machine without CUDA."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from vllm.v1.worker.gpu.spec_decode.adaptive_verification import AdaptiveVerificationManager


def manager_on_cpu(
    confidences: np.ndarray, cudagraph_limit: int, max_num_batched_tokens: int
) -> AdaptiveVerificationManager:
    """A manager that can choose budgets and take costs, and nothing else.

    Its constructor makes CUDA streams and device buffers; here it gets the fields it reads.

    Args:
        confidences: stale confidences of requests named "0", "1" and so on, not cumulative, float32
            [requests, drafts].
        cudagraph_limit: tokens of the largest captured graph.
        max_num_batched_tokens: largest step.
    """
    num_reqs, num_drafts = confidences.shape
    manager = object.__new__(AdaptiveVerificationManager)
    manager.req_states = SimpleNamespace(
        max_num_reqs=num_reqs,
        max_num_batched_tokens=max_num_batched_tokens,
        req_id_to_index={str(i): i for i in range(num_reqs)},
        num_computed_tokens_np=np.full(num_reqs, 100, dtype=np.int32),
        prefill_len=SimpleNamespace(np=np.full(num_reqs, 50, dtype=np.int32)),
    )
    manager.num_speculative_steps, manager.num_bonus_tokens = num_drafts, 1
    manager._max_total_logits = num_reqs * (num_drafts + 1)
    manager._stale_confidences, manager._stale_idx = [SimpleNamespace(np=confidences)] * 2, 0
    manager._cudagraph_limit = cudagraph_limit
    manager.cost_tables = manager._batch_budget = None
    return manager

"""Run by test_memory_profile_sees_a_whole_step.py: an engine whose cache is what memory is left.

python engine_sized_by_profile.py FOLDER NUM_TOKENS
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    folder, num_tokens = sys.argv[1], int(sys.argv[2])
    from vllm import LLM, SamplingParams, TokensPrompt

    llm = LLM(
        folder,
        max_model_len=num_tokens,
        max_num_seqs=8,
        max_num_batched_tokens=num_tokens,
        gpu_memory_utilization=0.25,
        enable_prefix_caching=False,
        enforce_eager=True,
    )
    worker = llm.llm_engine.model_executor.driver_worker.worker
    prompt = TokensPrompt(prompt_token_ids=[3 + n % 400 for n in range(num_tokens - 2)])
    output = llm.generate([prompt], SamplingParams(max_tokens=2), use_tqdm=False)[0]
    print(
        json.dumps(
            {
                "requested": worker.requested_memory,
                "cache": worker.available_kv_cache_memory_bytes,
                "peak": worker.peak_activation_memory,
                "generated": len(output.outputs[0].token_ids),
            }
        )
    )


if __name__ == "__main__":
    main()

"""Run by test_engine.py: generates with a tiny stock Llama on one of vLLM's two CPU model runners.

python engine_without_triton.py MODEL_FOLDER RESULT_FILE v1|v2
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.modules["triton"] = None  # imports of it fail, find_spec finds nothing
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import torch  # noqa: E402

PROMPTS = [[5, 9, 33, 100, 200, 77], [7] * 20, [300, 301, 302, 17, 18] * 40, [11]]


def make_model(folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        num_hidden_layers=2,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=500,
        # Spread the logits, so that rounding does not decide between tokens.
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def start_engine(folder: Path, runner: str):
    if runner == "v2":
        import vllm.config.vllm

        from vllm_deepinfer.runner_kernels import register

        vllm.config.vllm.HAS_TRITON = True  # all that keeps a configuration from the V2 runner
        register()
    from vllm import LLM

    llm = LLM(
        str(folder),
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=8,
        # Less than the longest prompt: prefill goes in chunks, beside decoding rows.
        max_num_batched_tokens=64,
        kv_cache_memory_bytes=64 << 20,
    )
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    module = type(worker.model_runner).__module__
    expected = {"v1": "vllm.v1.worker.cpu_model_runner", "v2": "vllm.v1.worker.cpu.model_runner"}
    assert module == expected[runner], f"{runner} was asked for, {module} runs"
    return llm


def main(folder: Path, result: Path, runner: str) -> None:
    if not folder.exists():
        make_model(folder)
    llm = start_engine(folder, runner)
    from vllm import SamplingParams

    def generate(prompts: list[list[int]], **options) -> list[dict]:
        options = {"max_tokens": 12, "ignore_eos": True, "detokenize": False, **options}
        outputs = llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            SamplingParams(**options),
            use_tqdm=False,
        )
        return [describe(output) for output in outputs]

    runs = {
        "greedy": generate(PROMPTS, temperature=0),
        "again": generate(PROMPTS, temperature=0),
        "scores": generate(PROMPTS, temperature=0, logprobs=3, prompt_logprobs=2),
        "penalties": generate(
            PROMPTS,
            temperature=0,
            repetition_penalty=1.3,
            frequency_penalty=0.2,
            presence_penalty=0.1,
        ),
        "bias": generate(PROMPTS, temperature=0, logit_bias={5: 4.0, 9: 3.5}),
        "allowed": generate(PROMPTS, temperature=0, allowed_token_ids=[4, 8, 15, 16, 23, 42]),
        "length": generate(
            PROMPTS, temperature=0, min_tokens=6, stop_token_ids=list(range(0, 500, 4))
        ),
    }
    # vLLM's V1 runner cannot seed a request whose prefill goes in chunks: it asks torch's CPU
    # generator for an offset, which that one does not have.
    if runner == "v2":
        seeded = {"temperature": 0.9, "seed": 7}
        runs["seeded"] = generate(PROMPTS, **seeded)
        runs["alone"] = [generate([prompt], **seeded)[0] for prompt in PROMPTS]
        runs["narrow"] = generate(PROMPTS, **seeded, top_k=5, top_p=0.8, min_p=0.1)
    result.write_text(json.dumps(runs))


def describe(output) -> dict:
    completion = output.outputs[0]
    scores = [
        [[token, entry.logprob, entry.rank] for token, entry in sorted((position or {}).items())]
        for position in [*(output.prompt_logprobs or []), *(completion.logprobs or [])]
    ]
    return {"tokens": list(completion.token_ids), "scores": scores}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])

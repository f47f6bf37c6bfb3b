"""Run by test_drafting_engine.py: a tiny Qwen3, alone or with a DSpark drafter, on the V2 runner.

python engine_with_drafts.py MODEL_FOLDER RESULT_FILE none|dspark
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.modules["triton"] = None  # imports of it fail, find_spec finds nothing
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import torch  # noqa: E402

PROMPTS = [[5, 9, 33, 100, 200, 77], [7] * 20, [300, 301, 302, 17, 18] * 40, [11], [40, 41]]
VOCAB_SIZE, HIDDEN_SIZE, NUM_STEPS = 500, 64, 5
SIZES = {
    "hidden_size": HIDDEN_SIZE,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCAB_SIZE,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "max_position_embeddings": 1024,
}


def make_models(folder: Path) -> None:
    """A target whose next token hangs mostly on the last one, and a drafter whose Markov head knows
    the target's embedding and head: some drafts are right and some wrong at every position."""
    from safetensors.torch import save_file
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    target = Qwen3ForCausalLM(Qwen3Config(**SIZES))
    with torch.no_grad():
        for layer in target.model.layers:
            layer.self_attn.o_proj.weight.mul_(0.02)
            layer.mlp.down_proj.weight.mul_(0.005)
    target.save_pretrained(folder / "target")

    embedding, head = target.model.embed_tokens.weight.data, target.lm_head.weight.data
    backbone = Qwen3ForCausalLM(Qwen3Config(**SIZES)).model.state_dict()
    weights = {
        **backbone,
        "embed_tokens.weight": embedding,
        "lm_head.weight": torch.randn(VOCAB_SIZE, HIDDEN_SIZE) * 0.02,
        "fc.weight": torch.randn(HIDDEN_SIZE, 2 * HIDDEN_SIZE) * 0.1,
        "hidden_norm.weight": torch.ones(HIDDEN_SIZE),
        "markov_head.markov_w1.weight": torch.nn.functional.rms_norm(embedding, (HIDDEN_SIZE,)),
        "markov_head.markov_w2.weight": head,
    }
    (folder / "draft").mkdir()
    copies = {name: weight.clone().contiguous() for name, weight in weights.items()}
    save_file(copies, str(folder / "draft" / "model.safetensors"))
    config = {
        **Qwen3Config(**SIZES).to_dict(),
        "architectures": ["Qwen3DSparkModel"],
        "markov_rank": HIDDEN_SIZE,
        "block_size": NUM_STEPS,
        "target_layer_ids": [0, 1],
        "mask_token_id": VOCAB_SIZE - 1,
    }
    (folder / "draft" / "config.json").write_text(json.dumps(config))


def start_engine(folder: Path, drafter: str):
    import vllm.config.vllm
    from vllm.model_executor.layers.linear import LinearBase

    from vllm_deepinfer.runner_kernels import register

    vllm.config.vllm.HAS_TRITON = True  # all that keeps a configuration from the V2 runner
    register()
    from vllm.v1.worker.gpu.model_states.default import DefaultModelState

    from vllm_deepinfer.models.deepseek_v41.model_state import V41ModelState

    DefaultModelState.custom_sampler = V41ModelState.custom_sampler
    # The drafter fuses weights that vLLM's CPU backend would have packed away.
    LinearBase._cpu_skip_gemm_dispatch = True
    from vllm import LLM

    speculation = {
        "method": "dspark",
        "model": str(folder / "draft"),
        "num_speculative_tokens": NUM_STEPS,
    }
    return LLM(
        str(folder / "target"),
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="float32",
        max_model_len=512,
        max_num_seqs=8,
        # Less than the longest prompt: prefill goes in chunks, beside verification.
        max_num_batched_tokens=64,
        kv_cache_memory_bytes=64 << 20,
        speculative_config=speculation if drafter == "dspark" else None,
        disable_log_stats=False,
    )


def main(folder: Path, result: Path, drafter: str) -> None:
    if not folder.exists():
        folder.mkdir()
        make_models(folder)
    llm = start_engine(folder, drafter)
    from vllm import SamplingParams

    def generate(prompts: list[list[int]], **options) -> list[dict]:
        options = {"max_tokens": 16, "ignore_eos": True, "detokenize": False, **options}
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = llm.generate(requests, SamplingParams(**options), use_tqdm=False)
        return [describe(output) for output in outputs]

    greedy = {"temperature": 0}
    seeded = {"temperature": 0.7, "seed": 7, "top_k": 20, "top_p": 0.9}
    runs = {
        "greedy": generate(PROMPTS, **greedy),
        "scores": generate(PROMPTS, **greedy, logprobs=3, prompt_logprobs=1),
        "penalties": generate(PROMPTS, **greedy, repetition_penalty=1.3, frequency_penalty=0.2),
        "allowed": generate(PROMPTS, **greedy, allowed_token_ids=[4, 8, 15, 16, 23, 42]),
        "length": generate(PROMPTS, **greedy, min_tokens=6, stop_token_ids=[*range(0, 500, 4)]),
        "narrow": generate(PROMPTS, temperature=0.8, top_k=1),
        "seeded": generate(PROMPTS, **seeded),
        "alone": [generate([prompt], **seeded)[0] for prompt in PROMPTS],
    }
    accepted = [
        metric.values for metric in llm.get_metrics() if metric.name.endswith("tokens_per_pos")
    ]
    result.write_text(json.dumps({"runs": runs, "accepted": accepted}))


def describe(output) -> dict:
    completion = output.outputs[0]
    scores = [
        [[token, entry.logprob, entry.rank] for token, entry in sorted((position or {}).items())]
        for position in [*(output.prompt_logprobs or []), *(completion.logprobs or [])]
    ]
    return {"tokens": list(completion.token_ids), "scores": scores}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])

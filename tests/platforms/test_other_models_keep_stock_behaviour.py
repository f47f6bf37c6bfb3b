"""A model this package does not serve runs exactly as without the package.

Claim: with the plugin active, a small Llama gets the same configuration (scheduler, worker, runner,
caches, start method) and the same tokens as with `DEEPINFER_PLATFORM=off`. If this breaks,
installing the package changes other people's servers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

SCRIPT = """
import json, os, sys
from vllm import LLM, SamplingParams
from vllm.platforms import current_platform

llm = LLM(sys.argv[1], load_format="dummy", skip_tokenizer_init=True, enforce_eager=True,
          max_model_len=256, seed=3)
outputs = llm.generate(
    [{"prompt_token_ids": [5, 6, 7] * n} for n in (1, 20)],
    SamplingParams(max_tokens=12, ignore_eos=True, detokenize=False), use_tqdm=False)
config = llm.llm_engine.vllm_config
from vllm.triton_utils import dispatcher
print("RESULT", json.dumps({
    "platform": type(current_platform).__name__,
    "tokens": [list(o.outputs[0].token_ids) for o in outputs],
    "config": str(config).split("instance_id")[0],
    "type": type(config).__name__,
    "v2": config.use_v2_model_runner,
    "worker": config.parallel_config.worker_cls,
    "scheduler": str(config.scheduler_config.get_scheduler_cls()),
    "scheduler_config": str(config.scheduler_config),
    "cache_config": str(config.cache_config),
    "start_method": os.environ["VLLM_WORKER_MULTIPROC_METHOD"],
    "kernels": sorted(dispatcher._registry),
}))
"""


def run_llama(model, platform):
    environ = {
        **os.environ,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",
    }
    environ.pop("DEEPINFER_PLATFORM", None)
    if platform is not None:
        environ["DEEPINFER_PLATFORM"] = platform
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(model)], env=environ, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    (line,) = (x for x in result.stdout.splitlines() if x.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT "))


def test_llama_is_served_as_by_stock_vllm(llama_dir):
    stock = run_llama(llama_dir, "off")
    ours = run_llama(llama_dir, None)
    assert stock.pop("platform") == "CpuPlatform"
    assert ours.pop("platform") == "DeepInferCpuPlatform"
    assert len(stock["tokens"][0]) == 12
    assert ours == stock

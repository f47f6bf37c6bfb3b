"""Engines on the npu device, each a scenario of `main`, and the requests that all of them answer.

    python npu_engines.py FOLDER RESULT NAME...

serves the checkpoint in FOLDER in scenario after scenario and writes what each found to RESULT, as
JSON by name. It runs in a process whose platform is the Ascend 950's: see `start`.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from fake_npu import processes

NUM_DRAFTS = 5
MAX_SEQS = 8
SETTINGS = {"max_num_seqs": MAX_SEQS, "max_num_batched_tokens": 256}
DRAFTING = {"method": "dspark", "num_speculative_tokens": NUM_DRAFTS}
ALONE_TOKENS = 20


def prompts() -> list[list[int]]:
    """Of one token, of many, and one that takes several steps."""
    choice = random.Random(11)
    return [[choice.randrange(3, 500) for _ in range(n)] for n in (1, 5, 30, 600, 2, 140, 9)]


def answers(llm: Any) -> dict[str, Any]:
    """Greedy tokens with their log-probabilities, and tokens drawn by seed, of every prompt."""
    from in_process import run
    from vllm import SamplingParams, TokensPrompt

    greedy = run(llm, prompts(), 24)
    drawn = llm.generate(
        [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts()],
        [SamplingParams(seed=n, max_tokens=12, ignore_eos=True) for n in range(len(prompts()))],
        use_tqdm=False,
    )
    return {
        "greedy": [list(tokens) for tokens, _ in greedy],
        "logprobs": [list(logprobs) for _, logprobs in greedy],
        "drawn": [list(output.outputs[0].token_ids) for output in drawn],
    }


def environment(**changes: str) -> dict[str, str]:
    """That of a process which serves on the npu."""
    return processes.environment(
        DEEPINFER_PLATFORM="ascend950",
        DEEPINFER_NPU_MODULE="fake_npu.for_deepinfer",
        VLLM_NO_USAGE_STATS="1",
        **changes,
    )


def start(folder: Path, result: Path, *names: str) -> subprocess.Popen[str]:
    """A process on the npu that runs the scenarios `names`."""
    return subprocess.Popen(
        [sys.executable, __file__, str(folder), str(result), *names],
        env=environment(VLLM_ENABLE_V1_MULTIPROCESSING="0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str], result: Path) -> dict[str, Any]:
    """What the process found.

    Raises:
        AssertionError: it failed; says what it printed last.
    """
    try:
        printed = process.communicate(timeout=processes.TIMEOUT_S)[0]
    finally:
        process.kill()
    assert process.returncode == 0, printed[-20000:]
    return json.loads(result.read_text())


# ---- scenarios


@contextmanager
def serving(folder: Path, **options: Any) -> Iterator[Any]:
    from in_process import engine

    deepinfer = {"deepinfer": options.pop("deepinfer", {})}
    # A start that failed has left memory behind, in a process that serves again.
    settings = {**SETTINGS, "additional_config": deepinfer, "gpu_memory_utilization": 0.5}
    with engine(folder, **settings, **options) as llm:
        yield llm


def eager(folder: Path) -> dict[str, Any]:
    """Every wait for the device in a step is an error; in the end one is put into the model."""
    import npu_requests
    from fake_npu import graphs

    with serving(folder, enforce_eager=True, deepinfer={"sync_guard": "error"}) as llm:
        found = answers(llm) | npu_requests.asked_of_both(llm)
        found["places"] = npu_requests.places(llm)
        refused = refusal(lambda: answers(llm), waiting_model())
        return {**found, "replays": graphs.num_replays(), "refusal": refused}


def replayed(folder: Path) -> dict[str, Any]:
    """Graphs of decode steps; and how many replays a request alone takes, first one to last."""
    from fake_npu import graphs
    from in_process import run

    with serving(folder) as llm:
        mode = llm.llm_engine.vllm_config.compilation_config.cudagraph_mode.name
        before = graphs.num_replays()
        run(llm, prompts()[:1], ALONE_TOKENS)
        alone = graphs.num_replays() - before
        return {**answers(llm), "mode": mode, "alone": alone}


def drafting(folder: Path) -> dict[str, Any]:
    """Graphs and drafts, with waits forbidden as in `eager`; in the end one is in the sampler."""
    from fake_npu import graphs
    from in_process import counter

    options = {"speculative_config": DRAFTING, "deepinfer": {"sync_guard": "error"}}
    with serving(folder, **options) as llm:
        before = graphs.num_replays()
        found = answers(llm)
        replays = graphs.num_replays() - before
        accepted = counter(llm, "vllm:spec_decode_num_accepted_tokens")
        return {
            **found,
            "replays": replays,
            "accepted": accepted,
            "refusal": refusal(lambda: answers(llm), waiting_sampler()),
        }


def waiting_in_a_capture(folder: Path) -> str:
    return refusal(lambda: _serve_nothing(folder), waiting_model())


def without_redirect(folder: Path) -> str:
    from vllm_deepinfer.worker.npu_redirect import Redirect

    return refusal(
        lambda: _serve_nothing(folder), mock.patch.object(Redirect, "apply", lambda *_: None)
    )


def another_model(folder: Path) -> str:
    other = folder.parent / "llama"
    other.mkdir(exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "vocab_size": 512,
        "max_position_embeddings": 1024,
        "torch_dtype": "bfloat16",
    }
    (other / "config.json").write_text(json.dumps(config))
    return refusal(lambda: _serve_nothing(other, skip_tokenizer_init=True, load_format="dummy"))


def _serve_nothing(folder: Path, **options: Any) -> None:
    with serving(folder, **options):
        pass


# ---- faults put into a step


def waiting_model() -> Any:
    from vllm_deepinfer.models.deepseek_v41.model import DeepseekV41ForCausalLM

    return _waiting(DeepseekV41ForCausalLM, "forward", lambda hidden: hidden.sum().item())


def waiting_sampler() -> Any:
    from vllm.v1.worker.gpu.sample.sampler import Sampler

    return _waiting(Sampler, "__call__", lambda output: output.sampled_token_ids.sum().item())


def _waiting(owner: type, name: str, wait: Callable[[Any], Any]) -> Any:
    """Patch a method so that the host looks at what it returns."""
    original = getattr(owner, name)

    def looking(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        wait(result[0] if isinstance(result, tuple) else result)
        return result

    return mock.patch.object(owner, name, looking)


def refusal(call: Callable[[], Any], patch: Any = None) -> str:
    """What the exception says that `call` raises under `patch`, with those it came from."""
    from contextlib import nullcontext

    try:
        with patch or nullcontext():
            call()
    except Exception as error:
        said = []
        cause: BaseException | None = error
        while cause is not None:
            said.append(f"{type(cause).__name__}: {cause}")
            cause = cause.__cause__ or cause.__context__
        return "\n".join(said)
    return "nothing was refused"


SCENARIOS: dict[str, Callable[[Path], Any]] = {
    scenario.__name__: scenario
    for scenario in (
        eager,
        replayed,
        drafting,
        without_redirect,
        another_model,
        waiting_in_a_capture,
    )
}


def main(folder: str, result: str, *names: str) -> None:
    import time

    found = {}
    for name in names:
        begin = time.monotonic()
        found[name] = SCENARIOS[name](Path(folder))
        print(f"SCENARIO {name} took {time.monotonic() - begin:.1f} s", flush=True)
    Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

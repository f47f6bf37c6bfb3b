"""What the tests of the running server share: its name, its limits and a reader of its metrics."""

from __future__ import annotations

import importlib.util
import re
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

MODEL = "tiny"
MAX_MODEL_LEN_TOKENS = 2048
VOCAB_SIZE = 512
BLOCK_SIZE_TOKENS = 128
REQUEST_TIMEOUT_S = 180.0
START_TIMEOUT_S = 300.0
_SERVER_FILE = Path(__file__).parents[1] / "examples" / "server.py"
# For `extra_body`: the answer starts with content instead of reasoning.
NO_THINKING = {"chat_template_kwargs": {"thinking": False}}
HELLO = [{"role": "user", "content": "Hello, who are you?"}]


def launch(folder: Path, arguments: Sequence[str], log: Path, wrapper: Sequence[str] = ()):
    """Starts `vllm serve` as a user does and returns without waiting for it."""
    spec = importlib.util.spec_from_file_location("deepinfer_example_server", _SERVER_FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.MonkeyPatch.context() as environment:
        # Its engine in processes of its own.
        environment.delenv("VLLM_ENABLE_V1_MULTIPROCESSING", raising=False)
        environment.setenv("VLLM_NO_USAGE_STATS", "1")
        return module.Server(folder, arguments, log, wrapper)


class Metrics:
    """The server's /metrics, each name summed over its labels."""

    def __init__(self, url: str) -> None:
        self.url = url

    def lines(self) -> list[str]:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=REQUEST_TIMEOUT_S) as answer:
            return answer.read().decode().splitlines()

    def by_engine(self, name: str) -> dict[str, float]:
        """The values of a metric, by full name, for each engine, summed over its other labels."""
        totals: dict[str, float] = {}
        for line in self.lines():
            if line.startswith(f"{name}{{"):
                engine = re.search(r'engine="(\d+)"', line)[1]
                totals[engine] = totals.get(engine, 0.0) + float(line.rsplit(" ", 1)[1])
        return totals

    def read(self) -> dict[str, float]:
        totals: dict[str, float] = {}
        for line in self.lines():
            if line.startswith("vllm:"):
                name = line.split("{")[0].removeprefix("vllm:")
                totals[name] = totals.get(name, 0.0) + float(line.rsplit(" ", 1)[1])
        return totals

    def wait_until(self, holds, what: str, timeout_s: float = 60.0) -> dict[str, float]:
        """Waits until `holds(metrics)`; fails with the last values and `what` was awaited."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.read()
            if holds(found):
                return found
            if time.monotonic() > deadline:
                pytest.fail(f"{what} did not happen in {timeout_s:.0f} s: {load(found)}")
            time.sleep(0.1)

    def wait_until_idle(self) -> dict[str, float]:
        """Waits until no request is left and every cache block is free."""
        return self.wait_until(lambda found: not any(load(found).values()), "an idle server")


def load(metrics: dict[str, float]) -> dict[str, float]:
    """What a server without requests reports as zero."""
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    return {name: metrics[name] for name in names}

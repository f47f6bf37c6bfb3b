"""What the tests of the running server share: its name, its limits and a reader of its metrics."""

from __future__ import annotations

import time
import urllib.request

import pytest

MODEL = "tiny"
MAX_MODEL_LEN_TOKENS = 2048
VOCAB_SIZE = 512
BLOCK_SIZE_TOKENS = 128
REQUEST_TIMEOUT_S = 180.0
# For `extra_body`: the answer starts with content instead of reasoning.
NO_THINKING = {"chat_template_kwargs": {"thinking": False}}
HELLO = [{"role": "user", "content": "Hello, who are you?"}]


class Metrics:
    """The server's /metrics, each name summed over its labels."""

    def __init__(self, url: str) -> None:
        self.url = url

    def read(self) -> dict[str, float]:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=REQUEST_TIMEOUT_S) as answer:
            text = answer.read().decode()
        totals: dict[str, float] = {}
        for line in text.splitlines():
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

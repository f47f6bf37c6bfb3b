"""One `vllm serve` of the tiny checkpoint for all tests here, and the clients that drive it."""

from __future__ import annotations

import anthropic
import openai
import pytest
from container_support import as_in_a_container
from serving_support import (
    MAX_MODEL_LEN_TOKENS,
    MODEL,
    REQUEST_TIMEOUT_S,
    START_TIMEOUT_S,
    Metrics,
    launch,
)

ARGUMENTS = [
    *("--served-model-name", MODEL),
    *("--max-model-len", str(MAX_MODEL_LEN_TOKENS)),
    *("--reasoning-parser", "deepseek_v41"),
    *("--tool-call-parser", "deepseek_v41"),
    "--enable-auto-tool-choice",
]


@pytest.fixture(scope="session")
def start_server(tiny_folder, tmp_path_factory):
    """Starts a server and returns without waiting for it."""

    def start():
        log = tmp_path_factory.mktemp("serving") / "server.log"
        return launch(tiny_folder, ARGUMENTS, log, as_in_a_container())

    return start


@pytest.fixture(scope="session")
def server(start_server):
    """A server that is ready; on leaving, all of its processes must have ended by themselves."""
    running = start_server()
    try:
        running.wait_until_ready(START_TIMEOUT_S)
        assert len(running.processes()) >= 3, "server, engine and worker"
        yield running
    finally:
        running.stop()
    assert running.processes() == []


@pytest.fixture
def client(server):
    return openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=REQUEST_TIMEOUT_S
    )


@pytest.fixture
def async_client(server):
    """Made in the test's event loop, which it is bound to."""

    def make() -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=REQUEST_TIMEOUT_S
        )

    return make


@pytest.fixture
def messages_client(server):
    return anthropic.Anthropic(
        base_url=server.url, api_key="none", max_retries=0, timeout=REQUEST_TIMEOUT_S
    )


@pytest.fixture
def still_serves(server, client):
    """Runs after the test: the server's processes are those from before, and it answers."""
    before = sorted(server.processes())
    yield
    answer = client.completions.create(model=MODEL, prompt=[5, 6, 7], max_tokens=2)
    assert answer.usage.completion_tokens == 2
    assert sorted(server.processes()) == before


@pytest.fixture
def metrics(server):
    return Metrics(server.url)

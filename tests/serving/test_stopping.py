"""A server can be stopped at any time, and takes all of its processes with it.

The rest of the directory stops a server that is ready. One that is still starting is the harder
case: its engine and worker exist already, and vLLM itself drops the signal.
"""

from __future__ import annotations

import time

ENGINE_STARTS = "Initializing a V1 LLM engine"
TIMEOUT_S = 240.0


def test_a_server_stopped_while_its_engine_starts_leaves_nothing(start_server):
    server = start_server()
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while not any(ENGINE_STARTS in line for line in server.lines()):
            assert time.monotonic() < deadline, server.tail()
            assert server.process.poll() is None, server.tail()
            time.sleep(0.1)
        assert len(server.processes()) >= 2, "server and engine"
    finally:
        server.stop()
    assert server.processes() == []

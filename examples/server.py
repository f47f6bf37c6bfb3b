"""Starts `vllm serve` as a child, waits until it answers, and stops all of it again.

Shared by the examples; standard library only.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

HOST = "127.0.0.1"
_POLL_S = 0.25
_REPORT_EVERY_S = 5.0
_STOP_TIMEOUT_S = 60.0
# vLLM 0.32 loses a SIGTERM that arrives while its engine starts, and finishes the start.
_STOP_AGAIN_S = 10.0
_TAIL_LINES = 25


class ServerError(RuntimeError):
    """The server did not start, or a process of it was left behind."""


class StartError(ServerError):
    """The server did not start; `reason` is the sentence without the end of the log."""

    def __init__(self, reason: str, ending: str = "") -> None:
        super().__init__(f"{reason} {ending}".strip())
        self.reason = reason


def free_port() -> int:
    """A TCP port of the loopback interface that nothing listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def command(name: str) -> str:
    """The path of a console script installed beside this interpreter."""
    return str(Path(sys.executable).with_name(name))


def tail(log: Path) -> str:
    """The end of a server's log, for error messages."""
    if not log.is_file():
        return f"There is no log {log}."
    lines = log.read_text(errors="replace").splitlines()
    return f"Last lines of {log}:\n" + "\n".join(lines[-_TAIL_LINES:])


class Server:
    """A `vllm serve` process in a session of its own, so that all of its workers can be found.

    wrapper: a command that becomes the one after it, such as `nice -n 5`.

    Raises:
        StartError: there is no such command, or the log cannot be written.
    """

    def __init__(
        self, model: Path, arguments: Sequence[str], log: Path, wrapper: Sequence[str] = ()
    ) -> None:
        self.port = free_port()
        self.log = log
        argv = [command("vllm"), "serve", str(model), "--host", HOST, "--port", str(self.port)]
        try:
            with log.open("wb") as output:
                self.process = subprocess.Popen(
                    [*wrapper, *argv, *arguments],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as problem:
            raise StartError(f"{problem}.") from problem

    @property
    def url(self) -> str:
        """The server's base address."""
        return f"http://{HOST}:{self.port}"

    def wait_until_ready(self, timeout_s: float) -> float:
        """Waits for the health check, reporting progress; gives the seconds it took.

        Raises:
            StartError: the process ended or the time is up; quotes the end of its log.
        """
        start = reported = time.monotonic()
        while not self._is_healthy():
            now = time.monotonic()
            if self.process.poll() is not None:
                raise StartError(f"vllm serve ended with {self.process.returncode}.", self.tail())
            if now - start > timeout_s:
                raise StartError(f"vllm serve was not ready in {timeout_s:.0f} s.", self.tail())
            if now - reported >= _REPORT_EVERY_S:
                reported = now
                print(f"  starting, {now - start:.0f} s: {self._last_line()}", flush=True)
            time.sleep(_POLL_S)
        return time.monotonic() - start

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False  # not listening yet

    def lines(self) -> list[str]:
        """The lines of the server's log so far."""
        return self.log.read_text(errors="replace").splitlines()

    def _last_line(self) -> str:
        lines = self.lines()
        return lines[-1].strip()[:100] if lines else "no output yet"

    def tail(self) -> str:
        """The end of the log, for error messages."""
        return tail(self.log)

    def processes(self) -> list[int]:
        """Ids of the processes of the server's session that are alive."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                # After the name in parentheses: state, parent, process group, session.
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while we looked
            if int(session) == self.process.pid and state != "Z":
                found.append(int(entry.name))
        return found

    def stop(self) -> None:
        """Ends the server and waits for all of its processes.

        Raises:
            ServerError: some had to be killed; names them.
        """
        start = time.monotonic()
        signals_sent = 0
        while (waited_s := time.monotonic() - start) < _STOP_TIMEOUT_S:
            is_running = self.process.poll() is None
            if not is_running and not self.processes():
                return
            if is_running and waited_s >= signals_sent * _STOP_AGAIN_S:
                self.process.send_signal(signal.SIGTERM)
                signals_sent += 1
            time.sleep(_POLL_S)
        left = self.processes()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        raise ServerError(f"processes {left} were left after {_STOP_TIMEOUT_S:.0f} s and killed")

"""Makes a tiny checkpoint, serves it, and asks one question: `python examples/demo.py [DIR]`.

The checkpoint has DeepSeek-V4.1's real layout and random weights, so the answer is gibberish; what
it shows is that loading, serving and decoding work on this machine.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from diagnosis import explain
from server import Server, StartError, command

QUESTION = "What is the capital of France?"
MODEL_NAME = "deepseek-v4.1-flash-tiny"
ARGUMENTS = ["--served-model-name", MODEL_NAME]
MAX_TOKENS = 64
START_TIMEOUT_S = 600.0
# The platform logs its settings in one line that starts with these words.
PLATFORM_WORDS = "vllm-deepinfer "


def main(directory: Path) -> None:
    """Runs the demo on the checkpoint in `directory`, which is made if absent.

    Raises:
        SystemExit: with a sentence, if a step fails.
    """
    make_checkpoint(directory)
    log = directory.with_name(directory.name + "-server.log")
    try:
        serve(directory, log)
    except StartError as problem:
        sys.exit(explain(directory, ARGUMENTS, log, problem.reason))
    print("Server stopped; no process left")


def make_checkpoint(directory: Path) -> None:
    """Makes the tiny checkpoint unless it is there."""
    if (directory / "config.json").is_file():
        return
    print(f"Making a tiny checkpoint in {directory}", flush=True)
    argv = [command("vllm-deepinfer"), "make-checkpoint", str(directory), "--preset", "tiny"]
    try:
        code = subprocess.run(argv).returncode
    except FileNotFoundError:
        sys.exit(f"{argv[0]} is missing: install vllm-deepinfer for {sys.executable}.")
    if code != 0:
        sys.exit(
            f"No checkpoint was made in {directory}, for the reason above. Another folder: "
            f"python {sys.argv[0]} DIR"
        )


def serve(directory: Path, log: Path) -> None:
    """Starts the server, asks it, and stops it.

    Raises:
        server.StartError: it did not start.
    """
    server = Server(directory, ARGUMENTS, log)
    print(f"vllm serve {directory} on {server.url}, log in {log}", flush=True)
    try:
        print(f"Ready after {server.wait_until_ready(START_TIMEOUT_S):.1f} s", flush=True)
        print(f"Platform: {platform_line(server)}", flush=True)
        ask(server)
    finally:
        server.stop()


def platform_line(server: Server) -> str:
    """The line in which the platform announces itself.

    Raises:
        SystemExit: the server runs on another platform than this package's.
    """
    for line in server.lines():
        if PLATFORM_WORDS in line:
            return line[line.index(PLATFORM_WORDS) :]
    sys.exit(f"The server did not announce this package's platform. {server.tail()}")


def ask(server: Server) -> None:
    """Streams one chat and prints the answer and its speed."""
    # Here, since it comes with vLLM: without that, the demo says so.
    import openai

    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    print(f"\nuser: {QUESTION}\nassistant: ", end="", flush=True)
    arrivals_s = []
    start = time.monotonic()
    stream = client.chat.completions.create(
        model=MODEL_NAME,
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=MAX_TOKENS,
        temperature=0.0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    usage = None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            if choice.delta.content:
                arrivals_s.append(time.monotonic() - start)
                print(choice.delta.content, end="", flush=True)
    if usage is None or usage.completion_tokens != MAX_TOKENS:
        sys.exit(f"\nExpected {MAX_TOKENS} tokens, the server reports {usage}")
    total_s = time.monotonic() - start
    print(
        f"\n\n{usage.prompt_tokens} prompt tokens, first text after {arrivals_s[0] * 1e3:.0f} ms, "
        f"{usage.completion_tokens} tokens in {total_s:.2f} s: "
        f"{usage.completion_tokens / total_s:.1f} tokens/s",
        flush=True,
    )


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1] if len(sys.argv) == 2 else "checkpoints/tiny"))

"""A server with a container's 64 MiB of /dev/shm gives the tokens of an engine without rings.

All tests of this folder run on that server where the machine lets a process have a /dev/shm of its
own. If this breaks, `docker run` without --shm-size ends in "Engine core initialization failed".
"""

from __future__ import annotations

from container_support import assert_in_a_container
from in_process import engine, run
from serving_support import MODEL

PROMPTS = [[5, 6, 7], [3 + 7 * n % 500 for n in range(300)]]
NUM_TOKENS = 16


def test_one_rank_serves(server, client, tiny_folder):
    assert_in_a_container(server)
    with engine(tiny_folder) as llm:
        expected = [run(llm, [prompt], NUM_TOKENS)[0][0] for prompt in PROMPTS]
    for prompt, tokens in zip(PROMPTS, expected, strict=True):
        answer = client.completions.create(
            model=MODEL,
            prompt=prompt,
            max_tokens=NUM_TOKENS,
            temperature=0,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        assert tuple(answer.choices[0].token_ids) == tokens

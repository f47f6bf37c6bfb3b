"""An engine on the operations that an Ascend 950 gets: eager, then drafts verified in graphs.

    python engine_on_operations.py FOLDER RESULT

Writes the tokens of both, as JSON.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

DRAFTING = {
    "speculative_config": {"method": "dspark", "num_speculative_tokens": 5},
    "additional_config": {"deepinfer": {"sync_guard": "error"}},
}


def main(folder: str, result: str) -> None:
    from fake_npu import graphs
    from in_process import engine, run
    from npu_ops.device_with_operations import CALLS

    choice = random.Random(5)
    prompts = [[choice.randrange(3, 500) for _ in range(n)] for n in (1, 140, 6)]
    found = {}
    for name, options in (("eager", {"enforce_eager": True}), ("drafting", DRAFTING)):
        with engine(Path(folder), max_num_seqs=2, max_num_batched_tokens=256, **options) as llm:
            before = graphs.num_replays()
            found[name] = [list(tokens) for tokens, _ in run(llm, prompts, 10)]
            found[f"{name} replays"] = graphs.num_replays() - before
    found["calls"] = dict(CALLS)
    Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A stand-in for DeepSeek-V4.1 in tests: same engine, exact successor rule, no weights to speak of.

A folder made by `make_stand_in` looks like a checkpoint and takes every production path of
configuration. Inside `registered()` its architectures load `StandInTarget` and `StandInDrafter`,
which run on the real runner, speculator, scheduler and KV-cache manager at a fraction of the cost.

The target's logits depend on the newest token alone, so greedy text and sampled law are known. Both
models keep a journal of the prefix in a KV cache of their own and check it for every token they
compute: a row that is lost, misplaced or of another request turns the text into `POISON` tokens.
The drafter is right as often as it is told, by a rule that repeats from run to run.
"""

from vllm_deepinfer.testing.stand_in.folder import make_stand_in
from vllm_deepinfer.testing.stand_in.law import POISON, Settings, drafts, logits_table, successors
from vllm_deepinfer.testing.stand_in.registry import registered

__all__ = [
    "POISON",
    "Settings",
    "drafts",
    "logits_table",
    "make_stand_in",
    "registered",
    "successors",
]

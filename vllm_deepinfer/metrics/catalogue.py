"""What the engine core counts, once for its writer and for its reader in another process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.platforms.our_model import vllm_trims_drafts
from vllm_deepinfer.scheduler.verification import ALL, KINDS
from vllm_deepinfer.scheduler.vote import Kind, Phase

if TYPE_CHECKING:
    from vllm.config import VllmConfig

OFFERED, ACCEPTED, CONFIDENCE = "draft_offered", "draft_accepted", "draft_confidence"
PLANS, PLANNER_SECONDS = "verification_plans", "verification_planner_seconds"
STEPS, BALLOTS, GRANTS, DENIALS = "phase_steps", "vote_ballots", "vote_grants", "vote_denials"
LONGEST_WAIT = "prefill_longest_wait_seconds"


@dataclass(frozen=True)
class Family:
    """Values that share a name and differ in one label; one value where there is no label.

    is_total: it only rises.
    """

    name: str
    help: str
    label: str = ""
    values: tuple[str, ...] = ("",)
    is_total: bool = True

    def counters(self) -> list[str]:
        """Names of the values in the counter file."""
        return [counter(self.name, value) for value in self.values]


def counter(family: str, value: str | int = "") -> str:
    """The counter of one value of a family."""
    return f"{family}_{value}" if value != "" else family


def families(vllm_config: VllmConfig) -> list[Family]:
    """What this configuration counts; nothing under a scheduler that is not this package's."""
    scheduler_class = vllm_config.scheduler_config.scheduler_cls
    if not str(scheduler_class).startswith("vllm_deepinfer."):
        return []
    options = DeepInferConfig.from_vllm(vllm_config)
    found = []
    # Where vLLM trims drafts in the worker, how many it verified is not told.
    if vllm_config.speculative_config is not None and not vllm_trims_drafts(vllm_config):
        found += draft_families(vllm_config.speculative_config.num_speculative_tokens)
        if options.verification != "all":
            found += PLAN_FAMILIES
    if options.prefill_vote != "off":
        found += VOTE_FAMILIES
    return found


def draft_families(num_drafts: int) -> list[Family]:
    """By position in the block."""
    positions = tuple(str(position) for position in range(num_drafts))
    return [
        Family(OFFERED, "Drafts verified, by position in the block.", "position", positions),
        Family(
            ACCEPTED,
            "Drafts that survived verification, by position in the block.",
            "position",
            positions,
        ),
        Family(
            CONFIDENCE,
            "Sum of the drafter's confidence in offered drafts; over offered, its mean.",
            "position",
            positions,
        ),
    ]


PLAN_FAMILIES = [
    Family(PLANS, "Steps planned, by how lengths were chosen.", "kind", (*KINDS, ALL)),
    Family(PLANNER_SECONDS, "Time spent on choosing how many drafts to verify."),
]
VOTE_FAMILIES = [
    Family(STEPS, "Steps of each phase.", "phase", tuple(phase.value for phase in Phase)),
    Family(BALLOTS, "Decisions for which ranks exchanged ballots."),
    Family(GRANTS, "Prefill steps granted, by reason.", "kind", tuple(kind.value for kind in Kind)),
    Family(DENIALS, "Decisions for decoding although this rank wanted a prefill."),
    Family(LONGEST_WAIT, "Longest time a prompt waited for its first step.", is_total=False),
]

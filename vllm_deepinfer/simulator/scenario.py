"""Everything that a simulation depends on, checked before it starts."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm_deepinfer.scheduler.verification import PlannerSettings
from vllm_deepinfer.scheduler.vote import VoteSettings
from vllm_deepinfer.simulator.acceptance import AcceptanceModel
from vllm_deepinfer.simulator.curves import MachineCurve
from vllm_deepinfer.simulator.errors import SimulationError, require_count, require_number
from vllm_deepinfer.simulator.published import dp8_prefill
from vllm_deepinfer.simulator.traffic import Traffic

PLANNED = ("adaptive", "compatible")
VERIFICATIONS = ("none", "fixed", *PLANNED, "oracle")


@dataclass(frozen=True)
class Scenario:
    """Machine, load and policies.

    Attributes:
        ranks: data-parallel ranks in lockstep.
        sequences: most requests that a rank runs at once.
        chunk_tokens: most tokens of one step on one rank.
        kv_tokens: tokens that a rank's KV cache holds; None: as many as come.
        watermark: share of the cache kept free when a request is admitted.
        curve, traffic, acceptance: the machine, the load, the drafter.
        vote: how ranks vote; None: vLLM without this package.
        prefill_interval: vLLM's `prefill_schedule_interval`, without a vote.
        strict: a voted prefill step runs no decodes; else they run beside the prompts.
        verification: `none`: no drafting; `fixed`: all drafts; `adaptive`: the planner decides;
            `compatible`: it does so by DeepInfer's rules; `oracle`: all is known in advance.
        min_benefit: `adaptive`: least predicted gain over a common length to depart from it.
        drafts: drafts in a block, at most as many as the acceptance model knows.
        async_scheduling: confidences reach the planner one step later.
        noise: relative spread of step times.
        steps, seconds: when to stop, whichever comes first. None: no such limit.
        warmup: share of steps or seconds that no figure includes.
        seed: of all randomness.

    Raises:
        SimulationError: names the value and what is allowed.
    """

    ranks: int = 8
    sequences: int = 64
    chunk_tokens: int = 8192
    kv_tokens: int | None = None
    watermark: float = 0.0
    curve: MachineCurve = field(default_factory=dp8_prefill)
    traffic: Traffic = Traffic()
    acceptance: AcceptanceModel = AcceptanceModel()
    vote: VoteSettings | None = None
    prefill_interval: int = 1
    strict: bool = True
    verification: str = "none"
    min_benefit: float = PlannerSettings.min_benefit
    drafts: int = 5
    async_scheduling: bool = False
    noise: float = 0.01
    steps: int | None = 2000
    seconds: float | None = None
    warmup: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("ranks", "sequences", "chunk_tokens", "prefill_interval"):
            require_count(name, getattr(self, name), 1)
        require_number("noise", self.noise, 0, 0.5)
        require_number("watermark", self.watermark, 0, 0.99)
        require_number("warmup", self.warmup, 0, 0.9)
        require_count("seed", self.seed, 0)
        self._check_end()
        self._check_drafts()
        self._check_room()
        if self.vote is not None and self.prefill_interval != 1:
            raise SimulationError(
                f"prefill_interval is {self.prefill_interval} beside a vote; they would fight. "
                "Leave it at 1 or switch the vote off."
            )

    def _check_end(self) -> None:
        if self.steps is None and self.seconds is None and self.traffic.kind != "recorded":
            raise SimulationError("neither steps nor seconds are given; the run would not end.")
        if self.steps is not None:
            require_count("steps", self.steps, 1)
        if self.seconds is not None:
            require_number("seconds", self.seconds, 1e-3)

    def _check_drafts(self) -> None:
        require_number("min_benefit", self.min_benefit, 0, 0.99)
        if self.verification not in VERIFICATIONS:
            raise SimulationError(
                f"verification is {self.verification!r}; allowed: {', '.join(VERIFICATIONS)}."
            )
        if self.verification != "none":
            require_count("drafts", self.drafts, 1)
            self.acceptance.first_drafts(self.drafts)
        rows = self.sequences * (1 + self.num_drafts)
        if rows > self.chunk_tokens:
            raise SimulationError(
                f"sequences is {self.sequences} with {self.num_drafts} drafts: {rows} rows do not "
                f"fit into chunk_tokens, which is {self.chunk_tokens}."
            )

    def _check_room(self) -> None:
        needed = self.traffic.longest_tokens() + self.num_drafts
        if self.kv_tokens is not None and (1 - self.watermark) * self.kv_tokens < needed:
            raise SimulationError(
                f"kv_tokens is {self.kv_tokens} with watermark {self.watermark}; one request can "
                f"come to hold {needed} tokens and would never run."
            )
        highest = max((entry.rank for entry in self.traffic.recorded), default=0)
        if highest >= self.ranks:
            raise SimulationError(f"an arrival names rank {highest}; ranks is {self.ranks}.")

    @property
    def num_drafts(self) -> int:
        """Drafts in a block; 0 without drafting."""
        return 0 if self.verification == "none" else self.drafts

"""The parts of this package in one engine core's scheduler, made from vLLM's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.log import get_logger
from vllm_deepinfer.metrics.catalogue import families
from vllm_deepinfer.metrics.shared_counters import SharedCounters, counter_file
from vllm_deepinfer.platforms.our_model import vllm_trims_drafts
from vllm_deepinfer.scheduler import cost_store
from vllm_deepinfer.scheduler.adaptive import AdaptiveVerification
from vllm_deepinfer.scheduler.announce import describe_verification, describe_vote
from vllm_deepinfer.scheduler.cost_key import cost_key
from vllm_deepinfer.scheduler.draft_table import DraftTable
from vllm_deepinfer.scheduler.drafting import DraftLedger
from vllm_deepinfer.scheduler.step_cost import CostSettings, StepCost
from vllm_deepinfer.scheduler.trace import StepTrace
from vllm_deepinfer.scheduler.verification import PlannerSettings
from vllm_deepinfer.scheduler.voting import PrefillVoting

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = get_logger(__name__)


@dataclass(frozen=True)
class CostFile:
    """Where step costs are kept between runs, and under which key."""

    path: Path
    key: str

    def load(self) -> StepCost | None:
        """The costs of an earlier run like this one.

        Raises:
            ValueError: the file is damaged.
        """
        cost = cost_store.load(self.path, self.key)
        if cost is None and self.path.exists():
            logger.warning(
                "Step costs in %s were measured with another machine, version, model or layout. "
                "They are not used, and will be replaced by this run's.",
                self.path,
            )
        return cost


@dataclass
class Parts:
    """What the scheduler of this package carries; None where the configuration has it off."""

    counters: SharedCounters | None = None
    ledger: DraftLedger | None = None
    voting: PrefillVoting | None = None
    verification: AdaptiveVerification | None = None
    cost_file: CostFile | None = None
    trace: StepTrace | None = None

    def save_costs(self) -> None:
        """Keep what steps were found to cost for the next run."""
        if self.cost_file is not None and self.verification.cost is not None:
            cost_store.save(self.cost_file.path, self.cost_file.key, self.verification.cost)

    def close(self) -> None:
        """Save what was learned and remove the counters."""
        self.save_costs()
        if self.trace is not None:
            self.trace.close()
        if self.ledger is not None:
            self.ledger.close()
        if self.counters is not None:
            self.counters.remove()


def make_parts(vllm_config: VllmConfig, is_async: bool) -> Parts:
    """The parts that the options ask for.

    Raises:
        ValueError: an option's value cannot be used, such as a damaged file of step costs.
    """
    options = DeepInferConfig.from_vllm(vllm_config)
    parallel = vllm_config.parallel_config
    rank = parallel.data_parallel_index
    parts = Parts()
    if options.step_trace:
        parts.trace = StepTrace(_of_rank(options.step_trace, rank))
    counted = [name for family in families(vllm_config) for name in family.counters()]
    if not counted:
        return parts
    counters = SharedCounters(counter_file(vllm_config.instance_id, rank), counted, create=True)
    parts.counters = counters
    if vllm_config.speculative_config is not None and not vllm_trims_drafts(vllm_config):
        table = DraftTable(vllm_config.speculative_config.num_speculative_tokens)
        records = Path(options.draft_records) if options.draft_records else None
        parts.ledger = DraftLedger(table, counters, records)
        if options.verification != "all":
            _add_verification(parts, vllm_config, options, is_async)
    if options.prefill_vote != "off":
        parts.voting = PrefillVoting(options, parallel.data_parallel_size, counters)
        if parallel.data_parallel_size > 1:
            from vllm_deepinfer.patch import dp_vote

            dp_vote.install()
    logger.info("%s", " ".join(_sentences(parts, options, parallel.data_parallel_size)))
    return parts


def _sentences(parts: Parts, options: DeepInferConfig, num_ranks: int) -> list[str]:
    said = [describe_vote(options, num_ranks)]
    if parts.ledger is not None:
        cost = None if parts.verification is None else parts.verification.cost
        num_drafts = parts.ledger.table.num_drafts
        said.append(describe_verification(options, num_drafts, cost))
    return said


def _of_rank(path: str, rank: int) -> Path:
    return Path(f"{path}.{rank}" if rank else path)


def cost_file(vllm_config: VllmConfig) -> CostFile | None:
    """Where the options keep this rank's step costs, if anywhere."""
    options = DeepInferConfig.from_vllm(vllm_config)
    if not options.step_cost_file:
        return None
    path = _of_rank(options.step_cost_file, vllm_config.parallel_config.data_parallel_index)
    return CostFile(path, cost_key(vllm_config, options.verification))


def _add_verification(
    parts: Parts, vllm_config: VllmConfig, options: DeepInferConfig, is_async: bool
) -> None:
    parts.cost_file = cost_file(vllm_config)
    is_compatible = options.verification == "compatible"
    parts.verification = AdaptiveVerification(
        parts.ledger,
        parts.counters,
        is_async,
        is_compatible,
        settings=(
            PlannerSettings.compatible()
            if is_compatible
            else PlannerSettings(min_benefit=options.verification_min_benefit)
        ),
        # Nothing pads a step here: it costs what the line between two measured sizes says.
        cost_settings=CostSettings.compatible() if is_compatible else CostSettings(padded=False),
        cost=None if parts.cost_file is None else parts.cost_file.load(),
    )

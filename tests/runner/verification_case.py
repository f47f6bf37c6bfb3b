"""A random batch of drafts to verify, and the chain of kernels that verifies it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from runner.kernel_case import Batch, Version

UTILS = "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils"
Run = Callable[[str, tuple[int, ...], dict[str, Any]], dict[str, Any]]


def cdiv(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def next_power_of_2(number: int) -> int:
    return 1 << (number - 1).bit_length()


@dataclass
class Verification:
    """What verification is given; tensors as in vLLM's `rejection_sample`."""

    target_logits: torch.Tensor
    draft_logits: torch.Tensor | None
    draft_sampled: torch.Tensor
    cu_num_logits: torch.Tensor
    pos: torch.Tensor
    idx_mapping: torch.Tensor
    temperature: torch.Tensor
    seed: torch.Tensor
    num_steps: int
    synthetic_rates: torch.Tensor | None = None
    use_fp64: bool = False
    is_blockwise: bool = False
    stats_block: int = 16
    resample_block: int = 8
    expanded_idx_mapping: torch.Tensor = field(init=False)
    expanded_local_pos: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        counts = torch.diff(self.cu_num_logits).long()
        self.expanded_idx_mapping = self.idx_mapping.repeat_interleave(counts)
        self.expanded_local_pos = torch.cat(
            [torch.arange(count, dtype=torch.int32) for count in counts.tolist()]
        )


def random_verification(
    seed: int,
    num_reqs: int,
    num_steps: int,
    vocab_size: int,
    *,
    has_draft_logits: bool,
    greedy_share: float,
    placeholder_share: float = 0.15,
    guess_share: float = 0.2,
    agreement: float = 1.0,
) -> Verification:
    """Requests with 0 to num_steps drafts over random slots. Targets are filtered (-inf) in places;
    more drafts are likely ones with greater `agreement` and less guessing."""
    batch = Batch(seed, num_reqs, max_num_reqs=num_reqs + 3)
    counts = batch.integers(0, num_steps, num_reqs)
    cu_num_logits = torch.zeros(num_reqs + 1, dtype=torch.int32)
    cu_num_logits[1:] = (counts + 1).cumsum(0)
    num_logits = int(cu_num_logits[-1])
    target_logits = batch.normal(num_logits, vocab_size, row_padding=3)
    draft_logits = batch.normal(batch.max_num_reqs, num_steps, vocab_size + 2)
    greedy = torch.from_numpy(batch.random.random(batch.max_num_reqs) < greedy_share)
    temperature = torch.from_numpy(batch.random.uniform(0.3, 2.0, batch.max_num_reqs)).float()
    temperature[greedy] = 0.0
    draft_sampled = batch.integers(0, vocab_size - 1, num_logits)
    for request in range(num_reqs):
        slot = int(batch.idx_mapping[request])
        for step in range(int(counts[request])):
            row = int(cu_num_logits[request]) + step
            near = agreement * target_logits[row] * max(float(temperature[slot]), 0.1)
            draft_logits[slot, step, :vocab_size] += near
            # What a drafter would propose, and what verification is most likely to accept.
            if batch.random.random() >= guess_share:
                draft_sampled[row + 1] = int(draft_logits[slot, step, :vocab_size].argmax())
    filtered = torch.from_numpy(batch.random.random(target_logits.shape) < 0.3)
    # Whole blocks of the vocabulary, too, but never every token.
    filtered[::2, vocab_size // 2 :] = True
    filtered.scatter_(1, target_logits.argmax(dim=1, keepdim=True), False)
    target_logits[filtered] = float("-inf")
    draft_sampled[torch.from_numpy(batch.random.random(num_logits) < placeholder_share)] = -1
    return Verification(
        target_logits=target_logits,
        draft_logits=draft_logits if has_draft_logits else None,
        draft_sampled=draft_sampled,
        cu_num_logits=cu_num_logits,
        pos=batch.integers(0, 2**20, num_logits, dtype=torch.int64),
        idx_mapping=batch.idx_mapping,
        temperature=temperature,
        seed=batch.integers(-(2**62), 2**62, batch.max_num_reqs, dtype=torch.int64),
        num_steps=num_steps,
    )


class Chain:
    """Launches the kernels one behind the other, each on what the ones before left.

    run: called as run(kernel, grid, arguments), returns the arguments as the kernel leaves them.
    """

    def __init__(self, case: Verification, version: Version, run: Run) -> None:
        self.case, self.version, self._run = case, version, run
        # Neither a number nor a token: what is left of it shows what was never written.
        self.unset, self.unset_token = -77.5, -77
        self.num_logits, self.num_reqs = case.pos.shape[0], case.idx_mapping.shape[0]
        self.vocab_size = case.target_logits.shape[1]
        if case.draft_logits is not None:
            self.vocab_size = min(self.vocab_size, case.draft_logits.shape[2])
        self.num_blocks = cdiv(self.vocab_size, case.stats_block)

    def run(self, name: str, grid: tuple[int, ...], arguments: dict[str, Any]) -> dict[str, Any]:
        return self._run(f"{UTILS}.{name}", grid, arguments)

    def floats(self, *shape: int) -> torch.Tensor:
        return torch.full(shape, self.unset)

    def _bound(self) -> dict[str, int]:
        if self.version >= (0, 33):
            return {"num_logits": self.num_logits}
        return {"num_speculative_steps": self.case.num_steps}

    def _logits(self) -> dict[str, Any]:
        case = self.case
        strides = (0, 0) if case.draft_logits is None else case.draft_logits.stride()
        return {
            "target_logits_ptr": case.target_logits,
            "target_logits_stride": case.target_logits.stride(0),
            "draft_logits_ptr": case.draft_logits,
            "draft_logits_stride_0": strides[0],
            "draft_logits_stride_1": strides[1],
        }

    def _expanded(self) -> dict[str, torch.Tensor]:
        return {
            "expanded_idx_mapping_ptr": self.case.expanded_idx_mapping,
            "expanded_local_pos_ptr": self.case.expanded_local_pos,
        }

    def _padded_blocks(self) -> dict[str, int]:
        return {
            "vocab_num_blocks": self.num_blocks,
            "PADDED_VOCAB_NUM_BLOCKS": next_power_of_2(self.num_blocks),
        }

    @property
    def has_draft_logits(self) -> bool:
        return self.case.draft_logits is not None

    def statistics(self) -> dict[str, Any]:
        names = ("target_local_max", "target_local_sumexp", "draft_local_max", "draft_local_sumexp")
        outputs: dict[str, Any] = {
            "target_local_argmax_ptr": torch.full(
                (self.num_logits, self.num_blocks), self.unset_token
            ),
            "target_local_argmax_stride": self.num_blocks,
        }
        for name in names:
            outputs[f"{name}_ptr"] = self.floats(self.num_logits, self.num_blocks)
            outputs[f"{name}_stride"] = self.num_blocks
        arguments = {
            **outputs,
            **self._logits(),
            **self._expanded(),
            "temp_ptr": self.case.temperature,
            "vocab_size": self.vocab_size,
            **self._bound(),
            "BLOCK_SIZE": self.case.stats_block,
            "HAS_DRAFT_LOGITS": self.has_draft_logits,
        }
        grid = (self.num_logits, self.num_blocks)
        after = self.run("_compute_local_logits_stats_kernel", grid, arguments)
        return {name: after[name] for name in outputs}

    def cumulative_log_p(self, stats: dict[str, Any]) -> torch.Tensor:
        arguments = {
            "cumulative_log_p_ptr": self.floats(self.num_logits),
            **self._logits(),
            **{name: stats[name] for name in stats if "argmax" not in name},
            "draft_sampled_ptr": self.case.draft_sampled,
            "cu_num_logits_ptr": self.case.cu_num_logits,
            "idx_mapping_ptr": self.case.idx_mapping,
            "temp_ptr": self.case.temperature,
            **self._padded_blocks(),
            "HAS_DRAFT_LOGITS": self.has_draft_logits,
        }
        after = self.run("_compute_cumulative_log_p_kernel", (self.num_reqs,), arguments)
        return after["cumulative_log_p_ptr"]

    def residual_mass(self, stats: dict[str, Any], cumulative: torch.Tensor) -> torch.Tensor:
        arguments = {
            "local_residual_mass_ptr": self.floats(self.num_logits, self.num_blocks),
            "local_residual_mass_stride": self.num_blocks,
            "cumulative_log_p_ptr": cumulative,
            **self._logits(),
            **{name: stats[name] for name in stats if "argmax" not in name},
            "draft_sampled_ptr": self.case.draft_sampled,
            **self._expanded(),
            "temp_ptr": self.case.temperature,
            "vocab_size": self.vocab_size,
            **self._bound(),
            **self._padded_blocks(),
            "BLOCK_SIZE": self.case.stats_block,
        }
        grid = (self.num_logits, self.num_blocks)
        after = self.run("_compute_local_residual_mass_kernel", grid, arguments)
        return after["local_residual_mass_ptr"]

    def reject(
        self,
        stats: dict[str, Any],
        cumulative: torch.Tensor | None,
        mass: torch.Tensor | None,
    ) -> dict[str, Any]:
        case = self.case
        outputs = {
            "sampled_ptr": torch.full((self.num_reqs, case.num_steps + 1), self.unset_token),
            "rejected_steps_ptr": torch.full((self.num_reqs,), -7, dtype=torch.int32),
            "target_rejected_logsumexp_ptr": self.floats(self.num_reqs),
            "draft_rejected_logsumexp_ptr": self.floats(self.num_reqs),
        }
        fly = {}
        if self.version >= (0, 33):
            fly = {"fly_entropy_ptr": None, "fly_entropy_threshold": 0.3, "FLY_WINDOW_SIZE": 0}
        arguments = {
            **outputs,
            "sampled_stride": case.num_steps + 1,
            **self._logits(),
            **stats,
            "draft_sampled_ptr": case.draft_sampled,
            "cu_num_logits_ptr": case.cu_num_logits,
            "idx_mapping_ptr": case.idx_mapping,
            "temp_ptr": case.temperature,
            "seed_ptr": case.seed,
            "pos_ptr": case.pos,
            "synthetic_conditional_rates_ptr": case.synthetic_rates,
            "cumulative_log_p_ptr": cumulative,
            "local_residual_mass_ptr": mass,
            "local_residual_mass_stride": 0 if mass is None else mass.stride(0),
            **fly,
            **self._padded_blocks(),
            "HAS_DRAFT_LOGITS": self.has_draft_logits,
            "SYNTHETIC_MODE": case.synthetic_rates is not None,
            "USE_BLOCK_VERIFICATION": case.is_blockwise,
        }
        after = self.run("_rejection_kernel", (self.num_reqs,), arguments)
        return {name: after[name] for name in outputs}

    def resample(self, rejected: dict[str, Any], cumulative: torch.Tensor | None) -> dict[str, Any]:
        case = self.case
        num_blocks = cdiv(self.vocab_size, case.resample_block)
        dtype = torch.float64 if case.use_fp64 else torch.float32
        outputs = {
            "resampled_local_argmax_ptr": torch.full((self.num_reqs, num_blocks), self.unset_token),
            "resampled_local_argmax_stride": num_blocks,
            "resampled_local_max_ptr": self.floats(self.num_reqs, num_blocks).to(dtype),
            "resampled_local_max_stride": num_blocks,
        }
        sums = ("target_rejected_logsumexp_ptr", "draft_rejected_logsumexp_ptr")
        arguments = {
            **outputs,
            **self._logits(),
            **{name: rejected[name] for name in sums},
            "rejected_step_ptr": rejected["rejected_steps_ptr"],
            "cu_num_logits_ptr": case.cu_num_logits,
            "expanded_idx_mapping_ptr": case.expanded_idx_mapping,
            "draft_sampled_ptr": case.draft_sampled,
            "temp_ptr": case.temperature,
            "seed_ptr": case.seed,
            "pos_ptr": case.pos,
            "cumulative_log_p_ptr": cumulative,
            "contexts_ptr": None,
            "contexts_stride": 0,
            "watermarking_ptr": None,
            "watermarking_skip_mask_ptr": None,
            "watermark_key_0": 0,
            "watermark_key_1": 0,
            "vocab_size": self.vocab_size,
            "BLOCK_SIZE": case.resample_block,
            "HAS_DRAFT_LOGITS": self.has_draft_logits,
            "USE_FP64": case.use_fp64,
            "USE_BLOCK_VERIFICATION": case.is_blockwise,
            "CONTEXT_WIDTH": 1,
            "WATERMARK": False,
            "DEDUPLICATE_CONTEXTS": False,
        }
        after = self.run("_resample_kernel", (self.num_reqs, num_blocks), arguments)
        return {name: after[name] for name in outputs}

    def insert(self, rejected: dict[str, Any], drawn: dict[str, Any]) -> dict[str, Any]:
        num_blocks = drawn["resampled_local_max_ptr"].shape[1]
        arguments = {
            "sampled_ptr": rejected["sampled_ptr"],
            "sampled_stride": self.case.num_steps + 1,
            "num_sampled_ptr": rejected["rejected_steps_ptr"],
            **drawn,
            "resample_num_blocks": num_blocks,
            "cu_num_logits_ptr": self.case.cu_num_logits,
            "expanded_idx_mapping_ptr": self.case.expanded_idx_mapping,
            "temp_ptr": self.case.temperature,
            "PADDED_RESAMPLE_NUM_BLOCKS": next_power_of_2(num_blocks),
        }
        return self.run("_insert_resampled_kernel", (self.num_reqs,), arguments)

    def verify(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(sampled int64 [num_reqs, num_steps + 1], num_sampled int32 [num_reqs])."""
        stats = self.statistics()
        cumulative = mass = None
        if self.case.is_blockwise:
            cumulative = self.cumulative_log_p(stats)
            if self.has_draft_logits:
                mass = self.residual_mass(stats, cumulative)
        rejected = self.reject(stats, cumulative, mass)
        after = self.insert(rejected, self.resample(rejected, cumulative))
        return after["sampled_ptr"], after["num_sampled_ptr"]

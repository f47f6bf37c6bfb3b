"""Mixture of experts: router, FP4 experts and the shared FP8 expert (section 2.10)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vllm_deepinfer.models.deepseek_v41.config import V41Config
from vllm_deepinfer.models.deepseek_v41.expert_exchange import ExpertExchange, RankRows
from vllm_deepinfer.models.deepseek_v41.probe import Probe, Quantity
from vllm_deepinfer.models.deepseek_v41.stored_weights import (
    Fp4Stack,
    Fp8Linear,
    PlainLinear,
    parameter,
)
from vllm_deepinfer.ops import reference
from vllm_deepinfer.ops.experts import fp4_experts
from vllm_deepinfer.ops.numerics import Activation, Numerics
from vllm_deepinfer.ops.router import clamped_swiglu, route, sum_experts


@dataclass(frozen=True)
class ExpertCounts:
    """Routed experts of a layer, and how many each token goes to."""

    total: int
    per_token: int


class Router(PlainLinear):
    """Scores experts; ``bias`` steers the choice but not the weights."""

    def __init__(self, config: V41Config, experts: ExpertCounts) -> None:
        super().__init__(config.hidden_size, experts.total)
        self.config, self.count = config, experts.per_token
        self.bias = parameter(experts.total, dtype=torch.float32)
        if config.vision.num_hidden_layers:
            # Chooses experts for image tokens; stored, but text never uses it.
            self.bias_vl = parameter(experts.total, dtype=torch.float32)

    def choose(self, x: Tensor, forced: Tensor | None) -> tuple[Tensor, Tensor]:
        """Expert numbers ``[T, k]`` and their weights for ``[T, D]`` tokens."""
        config, logits = self.config, self(x)
        weighting = (config.norm_topk_prob, config.routed_scaling_factor)
        if forced is not None:
            return reference.route(logits, self.bias, self.count, *weighting, forced)
        return route(logits, self.bias, self.count, *weighting)


class Experts(nn.Module):
    """Weights of the routed experts ``held`` here, one stack per matrix."""

    def __init__(self, config: V41Config, held: range, numerics: Numerics) -> None:
        super().__init__()
        hidden, inter = config.hidden_size, config.moe_intermediate_size
        self.held = held
        self.w1 = Fp4Stack(len(held), hidden, inter)
        self.w2 = Fp4Stack(len(held), inter, hidden)
        self.w3 = Fp4Stack(len(held), hidden, inter)
        self.limit, self.numerics = config.swiglu_limit, numerics

    def forward(self, x: Activation, chosen: Tensor, weights: Tensor) -> Tensor:
        """Outputs ``[T, k, D]`` of the chosen experts ``[T, k]``; zero where not held here."""
        return fp4_experts(
            x.rows,
            x.scales,
            chosen,
            weights,
            self.w1.weight,
            self.w1.scale,
            self.w3.weight,
            self.w3.scale,
            self.w2.weight,
            self.w2.scale,
            self.held.start,
            self.limit,
            self.numerics.dtype,
        )


class SharedExpert(nn.Module):
    def __init__(self, config: V41Config, numerics: Numerics) -> None:
        super().__init__()
        hidden, inter = config.hidden_size, config.moe_intermediate_size
        self.w1 = Fp8Linear(hidden, inter, numerics)
        self.w2 = Fp8Linear(inter, hidden, numerics)
        self.w3 = Fp8Linear(hidden, inter, numerics)
        self.limit, self.numerics = config.swiglu_limit, numerics

    def forward(self, activation: Activation) -> Tensor:
        gate, up = self.w1(activation), self.w3(activation)
        inner = clamped_swiglu(gate, up, self.limit, self.numerics.dtype)
        return self.w2(self.numerics.activation(inner))


class MixtureOfExperts(nn.Module):
    """Every rank scores its own tokens; routed experts are computed where ``exchange`` puts them.

    Its ``rank_rows`` say how many tokens each rank brings; without other ranks nobody reads them.
    """

    def __init__(
        self,
        config: V41Config,
        layer: int,
        experts: ExpertCounts,
        numerics: Numerics,
        exchange: ExpertExchange,
    ) -> None:
        super().__init__()
        self.layer, self.numerics, self.exchange = layer, numerics, exchange
        self.gate = Router(config, experts)
        self.experts = Experts(config, exchange.held(experts.total), numerics)
        self.shared_experts = SharedExpert(config, numerics)

    def forward(self, x: Tensor, rank_rows: RankRows = (), probe: Probe | None = None) -> Tensor:
        """``[T, D]`` to ``[T, D]``; experts are summed in float32, in ascending order."""
        forced = None if probe is None else probe.forced(Quantity.EXPERTS, self.layer)
        chosen, weights = self.gate.choose(x, forced)
        if probe is not None:
            probe.note(Quantity.EXPERTS, self.layer, chosen)
        activation = self.numerics.activation(x)
        outputs = self.routed(activation, chosen, weights, rank_rows)
        return sum_experts(outputs, chosen, self.shared_experts(activation), self.numerics.dtype)

    def join(self, rank_rows: RankRows) -> None:
        """Compute the experts held here for other ranks' tokens; this rank has none."""
        weight = self.gate.weight
        none = torch.empty(0, weight.shape[1], dtype=self.numerics.dtype, device=weight.device)
        slots = none.new_empty(0, self.gate.count, dtype=torch.float32)
        self.routed(self.numerics.activation(none), slots.long(), slots, rank_rows)

    def routed(
        self, activation: Activation, chosen: Tensor, weights: Tensor, rank_rows: RankRows
    ) -> Tensor:
        """Outputs ``[T, k, D]`` of this rank's tokens, wherever their experts are."""
        gathered = self.exchange.gather([*activation.tensors(), chosen, weights], rank_rows)
        *rows, chosen, weights = gathered
        outputs = self.experts(Activation(*rows), chosen, weights)
        return self.exchange.bring_back(outputs, rank_rows)

"""Mixture of experts: router, FP4 experts and the shared FP8 expert (section 2.10)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vllm_deepinfer.models.deepseek_v41.config import V41Config
from vllm_deepinfer.models.deepseek_v41.probe import Probe, Quantity
from vllm_deepinfer.models.deepseek_v41.stored_weights import (
    Fp4Stack,
    Fp8Linear,
    PlainLinear,
    parameter,
)
from vllm_deepinfer.ops.numerics import Numerics
from vllm_deepinfer.ops.reference import clamped_swiglu, route


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
        config = self.config
        return route(
            self(x),
            self.bias,
            self.count,
            config.norm_topk_prob,
            config.routed_scaling_factor,
            forced,
        )


class Experts(nn.Module):
    """The routed experts' weights, one stack per matrix."""

    def __init__(self, config: V41Config, experts: int, numerics: Numerics) -> None:
        super().__init__()
        hidden, inter = config.hidden_size, config.moe_intermediate_size
        self.w1 = Fp4Stack(experts, hidden, inter)
        self.w2 = Fp4Stack(experts, inter, hidden)
        self.w3 = Fp4Stack(experts, hidden, inter)
        self.limit, self.numerics = config.swiglu_limit, numerics

    def forward(self, expert: int, activation: Tensor, weight: Tensor) -> Tensor:
        """Output ``[n, D]`` of one expert for its tokens, scaled by ``weight`` ``[n]``.

        The router's weight is applied before the second quantisation, as the reference does.
        """
        store, linear = self.numerics.store, torch.nn.functional.linear
        gate = store(linear(activation, self.w1.expert(expert)))
        up = store(linear(activation, self.w3.expert(expert)))
        inner = store(clamped_swiglu(gate, up, self.limit) * weight.unsqueeze(-1))
        return store(linear(self.numerics.activation(inner), self.w2.expert(expert)))


class SharedExpert(nn.Module):
    def __init__(self, config: V41Config, numerics: Numerics) -> None:
        super().__init__()
        hidden, inter = config.hidden_size, config.moe_intermediate_size
        self.w1 = Fp8Linear(hidden, inter, numerics)
        self.w2 = Fp8Linear(inter, hidden, numerics)
        self.w3 = Fp8Linear(hidden, inter, numerics)
        self.limit, self.numerics = config.swiglu_limit, numerics

    def forward(self, activation: Tensor) -> Tensor:
        inner = clamped_swiglu(self.w1(activation), self.w3(activation), self.limit)
        return self.w2(self.numerics.activation(self.numerics.store(inner)))


class MixtureOfExperts(nn.Module):
    def __init__(
        self, config: V41Config, layer: int, experts: ExpertCounts, numerics: Numerics
    ) -> None:
        super().__init__()
        self.layer, self.numerics = layer, numerics
        self.gate = Router(config, experts)
        self.experts = Experts(config, experts.total, numerics)
        self.shared_experts = SharedExpert(config, numerics)

    def forward(self, x: Tensor, probe: Probe | None = None) -> Tensor:
        """``[T, D]`` to ``[T, D]``; experts are summed in float32, in ascending order."""
        forced = None if probe is None else probe.forced(Quantity.EXPERTS, self.layer)
        chosen, weights = self.gate.choose(x, forced)
        if probe is not None:
            probe.note(Quantity.EXPERTS, self.layer, chosen)
        activation = self.numerics.activation(x)
        total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for expert in chosen.unique().tolist():
            token, slot = (chosen == expert).nonzero(as_tuple=True)
            out = self.experts(expert, activation[token], weights[token, slot])
            total.index_add_(0, token, out.to(torch.float32))
        return self.numerics.store(total + self.shared_experts(activation))

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
    """Weights of the routed experts ``held`` here, one stack per matrix."""

    def __init__(self, config: V41Config, held: range, numerics: Numerics) -> None:
        super().__init__()
        hidden, inter = config.hidden_size, config.moe_intermediate_size
        self.held = held
        self.w1 = Fp4Stack(len(held), hidden, inter)
        self.w2 = Fp4Stack(len(held), inter, hidden)
        self.w3 = Fp4Stack(len(held), hidden, inter)
        self.limit, self.numerics = config.swiglu_limit, numerics

    def forward(
        self, activation: Tensor, chosen: Tensor, weights: Tensor, rows_alone: bool
    ) -> Tensor:
        """Outputs ``[T, k, D]`` of the chosen experts ``[T, k]``; zero where not held here.

        ``rows_alone`` computes every row by itself rather than with all of its expert's rows.
        """
        outputs = torch.zeros(
            *chosen.shape,
            activation.shape[-1],
            dtype=self.numerics.dtype,
            device=activation.device,
        )
        for expert in chosen.unique().tolist():
            if expert not in self.held:
                continue
            tokens, slots = (chosen == expert).nonzero(as_tuple=True)
            size = 1 if rows_alone else len(tokens)
            for token, slot in zip(tokens.split(size), slots.split(size), strict=True):
                outputs[token, slot] = self._compute(
                    self.held.index(expert), activation[token], weights[token, slot]
                )
        return outputs

    def _compute(self, expert: int, activation: Tensor, weight: Tensor) -> Tensor:
        """Output ``[n, D]`` of one held expert for its tokens, scaled by ``weight`` ``[n]``.

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


def sum_in_expert_order(outputs: Tensor, chosen: Tensor) -> Tensor:
    """Float32 ``[T, D]`` sums of outputs ``[T, k, D]``, added by ascending expert number."""
    tokens = torch.arange(len(chosen), device=chosen.device)
    total = torch.zeros(len(chosen), outputs.shape[-1], dtype=torch.float32, device=outputs.device)
    for slots in chosen.argsort(dim=1, stable=True).unbind(1):
        total += outputs[tokens, slots].to(torch.float32)
    return total


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
        total = sum_in_expert_order(outputs, chosen)
        return self.numerics.store(total + self.shared_experts(activation))

    def join(self, rank_rows: RankRows) -> None:
        """Compute the experts held here for other ranks' tokens; this rank has none."""
        weight = self.gate.weight
        none = torch.empty(0, weight.shape[1], dtype=torch.float32, device=weight.device)
        slots = none.new_empty(0, self.gate.count)
        self.routed(none, slots.long(), slots, rank_rows)

    def routed(
        self, activation: Tensor, chosen: Tensor, weights: Tensor, rank_rows: RankRows
    ) -> Tensor:
        """Outputs ``[T, k, D]`` of this rank's tokens, wherever their experts are."""
        rows = self.exchange.gather([activation, chosen, weights], rank_rows)
        return self.exchange.bring_back(self.experts(*rows, self.exchange.rows_alone), rank_rows)

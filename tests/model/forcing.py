"""Bridge between the oracle's traces and the decoder: forced decisions, errors, one-layer runs."""

from __future__ import annotations

import numpy as np
import torch

from vllm_deepinfer.models.deepseek_v41.indexer import Selection
from vllm_deepinfer.models.deepseek_v41.probe import Probe, Quantity
from vllm_deepinfer.models.deepseek_v41.standalone import Chunk, StandaloneModel


def probe_with_decisions_of(trace) -> Probe:
    """A probe that makes the decoder choose the experts and rows the oracle chose."""
    force = {}
    for layer, experts in trace.experts.items():
        force[Quantity.EXPERTS, layer] = torch.from_numpy(np.asarray(experts)).long()
    for layer, rows in trace.index_rows.items():
        width = max(1, max(len(row) for row in rows))
        padded = torch.full((len(rows), width), -1, dtype=torch.int64)
        for token, row in enumerate(rows):
            padded[token, : len(row)] = torch.from_numpy(np.asarray(row)).long()
        force[Quantity.INDEX_ROWS, layer] = padded
    return Probe(force)


def relative_l2(found: torch.Tensor, wanted: np.ndarray) -> float:
    wanted_tensor = torch.from_numpy(np.asarray(wanted))
    return ((found.double() - wanted_tensor).norm() / wanted_tensor.norm()).item()


@torch.no_grad()
def layer_outputs(model: StandaloneModel, trace, probe: Probe) -> list[torch.Tensor]:
    """Every layer's output ``[T, S, D]`` when each starts from the oracle's own input."""
    step = model.step([Chunk(0, trace.token_ids.tolist())], probe)
    memories = model.decoder.engram_lookup.find(step)
    shared, outputs = Selection(), []
    dtype = model.decoder.numerics.dtype
    for number, layer in enumerate(model.decoder.layers):
        streams = torch.from_numpy(trace.layer_inputs[number]).to(dtype)
        pre = torch.from_numpy(trace.pre[number]).float()
        outputs.append(layer(streams, pre, step, shared, memories)[0])
    return outputs

"""A module tree with exactly the parameters a model part must have."""

from __future__ import annotations

import torch
from torch import nn

from vllm_deepinfer.models.deepseek_v41.schema import TensorSpec


def module_of(parameters: dict[str, TensorSpec], device: str = "cpu") -> nn.Module:
    root = nn.Module()
    for name, spec in parameters.items():
        *path, leaf = name.split(".")
        module = root
        for step in path:
            if step not in dict(module.named_children()):
                module.add_module(step, nn.Module())
            module = module.get_submodule(step)
        # all-ones bytes: NaN in every float format here, so an unfilled parameter shows
        data = torch.empty(spec.shape, dtype=spec.dtype, device=device)
        data.view(torch.uint8).fill_(255)
        module.register_parameter(leaf, nn.Parameter(data, requires_grad=False))
    return root

"""The model's entry in vLLM's registry: inspected in this process, when it is first asked for.

vLLM inspects a model registered by name in a new interpreter, to keep CUDA out of this one, and
remembers the outcome until the model's file changes. That interpreter imports vLLM again: 10 s and
more on a first start. Importing this model takes under a second and touches no device.
"""

from __future__ import annotations

from typing import Any

from vllm.model_executor.models.registry import _LazyRegisteredModel, _ModelInfo


class InProcessModel(_LazyRegisteredModel):
    """A model class by module and name, imported on first use."""

    def inspect_model_cls(self) -> Any:
        return _ModelInfo.from_model_cls(self.load_model_cls())

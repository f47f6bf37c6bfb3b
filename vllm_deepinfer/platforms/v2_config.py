"""Lets a vLLM configuration choose the V2 model runner on a machine without Triton.

vLLM decides this in two members of VllmConfig and offers no hook for either. They are overridden on
a subclass that one configuration object adopts, rather than on VllmConfig or through
VLLM_USE_V2_MODEL_RUNNER: those would reach every other model in the process too.
"""

from __future__ import annotations

from vllm.config import VllmConfig
from vllm.config.vllm import envs


class TritonFreeVllmConfig(VllmConfig):
    """A configuration whose model runs on the V2 runner with this package's torch kernels."""

    @property
    def use_v2_model_runner(self) -> bool:
        """Always: the cache groups and model hooks of DeepSeek-V4.1 exist on the V2 runner only."""
        return True

    def _validate_v2_model_runner(self) -> None:
        unsupported = self._get_v2_model_runner_unsupported_features()
        if unsupported:
            raise ValueError(
                f"DeepSeek-V4.1 runs on vLLM's V2 model runner, which does not support: "
                f"{', '.join(unsupported)}. Remove the options that ask for it."
            )


def adopt(vllm_config: VllmConfig) -> None:
    """Makes `vllm_config` choose the V2 runner and warm up no Triton kernel. Idempotent.

    Raises:
        ValueError: the user asks for the V1 runner.
    """
    if envs.VLLM_USE_V2_MODEL_RUNNER is False:
        raise ValueError(
            "VLLM_USE_V2_MODEL_RUNNER=0 asks for the V1 model runner, on which DeepSeek-V4.1 "
            "cannot run. Allowed: unset, 1."
        )
    if not isinstance(vllm_config, TritonFreeVllmConfig):
        vllm_config.__class__ = TritonFreeVllmConfig
    # Its steps would compile the Triton kernels that the runner does without.
    vllm_config.kernel_config.enable_jit_warmup = False

"""The SM100 platform: vLLM's CUDA platform, set up for DeepSeek-V4.1 on Blackwell (B200, GB200).

Every other model keeps vLLM's stock behaviour. Importing this module imports vLLM's CUDA platform,
which loads its CUDA extension and asks the driver for GPUs: only vLLM does so, by the name that
``detect`` gave it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.platforms.cuda import CudaPlatform

from vllm_deepinfer import envs
from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.log import get_logger, info_once
from vllm_deepinfer.platforms import our_model
from vllm_deepinfer.platforms.refusals import UnsupportedOptionError
from vllm_deepinfer.platforms.sm100_rules import WORKER_CLASS

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = get_logger(__name__)


class DeepInferSm100Platform(CudaPlatform):
    """vLLM on SM100 with this package's scheduling, and with its model class where asked."""

    # Read by `registration`: vLLM has a class of this model that runs here.
    runs_vllms_class = True
    # Requests come without their model's configuration; other models have other runners' limits.
    _serves_our_model = False

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Sets vLLM up for the model. vLLM calls it for every configuration object: idempotent.

        Raises:
            vllm_deepinfer.config.OptionError: an option of this package is not allowed.
            vllm_deepinfer.platforms.refusals.UnsupportedOptionError: the GPU is of another
                family, or an option of vLLM cannot be honoured.
        """
        if not our_model.is_our_model(vllm_config):
            super().check_and_update_config(vllm_config)
            return
        from vllm_deepinfer.platforms import sm100_invariance, sm100_planner
        from vllm_deepinfer.platforms.refusals import refuse_unsupported
        from vllm_deepinfer.platforms.request_limits import widen_bad_word_tables
        from vllm_deepinfer.platforms.sm100_model import chosen_model, use_our_class
        from vllm_deepinfer.platforms.sm100_rules import DEEPINFER_RULES, VLLM_RULES

        options = DeepInferConfig.from_vllm(vllm_config)
        hardware = check_hardware(cls.get_device_capability(), envs.platform_override())
        model = chosen_model(options)
        rules = DEEPINFER_RULES if model == "deepinfer" else VLLM_RULES
        refuse_unsupported(vllm_config, rules, f"SM100 with model {options.model}")
        sm100_invariance.set_switches(options)
        parallel = vllm_config.parallel_config
        if parallel.worker_cls == "auto":
            parallel.worker_cls = WORKER_CLASS
        super().check_and_update_config(vllm_config)
        our_model.choose_grammar_backend(vllm_config)
        if model == "deepinfer":
            use_our_class(vllm_config)
            # Its steps look at their own sizes on the host, which a graph cannot hold.
            our_model.run_eagerly(vllm_config)
            our_model.choose_block_size(vllm_config)
        our_model.keep_matched_blocks(vllm_config)
        planner = sm100_planner.plan_in_worker(vllm_config, options, model)
        widen_bad_word_tables()
        cls._serves_our_model = True
        our_model.choose_scheduler(vllm_config)
        _announce(vllm_config, hardware, model, planner)

    @classmethod
    def validate_request(cls, processed_inputs: Any, params: Any) -> None:
        """Refuses what the model runner has no room for; see `request_limits`."""
        from vllm.sampling_params import SamplingParams

        from vllm_deepinfer.platforms.request_limits import check_request

        super().validate_request(processed_inputs, params)
        if cls._serves_our_model and isinstance(params, SamplingParams):
            check_request(params)

    @classmethod
    def update_block_size_for_backend(cls, vllm_config: VllmConfig) -> None:
        """Leaves this package's class its block size: its cache groups are declared for it."""
        from vllm_deepinfer.platforms.sm100_model import chosen_model

        ours = our_model.is_our_model(vllm_config)
        if ours and chosen_model(DeepInferConfig.from_vllm(vllm_config)) == "deepinfer":
            return
        super().update_block_size_for_backend(vllm_config)


def check_hardware(capability: tuple[int, int] | None, override: str | None) -> str:
    """A clause that names the GPU's family.

    Args:
        capability: (major, minor), None where the driver does not say.
        override: value of DEEPINFER_PLATFORM, if set.

    Raises:
        UnsupportedOptionError: the family is neither SM100 nor, for testing, SM90.
    """
    major, minor = capability or (0, 0)
    if major == 10:
        return f"SM100 (compute capability {major}.{minor})"
    if major == 9 and override == "sm100":
        return f"SM90 (compute capability {major}.{minor}), for testing only, by DEEPINFER_PLATFORM"
    found = f"compute capability {major}.{minor}" if capability else "no compute capability"
    raise UnsupportedOptionError(
        f"DeepSeek-V4.1 on the SM100 platform: the GPU has {found} (allowed: 10.x; 9.x for testing "
        "with DEEPINFER_PLATFORM=sm100). Set DEEPINFER_PLATFORM=off to have vLLM's own platform."
    )


def _announce(vllm_config: VllmConfig, hardware: str, model: str, planner: str) -> None:
    import vllm

    from vllm_deepinfer import __version__

    options, scheduler = DeepInferConfig.from_vllm(vllm_config), vllm_config.scheduler_config
    whose = "this package's" if model == "deepinfer" else "vLLM's"
    info_once(
        logger,
        f"vllm-deepinfer {__version__} on vLLM {vllm.__version__}: {hardware}, {whose} class of "
        f"the model (option model {options.model}), "
        f"{vllm_config.model_config.dtype}, {planner}, "
        f"async scheduling {'on' if scheduler.async_scheduling else 'off'}, "
        f"batch invariance {'on' if options.batch_invariant else 'off'}, "
        f"sync guard {options.sync_guard}.",
    )

"""DeepSeek-V4.1-Flash behind vLLM's server.

The two functions here are vLLM's entry points into the package. vLLM calls them in every process
it starts, `platform` while `import vllm` is still running, so this module imports nothing heavy.
"""

from __future__ import annotations

__version__ = "0.1.0"


def platform() -> str | None:
    """Names the platform class for this machine, or None to leave vLLM's own choice alone.

    vLLM calls this twice per process and before vLLM itself can be imported: it reads the
    environment and the hardware, says once what a user must know, and changes nothing.
    """
    from vllm_deepinfer.log import get_logger, warn_once
    from vllm_deepinfer.platforms.detect import detect

    detection = detect()
    if detection.warning is not None:
        warn_once(get_logger(__name__), detection.warning)
    return detection.qualname


def register() -> None:
    """Registers the model with vLLM; does nothing while another platform is active.

    Safe to call any number of times.

    Raises:
        ValueError, RuntimeError: DEEPINFER_PLATFORM is wrong or asks for what cannot run here.
            vLLM only logs what `platform` raises, so it is raised again here, where vLLM stops.
    """
    platform()
    from vllm.platforms import current_platform

    # A vLLM user on other hardware who merely has this package installed must see stock vLLM.
    if not type(current_platform).__module__.startswith(__name__ + "."):
        return
    from vllm_deepinfer import registration

    registration.register_all()

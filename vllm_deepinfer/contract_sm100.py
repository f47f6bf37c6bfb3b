"""What the SM100 platform, its worker and the sync guard rely on."""

from __future__ import annotations

from vllm_deepinfer.compat import Symbol, calls, uses

_SYNC_CHECK = "vllm.utils.gpu_sync_debug"

SYNC_GUARD: tuple[Symbol, ...] = (
    # Set by worker/sync_guard.py, so that the waits vLLM marks pass its guard.
    uses(_SYNC_CHECK, "_SYNC_CHECK_MODE"),
    calls(_SYNC_CHECK, "_allow_syncs"),
    calls(_SYNC_CHECK, "_install_compile_time_sync_suppressors"),
    uses(_SYNC_CHECK, "gpu_sync_allowed"),
)

SM100: tuple[Symbol, ...] = (*SYNC_GUARD,)

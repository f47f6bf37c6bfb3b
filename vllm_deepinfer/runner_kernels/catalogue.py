"""Which Triton kernels of vLLM's V2 runner have no torch form here, and why: plain data.

Every kernel under `vllm.v1.worker.gpu` is implemented in this package or listed here; a test holds
the two against every supported release. A kernel that is in neither (a newer vLLM) is refused as
well, without a reason of its own.
"""

from __future__ import annotations

import re
from pathlib import Path

from vllm_deepinfer.contract.releases import Version, later_releases

PACKAGE = "vllm.v1.worker.gpu"
NO_REASON = "this version of vLLM is newer than the package"
_REJECTION_SAMPLING = (
    "vLLM's rejection sampling, in whose place drafts are compared with the target's own tokens; "
    "drop rejection_sample_method and draft_sample_method from --speculative-config"
)

_JIT_FUNCTION = re.compile(r"^@triton\.jit(?:\(.*?\))?\ndef (\w+)", re.MULTILINE | re.DOTALL)
_SUBSCRIPTED = re.compile(r"\b(\w+)\[")

# For the oldest release. Module below PACKAGE: (what the kernels are for and what to change, kernel
# names).
_REFUSED: dict[str, tuple[str, tuple[str, ...]]] = {
    "cp_utils": (
        "context parallelism; drop --decode-context-parallel-size",
        ("_dcp_local_seq_lens_kernel",),
    ),
    "input_batch": (
        "pipeline stages and pooling; drop --pipeline-parallel-size and --runner",
        ("_post_update_num_computed_tokens_kernel",),
    ),
    "mm.rope": (
        "multi-dimensional rotary positions; serve a model without M-RoPE",
        ("_prepare_rope_positions_kernel",),
    ),
    "model_states.mamba_hybrid": (
        "state-space layers; serve a model without Mamba layers",
        ("_scatter_num_accepted_kernel", "_fill_num_accepted_kernel"),
    ),
    "model_states.prompt_embeds": (
        "prompt embeddings; drop --enable-prompt-embeds",
        ("_apply_prompt_embeds_kernel",),
    ),
    "model_states.recoverssm": (
        "state-space layers; serve a model without Mamba layers",
        ("_postprocess_recoverssm_align_kernel",),
    ),
    "sample.batch_shard": (
        "sampling sharded over tensor-parallel ranks; drop --enable-batch-sharded-sampling",
        (
            "_build_shard_plan_kernel",
            "_pack_sampler_output_kernel",
            "_unpack_gathered_output_kernel",
            "_pack_logprobs_kernel",
            "_unpack_logprobs_kernel",
        ),
    ),
    "sample.watermark": (
        "watermarking; drop the watermark configuration",
        ("_repeated_context_mask_kernel", "_philox_gumbel_kernel"),
    ),
    "spec_decode.acceptance_estimator": (
        "vLLM's adaptive verification; drop enable_adaptive_verification",
        ("_accumulate_kernel", "_refit_kernel", "_local_max_sumexp_kernel", "_predict_kernel"),
    ),
    "spec_decode.dflash2.speculator": (
        "DFlash 2 drafting; drop --speculative-config",
        ("_selector_walk_kernel", "_cache_draft_logits_kernel"),
    ),
    "spec_decode.multi_module_mtp.speculator": (
        "multi-module MTP drafting; drop --speculative-config",
        (
            "_prepare_input_buffers_kernel",
            "_prepare_input_hidden_states_and_embeddings_kernel",
            "_pad_trailing_draft_slots_kernel",
            "_cache_inputs_kernel",
            "_shift_input_ids_kernel",
            "_shift_input_embeds_kernel",
        ),
    ),
    "spec_decode.ngram.speculator": (
        "n-gram drafting on the device; drop --speculative-config",
        ("_ngram_scan_kernel", "_ngram_finalize_kernel"),
    ),
    "spec_decode.rejection_sampler": (_REJECTION_SAMPLING, ("_flatten_sampled_kernel",)),
    "spec_decode.rejection_sampler_utils": (
        _REJECTION_SAMPLING,
        (
            "_compute_local_logits_stats_kernel",
            "_compute_cumulative_log_p_kernel",
            "_compute_local_residual_mass_kernel",
            "_rejection_kernel",
            "_resample_kernel",
            "_insert_resampled_kernel",
        ),
    ),
    "spec_decode.standalone_ar.speculator": (
        "drafting with a separate model; drop --speculative-config",
        ("_prepare_prefill_inputs_kernel",),
    ),
    "spec_decode.target_dependent_ar.speculator": (
        "Eagle and MTP drafting; drop --speculative-config",
        (
            "_prepare_prefill_inputs_kernel",
            "_prepare_decode_inputs_kernel",
            "_update_draft_inputs_kernel",
        ),
    ),
}

# What later releases add, in the same form.
_REFUSED_SINCE: dict[Version, dict[str, tuple[str, tuple[str, ...]]]] = {
    (0, 33): {
        "sample.watermark": (
            "watermarking; drop the watermark configuration",
            ("_draft_step_kernel",),
        ),
        "spec_decode.xpress.kernels": (
            "XPress drafting; use the method dspark in --speculative-config",
            (
                "_xpress_latent_kernel",
                "_xpress_add_argmax_partial_kernel",
                "_xpress_add_argmax_reduce_to_blk_kernel",
                "_xpress_topc_argmax_to_blk_kernel",
            ),
        ),
    }
}


def refused_kernels(version: Version) -> dict[str, str]:
    """Fully qualified kernel name: reason, for vLLM `version` (major, minor)."""
    tables = [_REFUSED]
    tables += [_REFUSED_SINCE.get(release.version, {}) for release in later_releases(version)]
    return {
        f"{PACKAGE}.{module}.{kernel}": reason
        for table in tables
        for module, (reason, kernels) in table.items()
        for kernel in kernels
    }


def find_kernels(root: Path) -> list[str]:
    """Full names of the Triton kernels below `PACKAGE` that its code launches.

    Functions that only kernels call are not among them. Works on the source text, because without
    Triton a kernel is a plain function like any other.

    Args:
        root: the folder that holds the package `vllm`.
    """
    package = root.joinpath(*PACKAGE.split("."))
    functions: list[tuple[str, str]] = []
    launched: set[str] = set()
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "@triton.jit" not in text:
            continue
        module = ".".join((PACKAGE, *path.relative_to(package).with_suffix("").parts))
        functions += ((module, name) for name in _JIT_FUNCTION.findall(text))
        launched.update(_SUBSCRIPTED.findall(text))
    return [f"{module}.{name}" for module, name in functions if name in launched]

"""What this machine and a set of options would serve, and what is wrong with them.

`diagnose.diagnose` makes a document, printed as it is by `vllm-deepinfer doctor --json` and as text
without. Its layout, stable within one `format`; sizes are in bytes or tokens, as names say:

    format              1
    ok                  whether no finding is an error, and the options were checked
    package             version of this package
    platform            name, class, reason of what was detected (null: none); in_force, the class
                        that vLLM uses (null: vLLM was not imported); checked, the name of the
                        platform that options were checked for
    vllm_build          "cpu", "cuda", "other" or "absent"
    versions            {name: {found, tested}}; null where there is none
    platform_plugins    entry points that vLLM would load
    extensions          {C++ extension: "built", "not built" or why it cannot be loaded}
    kernels             instruction set of the C++ kernels; null without them
    findings            [{check, level, message, fix}], level "error", "warning", "not_checked" or
                        "note"
    vllm_warnings       what vLLM warned of while it made the configuration
    model               null without a model, else
        model, architectures
        checkpoint      bytes of its tensors by part; absent for a model that vLLM downloads
        features        [{name, is_on, detail}]
        limits          [{flag, allowed, why}]: values other than these are refused
        graphs          {mode, with_drafts_tokens, without_drafts_tokens, largest_decode_tokens,
                        covers_largest_decode}
        engram          {tables_bytes: of one copy, place: where copies lie}
        memory          null where vLLM's own model class serves, else
            ranks       weights of each rank: [{experts_bytes, engram_bytes, drafts_bytes,
                        other_bytes, total_bytes}]
            kv_caches   by kind: [{kind, num_layers, row_bytes, tokens_per_row, bytes_per_token,
                        kept_tokens}]
            kv_pool     what fits: {size_bytes, block_bytes, num_groups, full_request_bytes,
                        num_blocks, num_tokens, num_full_requests, problem}

A model of another architecture has `model` and `architectures` alone. Where vLLM cannot be imported
or refuses the options, `checkpoint` is all that is added.
"""

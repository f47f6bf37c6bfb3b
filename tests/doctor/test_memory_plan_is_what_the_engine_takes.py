"""The memory plan is made without weights and without an engine, and is what an engine then takes.

Claim: for the same options, blocks, tokens and weights of the plan equal those of a started engine;
the weights of all ranks of expert parallelism add up to the checkpoint's, for the published model
too; and a cache that is too small is reported with what it lacks. If this breaks, people buy the
wrong machines.
"""

from __future__ import annotations

import pytest
from in_process import engine

from vllm_deepinfer.doctor import serving
from vllm_deepinfer.doctor.checkpoint import checkpoint_bytes
from vllm_deepinfer.doctor.memory import plan_memory
from vllm_deepinfer.models.deepseek_v41.config import V41Config
from vllm_deepinfer.models.deepseek_v41.presets import preset
from vllm_deepinfer.models.deepseek_v41.schema import total_bytes
from vllm_deepinfer.models.deepseek_v41.weights import expected_parameters

DRAFTING = '{"method": "dspark", "num_speculative_tokens": 5}'


def config_of(*arguments):
    made = serving.make_config(serving.parse(arguments))
    assert made.findings == []
    return made.config


def planned(*arguments):
    return plan_memory(config_of(*arguments))


def parameters_bytes(module):
    return sum(p.numel() * p.element_size() for p in module.parameters())


def test_a_started_engine_takes_what_was_planned(tiny_folder):
    plan = planned(
        str(tiny_folder),
        *("--max-model-len", "1024", "--max-num-seqs", "64"),
        *("--kv-cache-memory-bytes", str(1 << 26), "--speculative-config", DRAFTING),
    )
    options = {"method": "dspark", "num_speculative_tokens": 5}
    with engine(tiny_folder, kv_cache_memory_bytes=1 << 26, speculative_config=options) as llm:
        cache = llm.llm_engine.vllm_config.cache_config
        runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
        target = parameters_bytes(runner.model)
        draft = runner.speculator.model
        # The target lends the draft its embedding and head.
        stages = sum(p.numel() * p.element_size() for p in draft.model.mtp.parameters())
        assert plan.pool.num_blocks == cache.num_gpu_blocks
        assert plan.pool.num_tokens == cache.kv_cache_size_tokens
        assert plan.pool.num_full_requests == cache.kv_cache_max_concurrency
        assert plan.ranks[0].total_bytes == target + stages
    pool = plan.pool
    assert pool.num_blocks * pool.block_bytes <= 1 << 26 < (pool.num_blocks + 1) * pool.block_bytes


@pytest.mark.parametrize("name", ["tiny", "published"])
def test_ranks_share_experts_and_engram_tables_and_repeat_the_rest(name):
    arguments = (name, "--max-model-len", "4096", "--speculative-config", DRAFTING)
    spread = (*arguments, "--data-parallel-size", "3", "--enable-expert-parallel")
    alone = planned(*arguments).ranks
    ranks = planned(*spread).ranks
    config = V41Config.from_dict(preset(name))
    parts = [
        total_bytes(expected_parameters(config, part).values()) for part in ("target", "draft")
    ]
    assert [rank.total_bytes for rank in alone] == [sum(parts)]
    assert len(ranks) == 3
    assert sum(rank.experts_bytes for rank in ranks) == alone[0].experts_bytes
    assert ranks[0].experts_bytes >= ranks[2].experts_bytes > 0
    assert sum(rank.engram_bytes for rank in ranks) == alone[0].engram_bytes
    assert ranks[0].engram_bytes >= ranks[2].engram_bytes >= 0.99 * ranks[0].engram_bytes
    for rank in ranks:
        assert (rank.drafts_bytes, rank.other_bytes) == (
            alone[0].drafts_bytes,
            alone[0].other_bytes,
        )


def test_ranks_without_expert_parallelism_have_everything():
    arguments = ("tiny", "--max-model-len", "4096")
    ranks = planned(*arguments, "--data-parallel-size", "2").ranks
    assert ranks == planned(*arguments).ranks * 2


def test_parts_of_the_published_checkpoint():
    sizes = checkpoint_bytes(preset("published"))
    assert sizes["total_bytes"] == 510286023000
    assert sum(sizes.values()) == 2 * sizes["total_bytes"]
    alone = planned("published", "--max-model-len", "4096").ranks[0]
    # Both tables, 196 GB together, are the largest thing after the experts.
    assert sizes["engram_bytes"] == alone.engram_bytes > 196e9
    assert sizes["vision_bytes"] > 0
    assert alone.drafts_bytes == 0


def test_kinds_of_cache_without_and_with_drafts():
    config = V41Config.from_dict(preset("published"))
    alone = planned("published", "--max-model-len", "4096").caches
    drafting = planned(
        "published", "--max-model-len", "4096", "--speculative-config", DRAFTING
    ).caches
    windows = [{c.kind: c.num_layers for c in caches}["window"] for caches in (alone, drafting)]
    stages = config.num_nextn_predict_layers
    assert windows == [config.num_hidden_layers, config.num_hidden_layers + stages]
    owners = [plan for plan in config.layers if plan.owns_kv]
    per_token = sum(c.bytes_per_token for c in alone if c.kept_tokens is None)
    # 288 bytes of a compressed row and 68 of an index key, for one or two tokens.
    assert per_token == sum((288 + 68) / plan.ratio for plan in owners)
    assert {c.kind: c.kept_tokens for c in alone} == {
        "window": 128,
        "open_group": 8,
        "compressed": None,
        "index_key": None,
    }


def test_a_cache_for_less_than_one_request_says_what_it_lacks():
    pool = planned("tiny", "--max-model-len", "4096", "--kv-cache-memory-bytes", "4000000").pool
    assert pool.problem is not None and pool.size_bytes == 4000000
    assert (pool.num_blocks, pool.num_tokens, pool.num_full_requests) == (None, None, None)
    assert pool.full_request_bytes > 4000000
    size = str(pool.full_request_bytes + 2 * pool.block_bytes)
    enough = planned("tiny", "--max-model-len", "4096", "--kv-cache-memory-bytes", size).pool
    assert enough.problem is None and enough.num_full_requests >= 1

"""The oracle's number formats and engram hashes reproduce published bytes and constants.

Claim: quantisers give the reference's cache records byte for byte, rounding agrees with torch, and
hash multipliers, primes and table sizes are those of the published configuration. If this breaks,
the oracle's quantised mode and its engram rows judge nothing.
Run: python -m pytest tests/oracle/test_formats.py (about 5 s).
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.oracle import engram, formats
from tests.oracle.config import read_config
from tests.oracle.weights import Weights

DATA = Path(__file__).parents[1] / "data"
TINY = DATA / "v41_tiny"
PROMPT = np.array(json.loads((TINY / "golden.json").read_text())["prompt"]["ids"])

# ---- formats ----

QUANTISERS = {
    ("e4m3", "ue8m0"): formats.quantise_fp8_ue8m0,
    ("e4m3", "fp32"): formats.quantise_fp8_fp32,
    ("e2m1", "e4m3"): formats.quantise_fp4_e4m3,
    ("e2m1", "ue8m0"): formats.quantise_fp4_ue8m0,
}
SCALE_BYTES = {
    "ue8m0": formats.encode_ue8m0,
    "e4m3": formats.encode_e4m3,
    "fp32": lambda scales: scales.astype("<f4").view(np.uint8),
}
DATA_BYTES = {"e4m3": formats.encode_e4m3, "e2m1": formats.encode_e2m1_packed}
KV_FORMATS = json.loads((DATA / "kv_formats.json").read_text())["formats"]


@pytest.mark.parametrize("name", KV_FORMATS)
def test_quantisers_reproduce_the_reference_bytes(name):
    record = KV_FORMATS[name]

    def rows(key, dtype):
        return np.frombuffer(base64.b64decode(record[key]), dtype=dtype).reshape(24, -1)

    values = (rows("input_bf16", "<u2").astype(np.uint32) << 16).view(np.float32)
    quantise = QUANTISERS[record["quantised"], record["scale"]]
    quantised = quantise(values.astype(np.float64), record["group"])
    scales = SCALE_BYTES[record["scale"]](quantised.scales[..., 0])
    codes = DATA_BYTES[record["quantised"]](quantised.values.reshape(values.shape))
    assert np.array_equal(scales, rows("scales", np.uint8))
    assert np.array_equal(codes, rows("data", np.uint8))


def test_rounding_to_bf16_agrees_with_torch_including_ties_and_subnormals():
    generator = np.random.default_rng(0)
    values = generator.standard_normal(20000) * 2.0 ** generator.integers(-140, 100, 20000)
    values = values.astype(np.float32)
    midpoints = (np.arange(0x3F00, 0x4100, dtype=np.uint32) << 16 | 0x8000).view(np.float32)
    values = np.concatenate([values, midpoints, -midpoints, np.float32([0.0, -0.0])])
    expected = torch.from_numpy(values).bfloat16().double().numpy()
    assert np.array_equal(formats.round_bf16(values.astype(np.float64)), expected)


def test_every_finite_byte_survives_decode_and_encode():
    codes = np.array([code for code in range(256) if code & 0x7F != 0x7F], dtype=np.uint8)
    assert np.array_equal(formats.encode_e4m3(formats.decode_e4m3(codes)), codes)
    packed = np.arange(256, dtype=np.uint8)
    assert np.array_equal(formats.encode_e2m1_packed(formats.decode_e2m1_packed(packed)), packed)


# ---- engram ----


def test_engram_constants_of_the_published_configuration():
    assert engram.hash_multipliers(1, 99092, 4).tolist() == [
        76632096046245,
        4839876093313,
        35959672319349,
        73987337458391,
    ]
    assert engram.hash_multipliers(14, 99092, 4).tolist() == [
        67716810739261,
        51510806800915,
        30921347202721,
        82619226485591,
    ]
    config = SimpleNamespace(
        engram_layer_ids=(1, 14),
        engram_max_ngram_size=4,
        engram_n_heads=8,
        engram_vocab_size=16000000,
    )
    primes = engram.hash_primes(config)
    assert primes[1].reshape(-1)[:2].tolist() == [16000057, 16000079]
    assert primes[14][0, 0] == 16000477
    assert [primes[layer].sum() for layer in (1, 14)] == [384006168, 384016682]


def test_a_dead_token_blocks_itself_and_everything_before_it():
    tables = engram.Engram(read_config(TINY), TINY / "tokenizer.json")
    ids = PROMPT[:8]
    dead = np.arange(8) == 3
    rows = tables.rows(1, ids, dead)
    plain = tables.rows(1, ids)
    assert np.array_equal(rows[:3], plain[:3])
    assert np.array_equal(rows[7], plain[7])  # the longest window holds positions 4 to 7
    assert not np.array_equal(rows[6], plain[6])
    assert np.array_equal(rows[5], tables.rows(1, ids[4:6])[1])


def test_a_sharded_checkpoint_reads_like_a_single_file(tmp_path):
    tensors = load_file(TINY / "model.safetensors")
    shards = [dict(list(tensors.items())[start::2]) for start in (0, 1)]
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for file, shard in zip(files, shards, strict=True):
        save_file(shard, tmp_path / file)
    weight_map = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    single, sharded = Weights(TINY), Weights(tmp_path)
    names = [name for name in tensors if not name.endswith(".scale")]
    assert len(names) > 300
    for name in names:
        assert np.array_equal(sharded[name], single[name])

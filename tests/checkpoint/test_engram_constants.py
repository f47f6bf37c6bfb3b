"""Engram hash constants equal the published model's.

A wrong constant reads the wrong memory rows silently, so each is compared with published numbers,
and the hash built from them with rows computed by the reference implementation.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from vllm_deepinfer.models.deepseek_v41.config import V41Config
from vllm_deepinfer.models.deepseek_v41.engram_constants import (
    compressed_token_map,
    hash_multipliers,
    table_offsets,
    table_primes,
)
from vllm_deepinfer.models.deepseek_v41.presets import preset

GOLDEN = Path(__file__).parents[1] / "data" / "v41_tiny"


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (1, [76632096046245, 4839876093313, 35959672319349, 73987337458391]),
        (14, [67716810739261, 51510806800915, 30921347202721, 82619226485591]),
    ],
)
def test_published_multipliers(layer, expected):
    multipliers = hash_multipliers(layer, 4, 99092)
    assert multipliers.dtype == np.int64
    assert multipliers.tolist() == expected


@pytest.mark.parametrize("compressed", [1, 464, 99092, 2**40])
def test_products_never_overflow(compressed):
    largest = max(hash_multipliers(3, 8, compressed).tolist())
    assert (compressed - 1) * largest < 2**63


def test_published_primes_fill_the_published_tables():
    config = V41Config.from_dict(preset("published"))
    primes = table_primes(config)
    assert list(primes) == [1, 14]
    assert [int(p.sum()) for p in primes.values()] == list(config.engram_num_embeddings)
    assert primes[1].shape == (3, 8)
    assert primes[1][0, :2].tolist() == [16000057, 16000079]
    assert primes[14][0, 0] == 16000477


def test_tiny_primes_and_offsets():
    primes = table_primes(V41Config.from_dict(preset("tiny")))[1]
    assert primes.tolist() == [[67, 71], [73, 79], [83, 89]]
    assert table_offsets(primes).tolist() == [[0, 67], [138, 211], [290, 373]]


def test_small_start_values_give_primes_only():
    config = V41Config.from_dict(preset("tiny"))
    object.__setattr__(config, "engram_vocab_size", 0)
    assert table_primes(config)[1].reshape(-1).tolist() == [2, 3, 5, 7, 11, 13]


def test_rows_equal_the_reference_implementation():
    golden = json.loads((GOLDEN / "golden.json").read_text())
    config = V41Config.from_dict(golden["config"])
    compressed, count = compressed_token_map(GOLDEN / "tokenizer.json")
    assert compressed.dtype == np.int32
    assert count == config.engram_compressed_vocab_size == compressed.max() + 1
    multipliers = hash_multipliers(1, 4, count)
    primes = table_primes(config)[1]
    offsets = table_offsets(primes)
    ids = golden["prompt"]["ids"]
    for position, expected in golden["engram_rows"]["rows"].items():
        mixed, row = np.int64(0), []
        for back in range(4):
            here = int(position) - back
            token = ids[here] if here >= 0 else config.engram_pad_token_id
            mixed ^= np.int64(compressed[token]) * multipliers[back]
            if back:
                row += (mixed % primes[back - 1] + offsets[back - 1]).tolist()
        assert row == expected, f"position {position}"


def test_every_step_of_the_normaliser_counts(tmp_path):
    """Words that must meet share a letter; derived by hand from section 3.1."""
    words = {
        "Eé": "a",  # full-width, decomposed, accent-free and lower-case forms of "ee"
        "\uff25e\u0301": "a",
        "  ee\t": "a",
        "x \n y": "b",  # inner white space is one space
        "x y": "b",
        " ": "c",
        "\n\t": "c",
        "\u00a0": "c",  # a no-break space reads as a space
        "\u0301": "d",  # an accent alone normalises to nothing and stays itself
        "\u0300": "e",
        "\ufffd": "f",  # no reading: the raw token
        "\ufffd ": "g",
        "xy": "h",
    }
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    compressed, count = compressed_token_map(tmp_path / "tokenizer.json")
    assert "".join("abcdefgh"[i] for i in compressed) == "".join(words.values())
    assert count == 8


def test_spellings_share_an_id():
    """Case, accents and surrounding space do not matter; a lone space is a token of its own."""
    compressed, _ = compressed_token_map(GOLDEN / "tokenizer.json")
    vocabulary = json.loads((GOLDEN / "tokenizer.json").read_text())["model"]["vocab"]
    id_of = {token: compressed[token_id] for token, token_id in vocabulary.items()}
    assert id_of["t"] == id_of["T"] == id_of["Ġt"]
    assert id_of["Ġ"] == id_of["Ċ"]  # any white space
    assert id_of["Ġ"] != id_of["!"]
    assert len({*compressed[:3].tolist()}) == 3

"""Random bits depend on seed and position alone, or runs of two policies cannot be compared."""

from __future__ import annotations

import numpy as np
import pytest

from vllm_deepinfer.simulator.randomness import fine_uniforms, normals, random_bits, uniforms

MANY = np.arange(200_000)


def test_bits_depend_on_positions_not_on_order_or_company():
    bits = random_bits(7, 1, MANY, MANY % 11)
    order = np.argsort(bits)
    assert (random_bits(7, 1, MANY[order], MANY[order] % 11) == bits[order]).all()
    assert random_bits(7, 1, MANY[5:6], MANY[5:6] % 11)[0] == bits[5]


@pytest.mark.parametrize("other", [(8, 1, 0), (7, 2, 0), (7, 1, 1)])
def test_seeds_streams_and_positions_are_independent(other):
    seed, stream, second = other
    one = fine_uniforms(random_bits(7, 1, MANY, MANY * 0))
    two = fine_uniforms(random_bits(seed, stream, MANY, MANY * 0 + second))
    assert abs(np.corrcoef(one, two)[0, 1]) < 5 / np.sqrt(len(MANY))


def test_uniforms_and_normals_have_their_laws():
    bits = random_bits(3, 1, MANY, MANY * 0)
    for chances in (uniforms(bits), fine_uniforms(bits)):
        counts = np.histogram(chances, np.linspace(0, 1, 21))[0]
        expected = len(MANY) / 20
        assert ((counts - expected) ** 2 / expected).sum() < 43.8  # 99.9 % quantile of chi2(19)
        assert chances.min() >= 0 and chances.max() < 1
    drawn = normals(bits, 12)
    assert abs(drawn.mean()) < 5 / np.sqrt(len(MANY))
    assert abs(drawn.std() - 1) < 0.01

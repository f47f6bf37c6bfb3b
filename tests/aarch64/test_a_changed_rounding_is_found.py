"""The comparison with x86 finds one changed rounding, and names the operations that it reaches.

If this fails, the other tests here would pass on a core that computes something else.
"""

from __future__ import annotations

import pytest
from aarch64.memory import differences
from aarch64.mutants import MUTANTS, build_mutant


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_mutant(replay, place, tmp_path, mutant):
    target = tmp_path / "extensions"
    build_mutant(mutant, place, target)
    found = replay(mutant.extension, target, mutant.lives)
    assert mutant.operations <= set(found["different"]) < set(found["calls"])


ONE, MINUS_ZERO, NAN, OTHER_NAN = (
    bytes.fromhex(bits)[::-1] for bits in ("3f800000", "80000000", "7fc00000", "ffc00001")
)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "uint8"])
def test_any_other_bit_is_a_difference_and_another_nan_is_none(kind):
    width = {"float32": slice(0, 4), "bfloat16": slice(2, 4), "uint8": slice(0, 4)}[kind]
    one, minus_zero, nan, other = (x[width] for x in (ONE, MINUS_ZERO, NAN, OTHER_NAN))
    assert list(differences(one + nan, one + nan, kind)) == []
    assert len(list(differences(one + minus_zero, one + bytes(len(one)), kind))) == 1
    assert list(differences(one, nan, kind)) and list(differences(nan, one, kind))
    assert bool(list(differences(nan, other, kind))) == (kind == "uint8")

"""Attention by AMX, on any x86-64 machine with AVX-512: see `test_gemm_tiles`."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.test_attention_kernel import MASKS, Call, Case, check
from tests.compiler.test_gemm_tiles import EmulatedLibrary, needs_avx512

pytestmark = needs_avx512

CASES = {
    "less than a tile": Case(queries=9, keys=7, size=8, value_size=20, batch=1),
    "an odd number of vectors": Case(queries=35, keys=49, size=40, value_size=48, batch=1),
    "causal": Case(queries=40, keys=70, size=32, value_size=16, batch=1, right=0, offset=30),
    "a window": Case(queries=20, keys=90, heads=4, batch=1, left=10, right=3, offset=40),
    "a bias for each query": Case(queries=27, keys=29, **MASKS["bias for each head"]),
    "nothing is a number": Case(queries=26, keys=21, batch=1, poison=("value", np.inf)),
}


@pytest.fixture(scope="module")
def emulated() -> EmulatedLibrary:
    return EmulatedLibrary()


@pytest.mark.parametrize("name", CASES)
def test_attention_in_tiles(emulated: EmulatedLibrary, name: str) -> None:
    case = CASES[name]
    assert Call(case, "", precision="bfloat16", library=emulated).multiplies_pairs()
    check(case, "", "bfloat16", emulated)
    assert not emulated.tiles.configured

"""Attention by AMX, on any x86-64 machine with AVX-512: see `test_gemm_tiles`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sardonyx.compiler.kernels.attention.attention_call import Attention
from sardonyx.compiler.kernels.attention.attention_spec import KEYS
from tests.compiler.steps import VARIANTS
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


LARGE = {
    f"{number} among the {operand}": Case(queries=18, keys=35, heads=1, key_heads=1, batch=1, poison=(operand, number))
    for operand in ("query", "key", "value")
    for number in (np.inf, -np.inf, np.nan)
}
# Products of parts are infinities of both signs here.
LARGE["products beyond float32"] = Case(queries=18, keys=35, heads=1, key_heads=1, batch=1, poison=("key", 3e38))

IN_PARTS = {
    **CASES,
    **LARGE,
    "several groups of keys": Case(queries=17, keys=300, heads=1, key_heads=1, size=32, value_size=40, batch=1),
    "a bias of keys": Case(queries=27, keys=29, **MASKS["bias shared by rows"]),
    "all masked": Case(queries=27, keys=29, **MASKS["all masked by -inf"]),
    "a sink": Case(queries=27, keys=29, **MASKS["sink"]),
}


@pytest.mark.parametrize("name", IN_PARTS)
@pytest.mark.parametrize("is_emulated", [True, False], ids=["emulated", "host"])
def test_attention_of_float32_in_tiles(
    emulated: EmulatedLibrary, name: str, is_emulated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (is_emulated or "amx" in VARIANTS):
        pytest.skip("this machine has no AMX")
    monkeypatch.setattr(Attention, "_suits_parts", lambda self, binder: True)
    case, variant, library = IN_PARTS[name], "" if is_emulated else "amx", emulated if is_emulated else None
    check(case, variant, library=library)
    found = Call(case, variant, library=library)
    found.run()
    assert [step.arithmetic for step in found.binder.steps] == ["f32 tiles"]


def test_more_than_a_block_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    if "amx" not in VARIANTS:
        pytest.skip("this machine has no AMX")
    monkeypatch.setattr(Attention, "_suits_parts", lambda self, binder: True)
    check(Case(queries=30, keys=KEYS + 77, size=64, value_size=64, batch=1), "amx")
    check(Case(queries=70, keys=KEYS + 77, size=32, value_size=40, batch=1, right=0, offset=KEYS), "amx")


@pytest.mark.parametrize(
    ("rows", "keys", "size", "wanted"),
    [
        (1500, 1500, 64, True),
        (256, 256, 64, True),
        (64, 1500, 64, False),
        (128, 128, 64, False),
        (600, 600, 8, False),
        (1500, 1500, 128, False),
    ],
)
def test_choice_of_tiles(
    emulated: EmulatedLibrary, rows: int, keys: int, size: int, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches = replace(emulated.target.caches, l2=2 << 20)
    monkeypatch.setattr(emulated, "target", replace(emulated.target, caches=caches))
    call = Call(Case(queries=rows, keys=keys, size=size, value_size=size, batch=1), "", library=emulated)
    attention = Attention(call.query, call.key, call.value, call.output, 1.0)
    assert attention.spec(call.binder).tiles == wanted
    call.binder.settings = replace(call.binder.settings, float32_tiles=False)
    assert not attention.spec(call.binder).tiles

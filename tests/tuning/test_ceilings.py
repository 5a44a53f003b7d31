"""The kernels behind the ceilings compute what they are said to compute, and ceilings survive their file."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sardonyx.compiler.llvm.codegen import compile_object
from sardonyx.compiler.llvm.kernels.engine.ceilings import (
    ARITHMETIC,
    CHAINS,
    TILES,
    WALKS,
    available,
    emit_products,
    emit_sum,
    emit_tiles,
    granule,
    operations_of_tiles,
)
from sardonyx.compiler.llvm.target import host_target, host_targets
from sardonyx.compiler.llvm.types import I32
from sardonyx.tuning import ceilings
from sardonyx.tuning.ceilings import Ceilings, Effort

VARIANTS = list(host_targets())


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("turns", [0, 1, 5])
@pytest.mark.parametrize("name", ["f32", "f64"])
def test_multiply_adds_of_floats(name: str, turns: int, variant: str) -> None:
    start, x, y = ceilings.product_arrays(name, host_targets()[variant])
    expected = start.astype(np.float64)
    for _ in range(turns):
        expected = expected * 0.5 + 1.0
    found = start.copy()
    ceilings.load(emit_products, name, variant)([*map(ceilings.address, (found, x, y)), turns])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["bf16", "int8"])
def test_inner_products_add_up(name: str) -> None:
    able = [variant for variant, target in host_targets().items() if available(name, target)]
    if not able:
        pytest.skip(f"this machine has no {name} products")
    for variant in able:
        start, x, y = ceilings.product_arrays(name, host_targets()[variant])
        found = start.copy()
        ceilings.load(emit_products, name, variant)([*map(ceilings.address, (found, x, y)), 3])
        np.testing.assert_array_equal(found, start + 3 * ARITHMETIC[name].products)


@pytest.mark.parametrize("name", TILES)
def test_products_of_tiles_are_instructions(name: str) -> None:
    """Four products for each turn of the loop, whose tiles hold 16 x 64 bytes."""
    target = replace(host_target(), features=(*host_target().features, "amx-tile", "amx-bf16", "amx-int8"))
    assert available(name, replace(target, has_amx=True))
    assert not available(name, replace(target, has_amx=False))
    text = emit_tiles(target, name)
    assert text.count("call void @llvm.x86.tdp") == 4
    factors = {"bf16 tiles": 32, "int8 tiles": 64}[name]
    assert operations_of_tiles(name) == 4 * 2 * 16 * 16 * factors
    if target.triple.startswith("x86_64"):
        assert len(compile_object(text, target)) > 0


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("walk", WALKS)
def test_sum_reads_every_element_once_a_turn(walk: tuple[int, int], variant: str) -> None:
    target = host_targets()[variant]
    values = np.random.default_rng(3).integers(-1000, 1000, 5 * granule(target)).astype(np.int32)
    result = np.zeros(target.lanes(I32), np.int32)
    kernel = ceilings.load(emit_sum, walk, variant)
    kernel([ceilings.address(values), values.size, 3, ceilings.address(result)])
    assert result.sum() == 3 * values.sum()


def test_every_chain_is_used() -> None:
    target = next(iter(host_targets().values()))
    start, _, _ = ceilings.product_arrays("f32", target)
    assert start.size == CHAINS * target.lanes(ARITHMETIC["f32"].accumulator)
    assert len(set(start.tolist())) == start.size


def test_calls_run_together() -> None:
    """None of them ends before all have begun: each waits for the others."""
    barrier = threading.Barrier(3, timeout=120)
    passed: list[int] = []
    own_time = threading.local()

    def clock() -> float:
        own_time.now = getattr(own_time, "now", 1.0) * 3.0
        return float(own_time.now)

    seconds, own = ceilings.together([lambda: passed.append(barrier.wait())] * 3, clock)
    assert sorted(passed) == [0, 1, 2]
    assert seconds > 0
    assert own == [6.0] * 3


def test_enough_turns_fill_the_time() -> None:
    assert ceilings.enough(lambda turns: turns * Effort.seconds / 1000) == 1000
    assert ceilings.enough(lambda turns: turns * 10.0) == 1


FOUND = Ceilings(
    {1: {"f32": 100.0}, 2: {"f32": 190.0}},
    {1: {"L2": 90.0, "L3": 50.0, "DRAM": 10.0}, 2: {"L2": 180.0, "L3": 60.0, "DRAM": 12.0}},
    l2=100,
    l3=1000,
)


def test_bandwidth_is_that_of_the_place_where_the_bytes_stay() -> None:
    assert FOUND.bandwidth(1, 50) == 90e9
    assert FOUND.bandwidth(2, 100) == 180e9
    assert FOUND.bandwidth(1, 700) == 50e9
    assert FOUND.bandwidth(2, 800) == 12e9


def test_numbers_of_threads_between_those_measured() -> None:
    wide = Ceilings({1: {"f32": 100.0}, 4: {"f32": 360.0}}, {1: FOUND.read[1], 4: FOUND.read[2]}, l2=100, l3=1000)
    assert wide.flops(1) == 100e9
    assert wide.flops(3) == 270e9
    assert wide.bandwidth(2, 800) == 12e9  # not more than four threads have
    assert wide.bandwidth(3, 700) == 60e9


def test_ceilings_survive_their_file() -> None:
    assert Ceilings.from_json(json.loads(json.dumps(asdict(FOUND)))) == FOUND
    assert Ceilings.from_json(json.loads(json.dumps(ceilings.as_section(FOUND)))) == FOUND


@pytest.mark.parametrize(
    "changed",
    [
        {"compute": None},
        {"read": {"1": {"L2": float("inf")}}},
        {"compute": {"one": {"f32": 1.0}}},
        {"compute": {"1": {"f32": -1.0}}},
        {"compute": {"1": {"f32": float("nan")}}},
        {"compute": {"1": {"f32": "fast"}}},
        {"l3": None},
        {"l3": float("inf")},
        {"l2": 10**400},
        {"l3": -1},
        {"compute": {"1": {"f32": 10**400}}},
        {"compute": {"0": {"f32": 1.0}}},
        {"read": {"1": [["L2", 1.0]]}},
    ],
)
def test_what_are_no_ceilings_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"ceilings|rate|invalid|caches"):
        Ceilings.from_json({**ceilings.as_section(FOUND), **changed})


def test_what_a_file_lacks_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "measure", lambda threads, effort: FOUND)
    ceilings.store(Ceilings({1: {"f32": 1.0}}, {1: {"L2": 1.0}}), tmp_path)
    assert ceilings.stored_ceilings([1], tmp_path).read[1] == FOUND.read[1]


def test_stored_ceilings_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []

    def measure(threads: list[int], effort: Effort) -> Ceilings:
        asked.append(threads)
        return Ceilings(
            {count: FOUND.compute[count] for count in threads}, {count: FOUND.read[count] for count in threads}
        )

    monkeypatch.setattr(ceilings, "measure", measure)
    first = ceilings.stored_ceilings([1], tmp_path)
    assert ceilings.stored_ceilings([1], tmp_path) == first
    both = ceilings.stored_ceilings([1, 2], tmp_path)
    assert asked == [[1], [2]]
    assert (both.compute, both.read) == (FOUND.compute, FOUND.read)


def test_places_are_in_order() -> None:
    sizes = ceilings.places(next(iter(host_targets().values())))
    assert 0 < sizes["L2"] < sizes["L3"] < sizes["DRAM"]

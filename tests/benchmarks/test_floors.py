"""The kernels behind the ceilings compute what they are said to compute, and ceilings survive their file."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest

from benchmarks import floors
from benchmarks.floors import CHAINS, Floors
from sardonyx.compiler.llvm.target import host_targets
from sardonyx.compiler.llvm.types import I32

VARIANTS = list(host_targets())


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("turns", [0, 1, 5])
@pytest.mark.parametrize("name", ["f32", "f64"])
def test_multiply_adds_of_floats(name: str, turns: int, variant: str) -> None:
    start, x, y = floors.product_arrays(name, host_targets()[variant])
    expected = start.astype(np.float64)
    for _ in range(turns):
        expected = expected * 0.5 + 1.0
    found = start.copy()
    floors.load(floors.emit_products, name, variant)([*map(floors.address, (found, x, y)), turns])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["bf16", "int8"])
def test_inner_products_add_up(name: str) -> None:
    able = [variant for variant, target in host_targets().items() if floors.available(name, target)]
    if not able:
        pytest.skip(f"this machine has no {name} products")
    for variant in able:
        start, x, y = floors.product_arrays(name, host_targets()[variant])
        found = start.copy()
        floors.load(floors.emit_products, name, variant)([*map(floors.address, (found, x, y)), 3])
        np.testing.assert_array_equal(found, start + 3 * floors.ARITHMETIC[name].products)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("walk", floors.WALKS)
def test_sum_reads_every_element_once_a_turn(walk: tuple[int, int], variant: str) -> None:
    target = host_targets()[variant]
    values = np.random.default_rng(3).integers(-1000, 1000, 5 * floors.granule(target)).astype(np.int32)
    result = np.zeros(target.lanes(I32), np.int32)
    kernel = floors.load(floors.emit_sum, walk, variant)
    kernel([floors.address(values), values.size, 3, floors.address(result)])
    assert result.sum() == 3 * values.sum()


def test_every_chain_is_used() -> None:
    target = next(iter(host_targets().values()))
    start, _, _ = floors.product_arrays("f32", target)
    assert start.size == CHAINS * target.lanes(floors.ARITHMETIC["f32"].accumulator)
    assert len(set(start.tolist())) == start.size


def test_calls_run_together() -> None:
    """None of them ends before all have begun: each waits for the others."""
    from threading import Barrier

    barrier = Barrier(3, timeout=30)
    passed: list[int] = []
    seconds, own = floors.together([lambda: passed.append(barrier.wait())] * 3)
    assert sorted(passed) == [0, 1, 2]
    assert 0 < max(own) <= 2 * seconds + 1


def test_enough_turns_fill_the_time() -> None:
    assert floors.enough(lambda turns: turns * floors.SECONDS / 1000) == 1000
    assert floors.enough(lambda turns: turns * 10.0) == 1


def test_ceilings_by_size_and_file() -> None:
    found = Floors({1: {"f32": 100.0}}, {1: {"L2": 90.0, "L3": 50.0, "DRAM": 10.0}}, l3=1000)
    assert found.flops(1) == 100e9
    assert found.bandwidth(1, 700) == 50e9
    assert found.bandwidth(1, 800) == 10e9
    assert Floors.from_json(json.loads(json.dumps(asdict(found)))) == found


def test_places_are_in_order() -> None:
    sizes = floors.places(next(iter(host_targets().values())))
    assert 0 < sizes["L2"] < sizes["L3"] < sizes["DRAM"]

"""Trees in native code against their meaning in NumPy, on every instruction set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sardonyx.compiler.binding import Bound, Tensor
from sardonyx.compiler.kernels.trees.ensemble import EnsembleWalk
from sardonyx.compiler.kernels.trees.operators import TreeClasses
from sardonyx.compiler.kernels.trees.packing import WALKS, keys_of, packed
from sardonyx.compiler.native.movement.copy import copy
from sardonyx.ops.ml.forest import LEAF, MODES, Forest, leaves_of
from tests.compiler.steps import VARIANTS, Memory, bind, new_binder, run_plan

Array = np.ndarray[Any, Any]

FEATURES = 5
NUMBERS = np.array([-np.inf, -1.5, -0.0, 0.0, 1e-40, 0.25, 3.0, np.inf, np.nan])
FUNCTIONS = ("SUM", "AVERAGE", "MIN", "MAX")


def grown(
    seed: int,
    trees: int,
    *,
    depth: int = 5,
    modes: tuple[str, ...] = MODES,
    targets: int = 1,
    entries: int = 1,
    dtype: Any = np.float32,
) -> Forest:
    """A random forest whose thresholds and rows meet in the same few numbers; `entries` weights at most in a leaf."""
    rng = np.random.default_rng(seed)
    mode: list[int] = []
    children: list[list[int]] = []

    def grow(left: int) -> int:
        node = len(mode)
        mode.append(LEAF)
        children.append([node, node])
        if left and rng.random() < 0.85:
            mode[node] = MODES.index(str(rng.choice(modes)))
            children[node] = [grow(left - 1), grow(left - 1)]
        return node

    roots = [grow(int(rng.integers(depth + 1))) for _ in range(trees)]
    count = len(mode)
    ends = np.nonzero(np.array(mode) == LEAF)[0]
    repeats = np.ones(len(ends), np.int64) if entries == 1 else rng.integers(0, entries + 1, len(ends))
    holders = np.repeat(ends, repeats)
    weights = rng.normal(size=len(holders)).astype(dtype)
    leaves = leaves_of(count, holders, rng.integers(0, targets, len(holders)), weights, targets)
    return Forest(
        np.array(roots, np.int64),
        np.array(mode, np.int64),
        rng.integers(0, FEATURES, count),
        rng.choice(NUMBERS, count).astype(dtype),
        rng.random(count) < 0.5,
        np.array(children, np.int64).reshape(-1),
        leaves,
    )


def rows_of(count: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(9).choice(NUMBERS, (count, FEATURES)).astype(dtype)


def scores_of(forest: Forest, data: Array, targets: int, function: str, variant: str, **how: bool) -> list[Array]:
    """Scores, and which of them met a weight where that was asked."""
    binder, memory = new_binder(variant), Memory()
    rows = binder.external(0, data.dtype, data.shape)
    memory.put(rows, data)
    walk = EnsembleWalk(forest, targets, function, np.zeros(0))
    found = walk.bind(binder, rows, np.dtype(np.float64))
    assert not memory.run(binder, **how)
    return [memory.read(tensor).copy() for tensor in (found.values, found.known) if tensor is not None]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("count", [1, 3, 37])
def test_sums_of_single_weights(variant: str, count: int) -> None:
    forest, data = grown(1, 75), rows_of(count)
    want, _ = forest.aggregated(data, 1, "SUM")
    (found,) = scores_of(forest, data, 1, "SUM", variant)
    np.testing.assert_allclose(found, want, rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("count", [2, 21])
def test_several_targets(variant: str, function: str, count: int) -> None:
    forest, data = grown(2, 9, targets=3, entries=2), rows_of(count)
    want, counts = forest.aggregated(data, 3, function)
    found, known = scores_of(forest, data, 3, function, variant, one_by_one=True)
    np.testing.assert_allclose(found, want, rtol=1e-13, atol=1e-12)
    np.testing.assert_array_equal(known, counts > 0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_each_branch_at_its_threshold(mode: str, dtype: Any) -> None:
    forest = grown(3, 30, modes=(mode,), dtype=dtype)
    data = rows_of(40, dtype)
    want, _ = forest.aggregated(data, 1, "SUM")
    (found,) = scores_of(forest, data, 1, "SUM", "")
    np.testing.assert_allclose(found, want, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("variant", VARIANTS)
def test_wide_nodes(variant: str) -> None:
    forest, data = grown(4, 20, dtype=np.float64), rows_of(19, np.float64)
    want, _ = forest.aggregated(data, 1, "SUM")
    (found,) = scores_of(forest, data, 1, "SUM", variant)
    np.testing.assert_allclose(found, want, rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize("count", [1, 20])
def test_a_deep_tree_beside_shallow_ones(count: int) -> None:
    """A chain of 40 branches: walks ask on the way whether they have ended."""
    depth = 40
    nodes = 2 * depth + 1
    children = np.repeat(np.arange(nodes), 2).reshape(-1, 2)
    mode, value = np.full(nodes, LEAF), np.zeros(nodes, np.float32)
    for level in range(depth):
        mode[2 * level], value[2 * level] = MODES.index("BRANCH_LT"), level
        children[2 * level] = [2 * level + 2, 2 * level + 1]
    ends = np.nonzero(mode == LEAF)[0]
    leaves = leaves_of(nodes, ends, np.zeros(len(ends), np.int64), np.arange(len(ends), dtype=np.float32), 1)
    roots = np.array([0, 2 * depth - 4, 2 * depth])
    forest = Forest(roots, mode, np.zeros(nodes, np.int64), value, np.zeros(nodes, bool), children.reshape(-1), leaves)
    data = np.linspace(-3, depth + 3, count * FEATURES, dtype=np.float32).reshape(count, FEATURES)
    want, _ = forest.aggregated(data, 1, "SUM")
    (found,) = scores_of(forest, data, 1, "SUM", "")
    np.testing.assert_array_equal(found, want)


def test_offsets_that_need_more_room_take_the_wide_form() -> None:
    children = np.repeat(np.arange(70001), 2).reshape(-1, 2)
    mode, inner = np.full(70001, LEAF), 35000
    mode[:inner] = MODES.index("BRANCH_LEQ")
    children[:inner] = np.stack([2 * np.arange(inner) + 1, 2 * np.arange(inner) + 2], axis=1)
    ends = np.arange(inner, 70001)
    rng = np.random.default_rng(6)
    leaves = leaves_of(70001, ends, np.zeros(len(ends), np.int64), rng.normal(size=len(ends)).astype(np.float32), 1)
    forest = Forest(
        np.zeros(1, np.int64),
        mode,
        rng.integers(0, FEATURES, 70001),
        rng.normal(size=70001).astype(np.float32),
        np.zeros(70001, bool),
        children.reshape(-1),
        leaves,
    )
    data = rng.normal(size=(50, FEATURES)).astype(np.float32)
    (found,) = scores_of(forest, data, 1, "SUM", "")
    np.testing.assert_array_equal(found, forest.aggregated(data, 1, "SUM")[0])
    assert packed(forest, wide=False, entries=False).wide


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("count", [0, 1, 3, 16, 37, 300])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_leaves_that_name_a_class_each(count: int, dtype: Any, variant: str) -> None:
    forest, data = grown(21, 1, depth=7, dtype=dtype), rows_of(count, dtype)
    ends = np.flatnonzero(forest.mode == LEAF)
    classes = len(ends) + 4
    named = np.random.default_rng(2).permutation(classes)[: len(ends)]
    forest = replace(forest, leaves=leaves_of(len(forest.mode), ends, named, np.full(len(ends), 0.1), classes))
    for scores in (True, False):
        parameters = {
            "forest": lambda: forest, "base": np.zeros(0), "labels": 3 * np.arange(classes), "transform": "NONE",
            "positive": True, "scores": scores,
        }  # fmt: skip
        binder, memory, (labels, found) = bind(TreeClasses(parameters), [data], variant)
        assert not memory.run(binder, one_by_one=True)
        assert labels is not None
        want, _ = forest.aggregated(data, classes, "SUM")
        np.testing.assert_array_equal(memory.read(labels), 3 * want.argmax(axis=1) if count else [])
        assert (found is not None) == scores
        if found is not None:
            np.testing.assert_array_equal(memory.read(found), want.astype(np.float32))


def test_the_same_bits_for_any_threads_and_batch() -> None:
    forest, data = grown(7, 150, modes=("BRANCH_LEQ",)), rows_of(300)

    def bound(rows: Array) -> Bound:
        binder = new_binder()
        walk = EnsembleWalk(forest, 1, "SUM", np.array([0.5]))
        given = binder.external(0, rows.dtype, rows.shape)
        values: Tensor = walk.bind(binder, given, np.dtype(np.float64)).values
        return binder.finish([values], 1, copy)

    whole = bound(data)
    (want,) = run_plan(whole, [data])
    for threads in (2, 3):
        np.testing.assert_array_equal(run_plan(whole, [data], threads)[0], want)
    for place in (0, 77):
        row = np.ascontiguousarray(data[place : place + 1])
        for threads in (1, 2):
            np.testing.assert_array_equal(run_plan(bound(row), [row], threads)[0], want[place : place + 1])


def test_keys_keep_the_order() -> None:
    numbers = np.sort(NUMBERS[~np.isnan(NUMBERS)]).astype(np.float32)
    keys = keys_of(numbers).astype(np.int64)
    assert ((np.diff(keys) > 0) == (np.diff(numbers) > 0)).all()
    assert keys_of(np.array([np.nan], np.float32))[0] == 2**32 - 1 > keys[-1] + 1


def test_neighbours_lie_within_a_line() -> None:
    forest = packed(grown(8, 40, modes=("BRANCH_LT",)), wide=False, entries=False)
    place = np.arange(len(forest.nodes))
    branches = forest.nodes["feature"] != len(forest.columns) * WALKS
    first = (place + forest.nodes["step"])[branches]
    assert (first // 8 == (first + 1) // 8).all()
    assert (np.diff(forest.roots[: forest.trees, 1]) >= 0).all()


def test_a_circle_and_missing_features_are_refused() -> None:
    forest = grown(5, 3, depth=3)
    circle = forest.children.copy()
    inner = np.nonzero(forest.mode[forest.roots] != LEAF)[0]
    root = int(forest.roots[inner[0]])
    circle[2 * root] = root
    broken = Forest(forest.roots, forest.mode, forest.feature, forest.value, forest.missing, circle, forest.leaves)
    with pytest.raises(ValueError, match="circle"):
        packed(broken, wide=False, entries=False)
    binder = new_binder()
    rows = binder.external(0, np.dtype(np.float32), (2, int(forest.feature.max())))
    with pytest.raises(ValueError, match="the trees read feature"):
        EnsembleWalk(forest, 1, "SUM", np.zeros(0)).bind(binder, rows, np.dtype(np.float32))

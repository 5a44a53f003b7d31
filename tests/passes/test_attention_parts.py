"""Attention whose queries, keys and values lie side by side in one projection, as vision transformers write it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.passes.attention_graphs import HEADS, SIZE, WIDTH, Graph
from tests.passes.models import operators, rewritten
from tests.passes.test_attention_rules import attributes, declined, fused

Parts = Callable[[Graph, str], list[str]]


def picked(g: Graph, joint: str) -> list[str]:
    """Parts transposed all at once, then taken by Gather."""
    every = g("Transpose", parts(g, joint), perm=[2, 0, 3, 1, 4])
    return [g("Gather", every, g.constant(index, np.int64), axis=0) for index in range(3)]


def unbound(g: Graph, joint: str) -> list[str]:
    """The same as torch's unbind."""
    every = g("Transpose", parts(g, joint), perm=[2, 0, 3, 1, 4])
    split = g("Split", every, count=3, axis=0)
    return [g("Squeeze", part, g.constant([0], np.int64)) for part in split]


def unbound_first(g: Graph, joint: str) -> list[str]:
    """Parts taken before each is transposed."""
    split = g("Split", parts(g, joint), count=3, axis=-3)
    return [g("Transpose", g("Squeeze", part, g.constant([2], np.int64)), perm=[0, 2, 1, 3]) for part in split]


def parts(g: Graph, joint: str, heads: int = HEADS) -> str:
    return str(g("Reshape", joint, g.sizes(joint, "b", "s", 3, heads, SIZE)))


def attention(taken: Parts, mask: str | None = None) -> Graph:
    g = Graph()
    x = g.hidden()
    query, keys, values = taken(g, g.projected(x, 3 * WIDTH))
    scores = g("MatMul", g.scaled(query, 0.5), g("Transpose", keys, perm=[0, 1, 3, 2]))
    if mask is not None:
        scores = g("Add", scores, mask)
    return g.finished(g.attended(scores, values, x), x)


@pytest.mark.parametrize("taken", [picked, unbound, unbound_first])
def test_parts_of_one_projection(taken: Parts) -> None:
    (node,) = fused(attention(taken))
    assert attributes(node)["num_heads"] == HEADS
    assert attributes(node)["scale"] == pytest.approx(0.5)


def test_nothing_but_slices_is_left_between_projection_and_attention() -> None:
    after, _ = rewritten(attention(picked).model())
    found = set(operators(after))
    assert "Slice" in found
    assert not {"Gather", "Transpose", "Softmax"} & found


def test_slices_before_opset_10_have_attributes() -> None:
    g = Graph(opset=9)
    x = g.input("x", [2, 5, WIDTH], g.normal(2, 5, WIDTH))
    split = g("Reshape", g.projected(x, 3 * WIDTH), g.constant([2, 5, 3, HEADS, SIZE], np.int64))
    every = g("Transpose", split, perm=[2, 0, 3, 1, 4])
    query, keys, values = (g("Gather", every, g.constant(index, np.int64), axis=0) for index in range(3))
    weights = g("Softmax", g("MatMul", query, g("Transpose", keys, perm=[0, 1, 3, 2])), axis=3)
    merged = g("Transpose", g("MatMul", weights, values), perm=[0, 2, 1, 3])
    fused(g.finished(g("Reshape", merged, g.constant([2, 5, WIDTH], np.int64)), x))


def test_parts_in_another_order_of_axes_are_left_alone() -> None:
    def swapped(g: Graph, joint: str) -> list[str]:
        every = g("Transpose", parts(g, joint), perm=[2, 1, 3, 0, 4])
        return [g("Gather", every, g.constant(index, np.int64), axis=0) for index in range(3)]

    g = Graph()
    x = g.input("x", [5, 5, WIDTH], g.normal(5, 5, WIDTH))
    query, keys, values = swapped(g, g.projected(x, 3 * WIDTH))
    scores = g("MatMul", g.scaled(query, 0.5), g("Transpose", keys, perm=[0, 1, 3, 2]))
    declined(g.finished(g.attended(scores, values, x), x), "the query is not split into heads")


def test_parts_taken_in_another_order_are_found_where_they_lie() -> None:
    def reversed_parts(g: Graph, joint: str) -> list[str]:
        return picked(g, joint)[::-1]

    fused(attention(reversed_parts))


def test_a_negative_index_counts_from_the_end() -> None:
    def counted_back(g: Graph, joint: str) -> list[str]:
        every = g("Transpose", parts(g, joint), perm=[2, 0, 3, 1, 4])
        return [g("Gather", every, g.constant(index, np.int64), axis=-5) for index in (-3, -2, -1)]

    fused(attention(counted_back))


# Windows of images

WINDOWS, LENGTH = 4, 5


def windowed(count: int | str, mask: tuple[int, ...], bias: tuple[int, ...] | None = None) -> Graph:
    """Attention in windows of images, as in shifted windows: `mask` is added for each window, `bias` before it."""
    g = Graph()
    x = g.input("x", [count, LENGTH, WIDTH], g.normal(2 * WINDOWS, LENGTH, WIDTH))
    query, keys, values = picked(g, g.projected(x, 3 * WIDTH))
    scores = g("MatMul", g.scaled(query, 0.5), g("Transpose", keys, perm=[0, 1, 3, 2]))
    if bias is not None:
        scores = g("Add", scores, g.constant(g.normal(*bias)))
    apart = g("Reshape", scores, g.constant([-1, WINDOWS, HEADS, LENGTH, LENGTH], np.int64))
    hidden = np.where(g.rng.random(mask) < 0.3, -100, 0).astype(np.float32)
    added = g("Add", apart, g.constant(hidden))
    together = g("Reshape", added, g.constant([-1, HEADS, LENGTH, LENGTH], np.int64))
    merged = g("Transpose", g("MatMul", g("Softmax", together, axis=-1), values), perm=[0, 2, 1, 3])
    last = g.projected(g("Reshape", merged, g.constant([-1, LENGTH, WIDTH], np.int64)))
    g.output(last, [count, LENGTH, WIDTH])
    return g


@pytest.mark.parametrize("count", ["n", 2 * WINDOWS])
@pytest.mark.parametrize(
    "mask", [(1, WINDOWS, 1, LENGTH, LENGTH), (WINDOWS, 1, LENGTH, LENGTH), (1, 1, LENGTH, LENGTH)]
)
@pytest.mark.parametrize("bias", [None, (1, HEADS, LENGTH, LENGTH), (LENGTH, LENGTH)])
def test_a_mask_for_each_window(count: int | str, mask: tuple[int, ...], bias: tuple[int, ...] | None) -> None:
    (node,) = fused(windowed(count, mask, bias))
    assert node.input[5]


def test_one_image_needs_no_copy_of_its_mask() -> None:
    g = Graph()
    x = g.input("x", [WINDOWS, LENGTH, WIDTH], g.normal(WINDOWS, LENGTH, WIDTH))
    query, keys, values = picked(g, g.projected(x, 3 * WIDTH))
    scores = g("MatMul", query, g("Transpose", keys, perm=[0, 1, 3, 2]))
    apart = g("Reshape", scores, g.constant([1, WINDOWS, HEADS, LENGTH, LENGTH], np.int64))
    added = g("Add", apart, g.constant(g.normal(1, WINDOWS, 1, LENGTH, LENGTH)))
    together = g("Reshape", added, g.constant([WINDOWS, HEADS, LENGTH, LENGTH], np.int64))
    merged = g("Transpose", g("MatMul", g("Softmax", together, axis=-1), values), perm=[0, 2, 1, 3])
    result = g.projected(g("Reshape", merged, g.constant([-1, LENGTH, WIDTH], np.int64)))
    g.output(result, [WINDOWS, LENGTH, WIDTH])
    fused(g)
    assert "Expand" not in operators(rewritten(g.model())[0])


def test_a_mask_for_each_image_is_left_alone() -> None:
    declined(windowed(2 * WINDOWS, (2, WINDOWS, 1, LENGTH, LENGTH)), "is not known to broadcast")

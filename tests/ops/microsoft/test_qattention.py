"""Attention and embeddings of quantised BERT models against onnxruntime, attention in real numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.api.explaining.explanation import explain
from tests.ops.microsoft import peer
from tests.ops.microsoft.quantized import random, scale

BATCH, LENGTH, HEADS, SIZE, WIDTH = 2, 5, 2, 4, 6


def inputs(weight_type: type, per_column: bool, mask: np.ndarray | None, past: int | None) -> list[Any]:
    generator = np.random.default_rng(1)
    columns = 3 * HEADS * SIZE
    shape = (columns,) if per_column else (1,)
    state = None
    if past is not None:
        state = generator.standard_normal((2, BATCH, HEADS, past, SIZE)).astype(np.float32)
    return [
        random(generator, np.uint8, BATCH, LENGTH, WIDTH),
        random(generator, weight_type, WIDTH, columns),
        generator.standard_normal(columns).astype(np.float32),
        scale(0.02),
        (generator.random(shape) * 0.01 + 0.005).astype(np.float32),
        mask,
        np.array(120, np.uint8),
        np.asarray(generator.integers(0, 20, shape if per_column else ())).astype(weight_type),
        state,
    ]


def compare(given: list[Any], outputs: list[int], **attributes: int) -> None:
    """Against onnxruntime's Attention of the real numbers that the bytes stand for: its sums of bytes may saturate."""
    codes, weights, bias, x_scale, w_scale, mask, x_zero, w_zero, state = given
    real = ((codes.astype(np.float64) - x_zero) * x_scale).astype(np.float32)
    w = ((weights.astype(np.float64) - w_zero) * w_scale).astype(np.float32)
    plain = {name: value for name, value in attributes.items() if name != "do_rotary"}
    inputs_ = [real, w, bias, mask, state]
    model = peer.one_node("Attention", inputs_, outputs, {"num_heads": HEADS, **plain})
    exact = peer.onnxruntime(model, peer.feeds(model, inputs_))
    found = peer.run("QAttention", given, outputs, {"num_heads": HEADS, **attributes}, constants=[1, 2, 7])
    peer.check(found, exact, rtol=1e-4, atol=1e-5)


def test_rotation_is_left_to_other_operators() -> None:
    compare(inputs(np.uint8, False, None, None), [1], do_rotary=1)


@pytest.mark.parametrize("weight_type", [np.uint8, np.int8])
@pytest.mark.parametrize("per_column", [True, False])
@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("past", [None, 3])
def test_qattention(weight_type: type, per_column: bool, unidirectional: int, past: int | None) -> None:
    given = inputs(weight_type, per_column, None, past)
    compare(given, [1, 1], unidirectional=unidirectional)


@pytest.mark.parametrize(
    "mask",
    [
        np.array([3, 5], np.int32),
        np.array([4, 5, 1, 0], np.int32),
        np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32),
    ],
)
def test_masks(mask: np.ndarray) -> None:
    compare(inputs(np.int8, False, mask, None), [1])


def test_a_width_that_heads_do_not_divide_is_named() -> None:
    with pytest.raises(Exception, match="no multiple of 3 x 5 heads"):
        peer.run("QAttention", inputs(np.int8, False, None, None), [1], {"num_heads": 5}, constants=[1])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("mask", [True, False])
def test_embeddings(dtype: type, segments: bool, mask: bool) -> None:
    generator = np.random.default_rng(2)
    zero = [np.array(value, dtype) for value in (3, 5, 7, 9, 11)]
    steps = [scale(value) for value in (0.01, 0.02, 0.03, 0.015, 0.025)]
    ids = generator.integers(0, 20, (BATCH, LENGTH)).astype(np.int32)
    given = [
        ids,
        (ids % 2).astype(np.int32) if segments else None,
        random(generator, dtype, 20, 8),
        random(generator, dtype, 10, 8),
        random(generator, dtype, 2, 8) if segments else None,
        random(generator, dtype, 8),
        random(generator, dtype, 8),
        (generator.random((BATCH, LENGTH)) < 0.6).astype(np.int32) if mask else None,
        *[step if segments or index != 2 else None for index, step in enumerate(steps)],
        *[value if segments or index != 2 else None for index, value in enumerate(zero)],
    ]
    peer.compare("QEmbedLayerNormalization", given, [1, 6], {"epsilon": 1e-5}, symbolic=False)


def embeddings() -> list[np.ndarray]:
    """The inputs of QEmbedLayerNormalization for 2 sequences of 5 of 20 words, 8 wide."""
    generator = np.random.default_rng(3)
    ids = generator.integers(0, 20, (BATCH, LENGTH)).astype(np.int32)
    tables = [random(generator, np.uint8, rows, 8) for rows in (20, 10, 2)]
    others = [random(generator, np.uint8, 8), random(generator, np.uint8, 8), np.ones((BATCH, LENGTH), np.int32)]
    return [ids, ids % 2, *tables, *others, *[scale(0.02)] * 5, *[np.array(128, np.uint8)] * 5]


def test_embeddings_are_computed_by_kernels() -> None:
    given = embeddings()
    model = peer.one_node("QEmbedLayerNormalization", given, [1, 6], {"epsilon": 1e-5}, symbolic=False)
    session = sardonyx.InferenceSession(model.SerializeToString())
    assert {row.kind for row in explain(session, peer.feeds(model, given)).rows} == {"native"}


@pytest.mark.parametrize(("place", "name"), [(0, "input_ids"), (1, "segment_ids")])
def test_an_id_outside_of_a_table_is_named(place: int, name: str) -> None:
    given = embeddings()
    given[place] = np.full_like(given[place], 20)
    with pytest.raises(Exception, match=f"'{name}' holds an id outside of its table"):
        peer.run("QEmbedLayerNormalization", given, [1, 6])


def test_more_places_than_the_table_of_positions_has() -> None:
    given = embeddings()
    given[3] = given[3][: LENGTH - 1]
    with pytest.raises(Exception, match="'positions' holds an id outside of its table of 4 rows"):
        peer.run("QEmbedLayerNormalization", given, [1, 6])

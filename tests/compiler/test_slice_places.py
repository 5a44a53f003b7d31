"""Coordinates of slices: told from others, and neither computed nor kept element by element."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import sardonyx as ort
from sardonyx.compiler.box import Box, find_box
from sardonyx.runtime.native.native_segment import NativeSegment
from tests.compiler.boxes import coordinates_of
from tests.compiler.small_models import SMALL_MODELS

Array = np.ndarray[Any, Any]


def _find(coordinates: Array) -> Box | None:
    return find_box([coordinates[..., axis] for axis in range(coordinates.shape[-1])])


@pytest.mark.parametrize("sizes", [(4,), (2, 3), (1, 5, 2), (3, 1, 1)])
@pytest.mark.parametrize("begin", [8, -7])
def test_boxes_are_found(sizes: tuple[int, ...], begin: int) -> None:
    for along in itertools.permutations(range(len(sizes))):
        steps = [(1, -2, 3)[place] if size > 1 else 0 for place, size in enumerate(sizes)]
        axes = tuple(axis if size > 1 else 0 for axis, size in zip(along, sizes, strict=True))
        box = Box(sizes, axes, tuple(steps), (begin,) * (len(sizes) + 1))
        assert _find(coordinates_of(box)) == box
        assert Box.of(box.numbers) == box


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_every_element_counts(axis: int) -> None:
    box = Box((3, 4, 5), (0, 1, 2), (1, 2, 1), (0, 1, 2))
    for place in ((0, 0, 1), (1, 1, 1), (2, 3, 4)):
        coordinates = coordinates_of(box)
        coordinates[(*place, axis)] += 1
        assert _find(coordinates) is None


def test_places_that_come_twice_are_no_box() -> None:
    assert _find(np.zeros((3, 1), np.int64)) is None
    assert _find(np.stack([np.arange(4), np.zeros(4, np.int64)], -1)) is not None
    assert _find(np.broadcast_to(np.arange(4)[:, None], (2, 4, 1))) is None
    assert _find(np.broadcast_to(np.arange(4)[:, None], (4, 2))) is None
    assert _find(np.zeros((0, 2), np.int64)) is None


@pytest.mark.parametrize("places", [[-1, 0], [0, -1], [-3, -1, 1]])
def test_places_from_the_end_to_the_beginning_are_no_box(places: list[int]) -> None:
    assert _find(np.array(places)[:, None]) is None


@pytest.mark.parametrize("optimized", [True, False])
def test_plans_hold_no_coordinates(optimized: bool) -> None:
    small = SMALL_MODELS["slices"]
    options = ort.SessionOptions()
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(small.model.SerializeToString(), options)
    for count in (2, 3, 5, 2, 400):
        feeds = small.inputs({"n": count})
        (expected,) = ReferenceEvaluator(small.model).run(None, feeds)
        np.testing.assert_array_equal(session.run(None, feeds)[0], expected)
    (step,) = session._session().plan.steps
    assert isinstance(step.call, NativeSegment)
    for ready in step.call._plans.values():
        assert sum(one.nbytes for one in ready.plan.owners if isinstance(one, np.ndarray)) < 40_000


def test_coordinates_of_the_model_that_are_a_box() -> None:
    coordinates = coordinates_of(Box((2, 3), (0, 1), (1, 2), (1, 0)))
    session, model = _with_constant(coordinates)
    assert "scatter" not in _kernels(session)
    _compare(session, model)


def test_coordinates_of_the_model_that_are_none() -> None:
    coordinates = coordinates_of(Box((2, 3), (0, 1), (1, 2), (1, 0)))
    coordinates[1, 2] = 0
    session, model = _with_constant(coordinates)
    assert "scatter" in _kernels(session)
    _compare(session, model)


def test_coordinates_of_the_model_that_pass_the_end() -> None:
    coordinates = coordinates_of(Box((2, 3), (0, 1), (1, 1), (-1, 1)))
    session, model = _with_constant(coordinates)
    _compare(session, model)


def _with_constant(coordinates: Array) -> tuple[ort.InferenceSession, onnx.ModelProto]:
    """A model that writes 2 x 3 numbers to these places of 4 x 6."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]>'
        "agraph (float[4, 6] x, float[2, 3] y) => (float[4, 6] z) { h = Relu(x) z = ScatterND(h, at, y) }"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(coordinates, "at"))
    return ort.InferenceSession(model.SerializeToString()), model


def _kernels(session: ort.InferenceSession) -> set[str]:
    (step,) = session._session().plan.steps
    assert isinstance(step.call, NativeSegment)
    ready = step.call.plan_for(((4, 6), (2, 3)))
    return {one.form.kernel for one in ready.source.bound.steps}


def _compare(session: ort.InferenceSession, model: onnx.ModelProto) -> None:
    rng = np.random.default_rng(5)
    feeds = {"x": rng.random((4, 6), np.float32), "y": rng.random((2, 3), np.float32)}
    np.testing.assert_array_equal(session.run(None, feeds)[0], ReferenceEvaluator(model).run(None, feeds)[0])

"""Denormal weights become zero where products alone read them and others outweigh them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from sardonyx.passes.base import Level, PassReport
from sardonyx.passes.denormal_weights import NAME
from tests.passes.models import Array, assert_same_meaning, make_model, rewritten

RNG = np.random.default_rng(5)
X = RNG.standard_normal((2, 3)).astype(np.float32)


def mixed(*shape: int, small: float = 1e-40, dtype: type = np.float32) -> Array:
    """Weights, every third of which is small."""
    weights = RNG.standard_normal(shape).astype(dtype)
    weights.reshape(-1)[::3] = small
    return weights


def product(weights: Array, *others: onnx.NodeProto, outputs: tuple[str, ...] = ("y",)) -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), *others]
    return make_model(nodes, {"x": [2, 3]}, list(outputs), {"w": weights})


def outcome(model: onnx.ModelProto, level: Level = Level.ALL) -> tuple[Array, PassReport | None]:
    """The weights behind the pipeline, and what the pass reports."""
    after, reports = rewritten(model, level)
    weights = next(one for one in after.graph.initializer if one.name == "w")
    return numpy_helper.to_array(weights), reports.get(NAME)


def denormal(weights: Array) -> Array:
    return (weights != 0) & (np.abs(weights) < np.finfo(weights.dtype).tiny)


def test_denormal_weights_become_zero() -> None:
    weights = mixed(3, 4)
    model = product(weights)
    found, report = outcome(model)
    np.testing.assert_array_equal(found, np.where(denormal(weights), 0, weights))
    assert report is not None
    assert report.changes == 1
    after, _ = rewritten(model)
    assert_same_meaning(model, after, {"x": X})
    assert denormal(outcome(model, Level.BASIC)[0]).any()


@pytest.mark.parametrize(
    ("operator", "shapes", "attributes"),
    [
        ("Conv", ([1, 2, 8, 8], [3, 2, 3, 3]), {}),
        ("ConvTranspose", ([1, 2, 8, 8], [2, 3, 3, 3]), {}),
        ("Gemm", ([4, 5], [6, 5]), {"transB": 1}),
        ("GRU", ([4, 1, 5], [1, 12, 5], [1, 12, 4]), {"hidden_size": 4}),
    ],
)
def test_operators_whose_weights_become_zero(operator: str, shapes: tuple[list[int], ...], attributes: dict) -> None:
    names = ["x", "w", "r"][: len(shapes)]
    constants = {name: mixed(*shape) for name, shape in zip(names[1:], shapes[1:], strict=True)}
    model = make_model([helper.make_node(operator, names, ["y"], **attributes)], {"x": shapes[0]}, ["y"], constants)
    after, reports = rewritten(model)
    assert reports[NAME].changes == len(constants)
    assert not any(denormal(numpy_helper.to_array(one)).any() for one in after.graph.initializer)


def test_doubles_have_smaller_denormal_numbers() -> None:
    for small, changes in ((1e-40, 0), (1e-310, 1)):
        model = make_model(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            {"x": [2, 3]},
            ["y"],
            {"w": mixed(3, 4, small=small, dtype=np.float64)},
            dtype=onnx.TensorProto.DOUBLE,
        )
        assert rewritten(model)[1][NAME].changes == changes


@pytest.mark.parametrize(("rows", "columns"), [(3, 64 * 1024), (512, 768)])
def test_denormal_columns_of_large_weights_are_found(rows: int, columns: int) -> None:
    weights = RNG.standard_normal((rows, columns)).astype(np.float32)
    weights[:, columns // 3 : columns // 3 + columns // 50] = 1e-40
    model = make_model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [2, rows]}, ["y"], {"w": weights})
    found, _ = outcome(model)
    assert not denormal(found).any()


def test_weights_that_are_all_as_small_stay() -> None:
    found, report = outcome(product(np.full((3, 4), 1e-40, np.float32)))
    assert denormal(found).all()
    assert report is not None
    assert report.changes == 0
    assert "matter beside the others" in report.declined[0]


def test_what_others_read_as_well_stays() -> None:
    weights = mixed(3, 4)
    shared = product(weights, helper.make_node("Neg", ["w"], ["z"]), outputs=("y", "z"))
    folded_apart, _ = rewritten(shared)
    assert_same_meaning(shared, folded_apart, {"x": X})
    added = product(mixed(3, 3), helper.make_node("Add", ["x", "w"], ["z"]), outputs=("y", "z"))
    added.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 3
    assert denormal(outcome(added)[0]).any()


def test_what_callers_can_override_stays() -> None:
    model = product(mixed(3, 4))
    model.graph.input.append(helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [3, 4]))
    assert denormal(outcome(model)[0]).any()

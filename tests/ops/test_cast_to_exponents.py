"""Casts to float8e8m0, a bare power of two: ends of the range, rounding, saturation, at every level."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.ops.levels import assert_refused, assert_results
from tests.ops.one_node import model_of

POWER = np.dtype(ml_dtypes.float8_e8m0fnu)
INF, NAN = np.inf, np.nan
LEAST, LARGEST = 2.0**-127, 2.0**127
# A number, and what it becomes by `up`, `down` and `nearest`.
WITHIN = [
    (LEAST, LEAST, LEAST, LEAST),
    (1.25 * LEAST, 2 * LEAST, LEAST, LEAST),
    (1.5 * LEAST, 2 * LEAST, LEAST, 2 * LEAST),
    (2 * LEAST, 2 * LEAST, 2 * LEAST, 2 * LEAST),
    (1.0, 1, 1, 1),
    (1 + 2.0**-23, 2, 1, 1),
    (3.0, 4, 2, 4),
    (3 - 2.0**-22, 4, 2, 2),
    (LARGEST, LARGEST, LARGEST, LARGEST),
    (NAN, NAN, NAN, NAN),
]
# What lies beyond the type, and the end that it becomes with saturation; without, NaN.
BEYOND = [
    (0.0, LEAST),
    (-0.0, LEAST),
    (-1.0, LEAST),
    (-INF, LEAST),
    (2.0**-149, LEAST),
    (2.0**-130, LEAST),
    (1.75 * 2.0**-128, LEAST),
    (1.25 * LARGEST, LARGEST),
    (1.75 * LARGEST, LARGEST),
    (INF, LARGEST),
]


def pairs(saturate: int, mode: str) -> tuple[np.ndarray, np.ndarray]:
    column = ("up", "down", "nearest").index(mode) + 1
    found = [(row[0], row[column]) for row in WITHIN] + [(x, end if saturate else NAN) for x, end in BEYOND]
    x, y = np.array(found, np.float32).T
    return np.ascontiguousarray(x), np.ascontiguousarray(y)


def cast_model(x: np.ndarray, operator: str, opset: int = 25, **attributes: Any) -> onnx.ModelProto:
    inputs = ["x"]
    nodes = [helper.make_node("Cast", ["power"], ["y"], to=TensorProto.FLOAT)]
    if operator == "CastLike":
        like = helper.make_tensor("value", TensorProto.FLOAT8E8M0, [1], [1.0])
        nodes.insert(0, helper.make_node("Constant", [], ["like"], value=like))
        inputs.append("like")
    else:
        attributes["to"] = TensorProto.FLOAT8E8M0
    nodes.insert(-1, helper.make_node(operator, inputs, ["power"], **attributes))
    model = model_of(nodes, {"x": x}, ["y"], opset=opset, shapes={"x": ["n"]})
    model.ir_version = 12
    return model


@pytest.mark.parametrize("operator", ["Cast", "CastLike"])
@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_the_ends_and_the_middle(operator: str, saturate: int, mode: str) -> None:
    x, y = pairs(saturate, mode)
    assert_results(cast_model(x, operator, saturate=saturate, round_mode=mode), [{"x": x}], [[y]], 0)


@pytest.mark.parametrize("operator", ["Cast", "CastLike"])
@pytest.mark.parametrize("opset", [24, 25])
def test_saturation_and_rounding_up_are_the_default(operator: str, opset: int) -> None:
    x, y = pairs(1, "up")
    assert_results(cast_model(x, operator, opset), [{"x": x}], [[y]], 0)


@pytest.mark.parametrize("kind", ["float16", "float64", "int32", "uint8", "bool"])
def test_other_types_go_by_float32(kind: str) -> None:
    x = np.array([0, 1, 3, 5, 100, 2**24 + 1, 1 + 2.0**-40])
    with np.errstate(all="ignore"):
        given = x.astype(kind) if kind != "uint8" else (x % 256).astype(kind)
        single = given.astype(np.float32)
    top = np.ceil(np.log2(np.where(single > 0, single, LEAST)))
    wanted = np.where(single > LARGEST, LARGEST, 2.0**top).astype(np.float32)
    assert_results(cast_model(given, "Cast"), [{"x": given}], [[wanted]], 0)


def test_text_is_read_first() -> None:
    x = np.array(["3", "INF", "0", "NaN"], object)
    assert_results(cast_model(x, "Cast"), [{"x": x}], [[np.array([4, LARGEST, LEAST, NAN], np.float32)]], 0)


def test_what_the_type_holds_stays_in_every_mode() -> None:
    numbers = np.arange(255, dtype=np.uint8).view(POWER).astype(np.float32)
    for mode in ("up", "down", "nearest"):
        for saturate in (0, 1):
            model = cast_model(numbers, "Cast", saturate=saturate, round_mode=mode)
            assert_results(model, [{"x": numbers}], [[numbers]], 0)


def test_an_unknown_rounding_is_refused() -> None:
    x = np.ones(2, np.float32)
    assert_refused(cast_model(x, "Cast", round_mode="even"), {"x": x}, "'round_mode' must be up, down or nearest")


def test_a_constant_is_cast_as_an_input_is() -> None:
    x, y = pairs(0, "nearest")
    model = cast_model(x, "Cast", saturate=0, round_mode="nearest")
    model.graph.initializer.append(onnx.numpy_helper.from_array(x, "x"))
    del model.graph.input[:]
    assert_results(model, [{}], [[y]], 0)


@pytest.mark.parametrize("block", [0, 2])
def test_powers_are_scales(block: int) -> None:
    rng = np.random.default_rng(3)
    x = (5 * rng.standard_normal((4, 6))).astype(np.float32)
    powers = np.array([[1, 2, 0.5, 4, 0.25, 1], [2, 1, 8, 0.5, 1, 4]], np.float32)[: 2 if block else 1]
    scale = np.repeat(powers, 4 // len(powers), 0)
    feeds = {"x": x, "s": powers if block else powers[0]}
    attributes = {"axis": 0, "block_size": block} if block else {"axis": 1}
    nodes = [
        helper.make_node("Cast", ["s"], ["power"], to=TensorProto.FLOAT8E8M0),
        helper.make_node("QuantizeLinear", ["x", "power"], ["q"], output_dtype=TensorProto.INT8, **attributes),
        helper.make_node("DequantizeLinear", ["q", "power"], ["y"], output_dtype=TensorProto.FLOAT, **attributes),
    ]
    q = np.clip(np.rint(x.astype(np.float64) / scale), -128, 127).astype(np.int8)
    model = model_of(nodes, feeds, ["q", "y"], opset=25)
    model.ir_version = 12
    assert_results(model, [feeds], [[q, (q * scale).astype(np.float32)]], 0)

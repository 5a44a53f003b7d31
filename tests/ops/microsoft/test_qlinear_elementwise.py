"""Elementwise operators on quantised tensors against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.microsoft import peer
from tests.ops.microsoft.quantized import random, scale, steps

TYPES = [np.uint8, np.int8]
SHAPES = [((2, 3, 4), (2, 3, 4)), ((2, 3, 40), (3, 1)), ((7,), ()), ((0, 4), (1, 4)), ((), ())]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
def test_binary(op_type: str, shapes: Any, dtype: type) -> None:
    generator = np.random.default_rng(1)
    a, b = (random(generator, dtype, *shape) for shape in shapes)
    zero = [np.array(value, dtype) for value in (12, 101, 55)]
    steps(op_type, [a, scale(0.031), zero[0], b, scale(0.017), zero[1], scale(0.05), zero[2]])


@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
def test_every_pair_of_values(op_type: str) -> None:
    a = np.arange(256, dtype=np.uint8)
    zero = np.array(128, np.uint8)
    steps(op_type, [a.reshape(256, 1), scale(0.011), zero, a, scale(0.007), zero, scale(0.019), zero])


@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
def test_absent_zero_points_of_a_pair_are_zero(op_type: str) -> None:
    # onnxruntime refuses absent zero points here, so the node is compared with itself.
    x, zero = np.arange(-128, 128).astype(np.int8), np.array(0, np.int8)
    (absent,) = peer.run(op_type, [x, scale(0.05), None, x[::-1], scale(0.03), None, scale(0.1)])
    (given,) = peer.run(op_type, [x, scale(0.05), zero, x[::-1], scale(0.03), zero, scale(0.1), zero])
    np.testing.assert_array_equal(absent, given)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("op_type", "attributes"), [("QLinearSigmoid", {}), ("QLinearLeakyRelu", {}), ("QLinearLeakyRelu", {"alpha": 0.3})]
)
def test_table(op_type: str, attributes: dict[str, float], dtype: type) -> None:
    x = np.arange(256, dtype=np.uint8).view(dtype).reshape(4, 64)
    y_scale = scale(0.0042 if op_type == "QLinearSigmoid" else 0.07)
    steps(op_type, [x, scale(0.05), np.array(60, dtype), y_scale, np.array(3, dtype)], 1, attributes)


def test_parameters_with_an_axis_leave_scalars_scalars() -> None:
    x, step, zero = np.array(150, np.uint8), np.array([0.05], np.float32), np.array([100], np.uint8)
    for op_type in ("QLinearSigmoid", "QLinearLeakyRelu"):
        peer.compare(op_type, [x, step, zero, step, zero], [2], constants=(1, 2, 3, 4))
    constants = (2, 3, 5, 6, 7, 8)
    peer.compare("QLinearWhere", [np.array(True), x, step, zero, x, step, zero, step, zero], [2], constants=constants)
    (product,) = peer.run("MulInteger", [x, zero, x, zero], [6], constants=(1, 3))
    assert product.shape == ()


@pytest.mark.parametrize("op_type", ["QLinearSigmoid", "QLinearLeakyRelu"])
def test_absent_zero_points_are_zero(op_type: str) -> None:
    # onnxruntime does not survive absent zero points here, so the node is compared with itself.
    x, zero = np.arange(-128, 128).astype(np.int8), np.array(0, np.int8)
    (absent,) = peer.run(op_type, [x, scale(0.05), None, scale(0.01)])
    (given,) = peer.run(op_type, [x, scale(0.05), zero, scale(0.01), zero])
    np.testing.assert_array_equal(absent, given)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("same", [True, False])
def test_where(dtype: type, same: bool) -> None:
    generator = np.random.default_rng(2)
    x, y = random(generator, dtype, 3, 1, 5), random(generator, dtype, 4, 1)
    condition = generator.random((3, 4, 5)) < 0.5
    parameters = [(scale(0.02), np.array(7, dtype)), (scale(0.02 if same else 0.05), np.array(7, dtype))]
    target = (scale(0.02 if same else 0.03), np.array(7, dtype))
    found = steps("QLinearWhere", [condition, x, *parameters[0], y, *parameters[1], *target], [peer.element_type(x)])
    if same:
        np.testing.assert_array_equal(found, np.where(condition, x, y))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("axis", [1, -1, 0])
def test_concat(dtype: type, axis: int) -> None:
    generator = np.random.default_rng(3)
    shape = [2, 3, 4]
    parts: list[np.ndarray] = []
    for size, step, zero in ((1, 0.02, 3), (5, 0.03, 9), (2, 0.04, 3)):
        shape[axis] = size
        parts += [random(generator, dtype, *shape), scale(step), np.array(zero, dtype)]
    # onnxruntime wants the parameters as constants.
    constants = [0, 1, *(index for index in range(2, 11) if (index - 2) % 3)]
    steps(
        "QLinearConcat",
        [scale(0.02), np.array(3, dtype), *parts],
        [peer.element_type(parts[0])],
        {"axis": axis},
        constants=constants,
    )


@pytest.mark.parametrize("step", [1.2e-38, 3.3e-5, 0.0123, 1.0, 7e5, 1e30, 2.9e36])
def test_parts_that_have_the_scale_of_the_result_stay(step: float) -> None:
    parts = [np.arange(256, dtype=np.uint8).reshape(2, 128), np.full((2, 3), 77, np.uint8)]
    given = [scale(step), np.array(9, np.uint8)] * 3
    inputs = [*given[:2], parts[0], *given[2:4], parts[1], *given[4:]]
    (found,) = peer.run("QLinearConcat", inputs, [2], {"axis": 1}, constants=[0, 1, 3, 4, 6, 7])
    if step < 1e36:
        np.testing.assert_array_equal(found, np.concatenate(parts, axis=1))
    else:  # what is farther from the zero point than 117 steps is beyond float32
        far = np.abs(parts[0].astype(int) - 9) > 117
        np.testing.assert_array_equal(found[:, :128][far], np.where(parts[0] > 9, 255, 0)[far])


def test_concat_says_which_inputs_it_needs() -> None:
    with pytest.raises(Exception, match="triples"):
        peer.run("QLinearConcat", [scale(1), np.uint8([0])[0:1], np.uint8([1, 2]), scale(1)], [2], {"axis": 0})


def test_a_parameter_of_several_elements_is_named() -> None:
    x = np.zeros((2, 2), np.uint8)
    with pytest.raises(Exception, match="'A_scale' must be a scalar"):
        peer.run("QLinearAdd", [x, np.ones(2, np.float32), None, x, scale(1), None, scale(1)])


@pytest.mark.parametrize("dtype", TYPES)
def test_mul_integer(dtype: type) -> None:
    generator = np.random.default_rng(4)
    a, b = random(generator, dtype, 3, 1, 4), random(generator, dtype, 5, 1)
    (found,) = peer.run("MulInteger", [a, np.array(5, dtype), b, None], [6])
    np.testing.assert_array_equal(found, (a.astype(np.int32) - 5) * b.astype(np.int32))

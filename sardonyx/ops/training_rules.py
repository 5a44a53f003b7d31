"""Derivatives: for each operator, the adjoints of its inputs from that of its first output.

A rule gets the adjoint, the inputs, the output and the node's attributes, and gives one array for each input, or
None where the input has no derivative (shapes, axes, conditions).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Inputs = Sequence[Any]
Attributes = Mapping[str, Any]
Rule = Callable[[Array, Inputs, Array, Attributes], Sequence[Array | None]]


def reduced_to(adjoint: Array, shape: tuple[int, ...]) -> Array:
    """The adjoint of an input that was broadcast: summed over the axes along which it was repeated."""
    extra = adjoint.ndim - len(shape)
    if extra:
        adjoint = adjoint.sum(axis=tuple(range(extra)))
    axes = tuple(axis for axis, dim in enumerate(shape) if dim == 1 and adjoint.shape[axis] != 1)
    return np.asarray(adjoint.sum(axis=axes, keepdims=True) if axes else adjoint).reshape(shape)


def _add(g: Array, inputs: Inputs, y: Array, attributes: Attributes) -> Sequence[Array]:
    return [reduced_to(g, value.shape) for value in inputs]


def _subtract(g: Array, inputs: Inputs, y: Array, attributes: Attributes) -> Sequence[Array]:
    return [reduced_to(g, inputs[0].shape), reduced_to(-g, inputs[1].shape)]


def _multiply(g: Array, inputs: Inputs, y: Array, attributes: Attributes) -> Sequence[Array]:
    a, b = inputs
    return [reduced_to(g * b, a.shape), reduced_to(g * a, b.shape)]


def _divide(g: Array, inputs: Inputs, y: Array, attributes: Attributes) -> Sequence[Array]:
    a, b = inputs
    return [reduced_to(g / b, a.shape), reduced_to(-g * a / (b * b), b.shape)]


def _power(g: Array, inputs: Inputs, y: Array, attributes: Attributes) -> Sequence[Array]:
    base, exponent = inputs
    safe = np.where(base > 0, base, 1)
    return [
        reduced_to(g * exponent * np.power(base, exponent - 1), base.shape),
        reduced_to(g * y * np.log(safe), exponent.shape),
    ]


def _where(g: Array, inputs: Inputs, y: Array, attributes: Attributes) -> Sequence[Array | None]:
    condition, yes, no = inputs
    zero = np.zeros((), g.dtype)
    return [
        None,
        reduced_to(np.where(condition, g, zero), yes.shape),
        reduced_to(np.where(condition, zero, g), no.shape),
    ]


def _unary(derivative: Callable[[Array, Array], Any]) -> Rule:
    """A rule from the derivative as a function of the input and the output."""

    def rule(g: Array, inputs: Inputs, y: Array, attributes: Attributes) -> Sequence[Array]:
        return [np.asarray(g * derivative(inputs[0], y))]

    return rule


def _leaky_relu(g: Array, inputs: Inputs, y: Array, attributes: Attributes) -> Sequence[Array]:
    return [np.where(inputs[0] >= 0, g, g * attributes.get("alpha", 0.01))]


def _softmax(g: Array, inputs: Inputs, y: Array, attributes: Attributes) -> Sequence[Array]:
    axis = attributes.get("axis", -1)
    return [y * (g - (g * y).sum(axis=axis, keepdims=True))]


def _matmul(g: Array, inputs: Inputs, y: Array, attributes: Attributes) -> Sequence[Array]:
    a, b = inputs
    left = a[None, :] if a.ndim == 1 else a
    right = b[:, None] if b.ndim == 1 else b
    inner = np.expand_dims(g, -2) if a.ndim == 1 else g
    inner = np.expand_dims(inner, -1) if b.ndim == 1 else inner
    to_left = np.matmul(inner, np.swapaxes(right, -1, -2))
    to_right = np.matmul(np.swapaxes(left, -1, -2), inner)
    return [reduced_to(to_left, left.shape).reshape(a.shape), reduced_to(to_right, right.shape).reshape(b.shape)]


def _gemm(g: Array, inputs: Inputs, y: Array, attributes: Attributes) -> Sequence[Array | None]:
    a, b = inputs[:2]
    alpha, beta = attributes.get("alpha", 1.0), attributes.get("beta", 1.0)
    left = a.T if attributes.get("transA", 0) else a
    right = b.T if attributes.get("transB", 0) else b
    to_left, to_right = alpha * (g @ right.T), alpha * (left.T @ g)
    found: list[Array | None] = [
        to_left.T if attributes.get("transA", 0) else to_left,
        to_right.T if attributes.get("transB", 0) else to_right,
    ]
    if len(inputs) > 2 and inputs[2] is not None:
        found.append(reduced_to(beta * g, inputs[2].shape))
    return found


def _axes(inputs: Inputs, attributes: Attributes) -> tuple[int, ...] | None:
    """The axes of a reduction, from its attribute or its second input; None for all of them."""
    if len(inputs) > 1 and inputs[1] is not None:
        axes = tuple(int(axis) for axis in inputs[1].ravel())
    else:
        axes = tuple(attributes.get("axes", ()))
    return tuple(axis % inputs[0].ndim for axis in axes) if axes else None


def _spread(g: Array, inputs: Inputs, attributes: Attributes) -> Array:
    """The adjoint of a reduction's output, repeated over the axes that were summed."""
    x = inputs[0]
    axes = _axes(inputs, attributes)
    if axes is None and attributes.get("noop_with_empty_axes", 0):
        return g
    places = range(x.ndim) if axes is None else axes
    kept = [1 if axis in places else dim for axis, dim in enumerate(x.shape)]
    return np.broadcast_to(g.reshape(kept), x.shape)


def _reduce_sum(g: Array, inputs: Inputs, y: Array, attributes: Attributes) -> Sequence[Array | None]:
    return [_spread(g, inputs, attributes)]


def _reduce_mean(g: Array, inputs: Inputs, y: Array, attributes: Attributes) -> Sequence[Array | None]:
    return [_spread(g, inputs, attributes) * (y.size / max(inputs[0].size, 1))]


def _reshape(g: Array, inputs: Inputs, y: Array, attributes: Attributes) -> Sequence[Array | None]:
    return [g.reshape(inputs[0].shape)]


def _expand(g: Array, inputs: Inputs, y: Array, attributes: Attributes) -> Sequence[Array | None]:
    return [reduced_to(g, inputs[0].shape)]


def _transpose(g: Array, inputs: Inputs, y: Array, attributes: Attributes) -> Sequence[Array | None]:
    order = attributes.get("perm", tuple(range(g.ndim - 1, -1, -1)))
    return [g.transpose(np.argsort(order))]


def _concat(g: Array, inputs: Inputs, y: Array, attributes: Attributes) -> Sequence[Array | None]:
    axis = attributes.get("axis", 1)
    ends = np.cumsum([value.shape[axis] for value in inputs])[:-1]
    return list(np.split(g, ends, axis))


RULES: dict[str, Rule] = {
    "Abs": _unary(lambda x, y: np.sign(x)),
    "Add": _add,
    "Concat": _concat,
    "Cos": _unary(lambda x, y: -np.sin(x)),
    "Div": _divide,
    "Erf": _unary(lambda x, y: 2 / math.sqrt(math.pi) * np.exp(-x * x)),
    "Exp": _unary(lambda x, y: y),
    "Expand": _expand,
    "Flatten": _reshape,
    "Gemm": _gemm,
    "Identity": _unary(lambda x, y: 1),
    "LeakyRelu": _leaky_relu,
    "Log": _unary(lambda x, y: 1 / x),
    "MatMul": _matmul,
    "Mul": _multiply,
    "Neg": _unary(lambda x, y: -1),
    "Pow": _power,
    "Reciprocal": _unary(lambda x, y: -y * y),
    "ReduceMean": _reduce_mean,
    "ReduceSum": _reduce_sum,
    "Relu": _unary(lambda x, y: (x > 0).astype(x.dtype)),
    "Reshape": _reshape,
    "Sigmoid": _unary(lambda x, y: y * (1 - y)),
    "Sin": _unary(lambda x, y: np.cos(x)),
    "Softmax": _softmax,
    "Softplus": _unary(lambda x, y: 1 / (1 + np.exp(-x))),
    "Sqrt": _unary(lambda x, y: 0.5 / y),
    "Squeeze": _reshape,
    "Sub": _subtract,
    "Sum": _add,
    "Tanh": _unary(lambda x, y: 1 - y * y),
    "Transpose": _transpose,
    "Unsqueeze": _reshape,
    "Where": _where,
}

"""How large the outputs of a node will be, for the operators that can make much out of little.

Their output's size depends on what their inputs hold or on attributes, so that a small model, bad or merely wrong,
can ask for more memory than there is. The size is known before the operator runs, and checked then. What an operator
needs on the way, it asks `memory.require` for itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.kernel.program import Host, Kernel, Template
from sardonyx.ops.framework.operator import Operator, Value, attribute_value
from sardonyx.runtime.memory import memory

Array = np.ndarray[Any, Any]
Rule = Callable[[ir.Node, Sequence[Any]], int | None]

_WIDEST = 8  # bytes of an element where the type does not matter


def guarded(operator: Operator, call: Callable[..., Sequence[Value]]) -> Callable[..., Sequence[Value]]:
    """`call`, which runs `operator`, behind a check of its outputs' size; `call` itself where there is no rule."""
    rule = RULES.get(operator.node.op_type) if operator.node.domain in ("", "com.microsoft") else None
    if rule is None:
        return call
    node = operator.node

    def checked(*inputs: Value) -> Sequence[Value]:
        size = result_bytes(node, inputs)
        if size is not None and size >= memory.CHECKED_BYTES:
            memory.require(size, f"the output of {node.op_type}")
        return call(*inputs)

    return checked


def checked(operator: Operator, kernel: Kernel, reason: str = "") -> Kernel:
    """A kernel of `operator` as NumPy runs it, where it is one call behind that check; `reason` says why NumPy does."""
    if not isinstance(kernel, Host | Template):
        return kernel
    return Host(guarded(operator, kernel.call if isinstance(kernel, Host) else kernel.run), reason)


def result_bytes(node: ir.Node, inputs: Sequence[Value]) -> int | None:
    """Bytes that a node's outputs take for these inputs; None where that is not foreseen or the inputs are wrong."""
    rule = RULES.get(node.op_type)
    if rule is None:
        return None
    try:
        return rule(node, inputs)
    except (AttributeError, TypeError, ValueError, IndexError, OverflowError, ZeroDivisionError):
        return None  # the operator itself says what is wrong with them


def _product(dims: Iterable[Any]) -> int:
    return math.prod(int(dim) for dim in dims)


def _attribute(node: ir.Node, name: str, default: Any) -> Any:
    found = node.attributes.get(name)
    return default if found is None else attribute_value(found)


def _given(inputs: Sequence[Any], index: int) -> Any:
    return inputs[index] if index < len(inputs) else None


def _numbers(node: ir.Node, inputs: Sequence[Any], index: int, name: str) -> list[int] | None:
    """Integers from an input, or in older versions from an attribute."""
    value = _given(inputs, index)
    if value is not None:
        return [int(item) for item in np.asarray(value).ravel()]
    found = _attribute(node, name, None)
    return None if found is None else [int(item) for item in found]


def _constant_of_shape(node: ir.Node, inputs: Sequence[Any]) -> int | None:
    value = _attribute(node, "value", None)
    width = 4 if value is None else max(1, value.dtype.bitwidth // 8)
    return int(math.prod(inputs[0].tolist())) * width


def _expand(node: ir.Node, inputs: Sequence[Any]) -> int | None:
    wanted = [int(dim) for dim in inputs[1]]
    shape = list(inputs[0].shape)
    rank = max(len(wanted), len(shape))
    padded = ([1] * (rank - len(wanted)) + wanted, [1] * (rank - len(shape)) + shape)
    return _product(max(pair) if 0 not in pair else 0 for pair in zip(*padded, strict=True)) * int(inputs[0].itemsize)


def _tile(node: ir.Node, inputs: Sequence[Any]) -> int | None:
    return int(inputs[0].nbytes) * _product(inputs[1])


def _range(node: ir.Node, inputs: Sequence[Any]) -> int | None:
    start, limit, delta = [float(item.item()) for item in inputs]
    return max(0, math.ceil((limit - start) / delta)) * int(inputs[0].itemsize)


def _random(node: ir.Node, inputs: Sequence[Any]) -> int | None:
    return _product(_attribute(node, "shape", ())) * _WIDEST


def _multinomial(node: ir.Node, inputs: Sequence[Any]) -> int | None:
    return int(inputs[0].shape[0]) * int(_attribute(node, "sample_size", 1)) * _WIDEST


def _one_hot(node: ir.Node, inputs: Sequence[Any]) -> int | None:
    return int(inputs[0].size) * int(np.asarray(inputs[1]).ravel()[0]) * int(inputs[2].itemsize)


def _pad(node: ir.Node, inputs: Sequence[Any]) -> int | None:
    data = inputs[0]
    pads = _numbers(node, inputs, 1, "pads") or [int(item) for item in _attribute(node, "paddings", ())]
    axes = _given(inputs, 3)
    named = range(data.ndim) if axes is None else [int(axis) % data.ndim for axis in np.asarray(axes).ravel()]
    shape = list(data.shape)
    for index, axis in enumerate(named):
        shape[axis] += pads[index] + pads[index + len(pads) // 2]
    return _product(max(0, dim) for dim in shape) * int(data.itemsize)


def _resize(node: ir.Node, inputs: Sequence[Any]) -> int | None:
    data = inputs[0]
    axes = [int(axis) % data.ndim for axis in _attribute(node, "axes", range(data.ndim))]
    sizes = _given(inputs, 3)
    scales = _given(inputs, 2) if node.op_type == "Resize" and len(inputs) > 2 else _given(inputs, 1)
    shape = [float(dim) for dim in data.shape]
    if sizes is not None and np.asarray(sizes).size:
        for axis, size in zip(axes, np.asarray(sizes).ravel(), strict=False):
            shape[axis] = float(size)
    else:
        factors = np.asarray(scales).ravel() if scales is not None else _attribute(node, "scales", ())
        for axis, factor in zip(axes, factors, strict=False):
            shape[axis] *= float(factor)
    total = math.prod(shape) * float(data.itemsize)
    return None if math.isnan(total) else int(min(total, 2.0**62))


def _eye_like(node: ir.Node, inputs: Sequence[Any]) -> int | None:
    return int(inputs[0].size) * 2 * _WIDEST


def _window(node: ir.Node, inputs: Sequence[Any]) -> int | None:
    return int(np.asarray(inputs[0]).ravel()[0]) * _WIDEST


def _matmul(node: ir.Node, inputs: Sequence[Any]) -> int | None:
    a, b = inputs[0].shape, inputs[3 if node.op_type == "QLinearMatMul" else 1].shape
    a, b = _oriented(node, a, "A"), _oriented(node, b, "B")
    batch = np.broadcast_shapes(a[:-2], b[:-2])
    rows, columns = (a[-2] if len(a) > 1 else 1), (b[-1] if len(b) > 1 else 1)
    return _product(batch) * int(rows) * int(columns) * max(4, int(inputs[0].itemsize))


def _oriented(node: ir.Node, shape: tuple[int, ...], side: str) -> tuple[int, ...]:
    """A shape as the product reads it; MatMul itself has none of these attributes."""
    if len(shape) > 2 and _attribute(node, f"transBatch{side}", 0):
        shape = (*shape[1:-1], shape[0], shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if len(shape) > 1 and _attribute(node, f"trans{side}", 0) else shape


def _gemm(node: ir.Node, inputs: Sequence[Any]) -> int | None:
    rows = inputs[0].shape[1 if _attribute(node, "transA", 0) else 0]
    columns = inputs[1].shape[0 if _attribute(node, "transB", 0) else 1]
    return int(rows) * int(columns) * int(inputs[0].itemsize)


def _windowed(data: Array, channels: int, node: ir.Node, kernel: Sequence[int]) -> int:
    """Outputs of a convolution or pool: along each axis what its pads, strides and kernel leave."""
    rank = data.ndim - 2
    pads = _attribute(node, "pads", (0,) * (2 * rank))
    strides = _attribute(node, "strides", (1,) * rank)
    dilations = _attribute(node, "dilations", (1,) * rank)
    same = _attribute(node, "auto_pad", "NOTSET").startswith("SAME")
    sizes = []
    for axis in range(rank):
        padded = int(data.shape[2 + axis]) + (0 if same else int(pads[axis]) + int(pads[axis + rank]))
        extent = 0 if same else int(dilations[axis]) * (int(kernel[axis]) - 1)
        sizes.append(max(0, (padded - extent) // int(strides[axis]) + 1))
    return int(data.shape[0]) * channels * _product(sizes) * max(4, data.itemsize)


def _convolution(node: ir.Node, inputs: Sequence[Any]) -> int | None:
    weights = inputs[3] if node.op_type == "QLinearConv" else inputs[1]
    return _windowed(inputs[0], int(weights.shape[0]), node, weights.shape[2:])


def _pool(node: ir.Node, inputs: Sequence[Any]) -> int | None:
    return _windowed(inputs[0], int(inputs[0].shape[1]), node, _attribute(node, "kernel_shape", ()))


def _transposed_convolution(node: ir.Node, inputs: Sequence[Any]) -> int | None:
    data, weights = inputs[0], inputs[1]
    rank = data.ndim - 2
    strides = _attribute(node, "strides", (1,) * rank)
    dilations = _attribute(node, "dilations", (1,) * rank)
    extra = _attribute(node, "output_padding", (0,) * rank)
    wanted = _attribute(node, "output_shape", None)
    sizes = [
        int(strides[axis]) * (int(data.shape[2 + axis]) - 1)
        + int(dilations[axis]) * (int(weights.shape[2 + axis]) - 1)
        + 1
        + int(extra[axis])
        for axis in range(rank)
    ]
    if wanted is not None:
        sizes = [max(size, int(want)) for size, want in zip(sizes, wanted[-rank:], strict=True)]
    channels = int(weights.shape[1]) * int(_attribute(node, "group", 1))
    return int(data.shape[0]) * channels * _product(sizes) * int(data.itemsize)


def _gather(node: ir.Node, inputs: Sequence[Any]) -> int | None:
    data = inputs[0]
    axis = int(_attribute(node, "axis", 0)) % data.ndim
    rest = _product(data.shape[:axis]) * _product(data.shape[axis + 1 :])
    return int(inputs[1].size) * rest * int(data.itemsize)


def _gather_nd(node: ir.Node, inputs: Sequence[Any]) -> int | None:
    data, indices = inputs[0], inputs[1]
    batch = int(_attribute(node, "batch_dims", 0))
    rest = _product(data.shape[batch + int(indices.shape[-1]) :])
    return _product(indices.shape[:-1]) * rest * int(data.itemsize)


def _concat(node: ir.Node, inputs: Sequence[Any]) -> int | None:
    return sum(int(item.nbytes) for item in inputs)


def _concat_sequence(node: ir.Node, inputs: Sequence[Any]) -> int | None:
    return sum(int(item.nbytes) for item in inputs[0])


def _non_zero(node: ir.Node, inputs: Sequence[Any]) -> int | None:
    return int(inputs[0].size) * max(1, int(inputs[0].ndim)) * _WIDEST


def _from_input(index: int) -> Rule:
    """The elements of a shape that an input holds."""

    def rule(node: ir.Node, inputs: Sequence[Any]) -> int | None:
        return None if _given(inputs, index) is None else _product(np.asarray(inputs[index]).ravel()) * _WIDEST

    return rule


def _center_crop_pad(node: ir.Node, inputs: Sequence[Any]) -> int | None:
    data = inputs[0]
    shape = list(data.shape)
    axes = _attribute(node, "axes", range(data.ndim))
    for axis, size in zip(axes, np.asarray(inputs[1]).ravel(), strict=True):
        shape[axis] = max(shape[axis], int(size))
    return _product(shape) * int(data.itemsize)


def _roi_align(node: ir.Node, inputs: Sequence[Any]) -> int | None:
    height, width = _attribute(node, "output_height", 1), _attribute(node, "output_width", 1)
    return int(inputs[1].shape[0]) * int(inputs[0].shape[1]) * int(height) * int(width) * int(inputs[0].itemsize)


def _mel_weights(node: ir.Node, inputs: Sequence[Any]) -> int | None:
    bins, length = (int(np.asarray(item).ravel()[0]) for item in inputs[:2])
    return bins * (length // 2 + 1) * _WIDEST


def _dft(node: ir.Node, inputs: Sequence[Any]) -> int | None:
    data = inputs[0]
    length = _given(inputs, 1)
    if length is None:
        return None
    return int(data.size) * 2 * int(data.itemsize) * max(1, int(np.asarray(length).ravel()[0]))


RULES: dict[str, Rule] = {
    "AveragePool": _pool,
    "BlackmanWindow": _window,
    "CenterCropPad": _center_crop_pad,
    "Col2Im": _from_input(1),
    "Concat": _concat,
    "ConcatFromSequence": _concat_sequence,
    "ConstantOfShape": _constant_of_shape,
    "Conv": _convolution,
    "ConvInteger": _convolution,
    "ConvTranspose": _transposed_convolution,
    "DFT": _dft,
    "Expand": _expand,
    "EyeLike": _eye_like,
    "FusedMatMul": _matmul,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    "HammingWindow": _window,
    "HannWindow": _window,
    "LpPool": _pool,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "MaxPool": _pool,
    "MaxUnpool": _from_input(2),
    "MelWeightMatrix": _mel_weights,
    "Multinomial": _multinomial,
    "NonZero": _non_zero,
    "OneHot": _one_hot,
    "Pad": _pad,
    "QLinearConv": _convolution,
    "QLinearMatMul": _matmul,
    "RandomNormal": _random,
    "RandomUniform": _random,
    "Range": _range,
    "Resize": _resize,
    "RoiAlign": _roi_align,
    "Tile": _tile,
    "TransposeMatMul": _matmul,
    "Upsample": _resize,
}

"""Values made from nothing or from a shape: Constant, ConstantOfShape, Range, EyeLike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel.program import Kernel, View
from sardonyx.ops.framework import dims
from sardonyx.ops.framework.facts import MAXIMUM_ELEMENTS, UNKNOWN, Dim, Fact, of_array, tensor, unknown_dim
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, attribute_value, operator
from sardonyx.runtime.memory import memory

# Of Range, for each element: two integers or floats of 64 bits beside the result.
_BYTES_ON_THE_WAY = 24

_PLAIN_VALUES = {
    "value_float": (ir.DataType.FLOAT, np.float32),
    "value_floats": (ir.DataType.FLOAT, np.float32),
    "value_int": (ir.DataType.INT64, np.int64),
    "value_ints": (ir.DataType.INT64, np.int64),
    "value_string": (ir.DataType.STRING, object),
    "value_strings": (ir.DataType.STRING, object),
}


def array_of(held: ir.TensorProtocol) -> Array:
    """The array that a tensor attribute or initializer holds; strings as objects of type str."""
    array = held.numpy()
    if held.dtype != ir.DataType.STRING:
        return np.asarray(array)
    texts = [item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item) for item in array.ravel()]
    return _objects(texts).reshape(array.shape)


def _objects(items: Sequence[Any]) -> Array:
    result = np.empty(len(items), object)
    result[:] = items
    return result


@operator("Constant")
class Constant(Operator):
    """The value of the one attribute that is given."""

    def __init__(self, node: ir.Node, version: int) -> None:
        super().__init__(node, version)
        self._value: Array | None = None
        self.dtype, self.value = self._read()

    def _read(self) -> tuple[ir.DataType, Array]:
        given = [(name, attribute) for name, attribute in self.node.attributes.items() if name != "sparse_value"]
        if "sparse_value" in self.node.attributes:
            return _dense(self.node.attributes["sparse_value"].value)
        if len(given) != 1:
            raise ValueError("a Constant needs exactly one of its value attributes")
        name, attribute = given[0]
        if name == "value":
            held = attribute.value  # `as_tensor` checks a protocol, which costs more than the rest of this
            if attribute.type != ir.AttributeType.TENSOR:
                raise ValueError("the attribute 'value' of a Constant must be a tensor")
            return held.dtype, array_of(held)
        if name not in _PLAIN_VALUES:
            raise ValueError(f"'{name}' is no attribute of Constant")
        element, dtype = _PLAIN_VALUES[name]
        content = attribute_value(attribute)
        if name == "value_strings":
            return element, _objects(content)
        return element, np.array(content, dtype)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [of_array(self.value, self.dtype)]

    def run(self, *inputs: Value) -> Sequence[Value]:
        return (self.value,)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return View(lambda: self.value)


def _dense(sparse: Any) -> tuple[ir.DataType, Array]:
    """A sparse constant as a whole array: indices are linear (rank 1) or coordinates (rank 2)."""
    import onnx

    proto = sparse if isinstance(sparse, onnx.SparseTensorProto) else ir.to_proto(sparse)
    values = onnx.numpy_helper.to_array(proto.values)
    indices = onnx.numpy_helper.to_array(proto.indices)
    result = np.zeros(tuple(proto.dims), values.dtype)
    if indices.ndim == 1:
        result.reshape(-1)[indices] = values
    else:
        result[tuple(indices.T)] = values
    return ir.DataType(proto.values.data_type), result


@operator("ConstantOfShape", since=9)
class ConstantOfShape(Operator):
    """A tensor of the shape that the input holds, filled with one value (float 0 where none is given)."""

    host_reason = "its size depends on data"
    value: ir.TensorProtocol | None = None
    _filling: Array | None = None

    def filling(self) -> Array:
        if self.value is None:
            return np.zeros((), np.float32)
        array = array_of(self.value)
        if array.size != 1:
            raise ValueError(f"the value of ConstantOfShape must have one element, not {array.size}")
        return array.reshape(())

    def run(self, shape: Array) -> Sequence[Value]:
        if shape.ndim != 1:
            raise ValueError(f"the shape must be a vector, not a tensor of {shape.ndim} dimensions")
        wanted = shape.tolist()
        if wanted and min(wanted) < 0:
            raise ValueError(f"a shape has no negative dimensions: {wanted}")
        if self._filling is None:
            self._filling = self.filling()
        return (np.full(wanted, self._filling, self._filling.dtype),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        filling = self.filling()
        dtype = self.value.dtype if self.value is not None else ir.DataType.FLOAT
        wanted = inputs[0]
        if wanted is None or wanted.elements is None:
            count = wanted.shape[0] if wanted is not None and wanted.shape is not None and wanted.shape else None
            if not isinstance(count, int) or count > MAXIMUM_ELEMENTS:
                return [tensor(dtype, None)]
            return [tensor(dtype, [unknown_dim()] * count)]
        shape = wanted.elements
        if any(isinstance(dim, int) and dim < 0 for dim in shape):
            raise ValueError(f"a shape has no negative dimensions: {list(shape)}")
        contents = None
        if dtype in (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL) and len(shape) <= 1:
            count = shape[0] if shape else 1
            if isinstance(count, int) and count <= MAXIMUM_ELEMENTS:
                contents = (int(filling),) * count
        return [tensor(dtype, shape, contents)]


@operator("Range", since=11)
class Range(Operator):
    """start, start + delta, … up to but without limit."""

    host_reason = "its size depends on data"

    def run(self, start: Array, limit: Array, delta: Array) -> Sequence[Value]:
        count = self._count(start, limit, delta)
        memory.require(count * _BYTES_ON_THE_WAY, "the values of Range")
        if start.dtype.kind in "iu":
            values = np.arange(count) * delta.item() + start.item()
            return (values.astype(start.dtype, copy=False),)
        first, step = start.reshape(()), delta.reshape(())
        wide: Any = np.float64 if start.dtype == np.float64 else np.float32
        values = wide(first) + np.arange(count).astype(wide) * wide(step)
        return (np.asarray(values).astype(start.dtype),)

    @staticmethod
    def _count(start: Array, limit: Array, delta: Array) -> int:
        """How many elements there are."""
        if not start.size == limit.size == delta.size == 1:
            raise ValueError("start, limit and delta of Range must be scalars")
        first, last, step = start.item(), limit.item(), delta.item()
        if step == 0:
            raise ValueError("delta of Range must not be 0")
        if start.dtype.kind in "iu":
            return int(max(-((first - last) // step), 0))
        return max(math.ceil((float(last) - float(first)) / float(step)), 0)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        facts = [fact or UNKNOWN for fact in inputs]
        kind = next((fact.type for fact in facts if fact.type is not None), None)
        given = [fact.constant for fact in facts if fact.constant is not None]
        if len(given) == len(facts):
            count = self._count(*given)
            if kind is not None and count <= MAXIMUM_ELEMENTS:
                (values,) = self.run(*given)
                return [of_array(values, kind.dtype)]
            return [Fact(kind, (count,))]
        if any(fact.elements is None or len(fact.elements) != 1 for fact in facts):
            return [Fact(kind, (unknown_dim(),))]
        start, limit, step = (fact.elements[0] for fact in facts)  # type: ignore[index]
        if step == 0:
            raise ValueError("delta of Range must not be 0")
        return [Fact(kind, (_steps(start, limit, step),))]


def _steps(start: Dim, limit: Dim, step: Dim) -> Dim:
    distance = dims.subtract(limit, start)
    if not isinstance(step, int):
        return unknown_dim()
    count = distance if step == 1 else dims.ceil_divide(distance, step)
    if isinstance(count, int):
        return max(count, 0)
    # A range whose length is a sum of sizes is not empty by accident; one with a difference may be.
    return count if dims.at_least(count, 0) or start == 0 else dims.maximum(count, 0)


@operator("EyeLike", since=9)
class EyeLike(Operator):
    """Ones on the k-th diagonal of a matrix shaped like the input, else zeros."""

    host_reason = "one small matrix, filled in place"
    dtype: int | None = None
    k: int = 0

    def run(self, like: Array) -> Sequence[Value]:
        if like.ndim != 2:
            raise ValueError(f"EyeLike needs a matrix, not a tensor of {like.ndim} dimensions")
        kind = like.dtype if self.dtype is None else numpy_dtype(ir.DataType(self.dtype))
        return (np.eye(like.shape[0], like.shape[1], self.k).astype(kind),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        like = inputs[0] or UNKNOWN
        kind = like.type if self.dtype is None else ir.TensorType(ir.DataType(self.dtype))
        if like.rank not in (2, None):
            raise ValueError(f"EyeLike needs a matrix, not a tensor of {like.rank} dimensions")
        return [Fact(kind, like.shape)]

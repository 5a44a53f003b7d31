"""What a caller's options change in a loaded model before it is compiled: dimensions, initializers."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx_ir as ir

from sardonyx import errors
from sardonyx.api.values.ort_value import OrtValue
from sardonyx.graph.load import make_constant
from sardonyx.graph.types import element_type


def fix_dimensions(model: ir.Model, overrides: Mapping[tuple[str, str], int]) -> None:
    """Replace symbolic dimensions of inputs; keys are ("name", symbol) and ("denotation", denotation).

    A symbol is replaced wherever values of the main graph declare it, so that declared and inferred shapes agree.
    InvalidArgument for a dimension to which both give a size, and not the same.
    """
    if not overrides:
        return
    names = {name: size for (kind, name), size in overrides.items() if kind == "name"}
    denotations = {name: size for (kind, name), size in overrides.items() if kind == "denotation"}
    for value in model.graph.inputs:
        shape = value.shape  # with the denotations, which the new one has not
        for axis, dim in enumerate(shape or ()):
            denotation = shape.get_denotation(axis) if shape is not None else None
            if denotation in denotations and not isinstance(dim, int):
                size = denotations[denotation]
                if dim.value is not None and names.setdefault(dim.value, size) != size:
                    raise errors.InvalidArgument(
                        f"Conflicting free dimension overrides. Dimension {axis} of input {value.name} is {size} by "
                        f"its denotation {denotation} and {names[dim.value]} by its name {dim.value}"
                    )
                _set_dim(value, axis, size)
    for value in _declared(model.graph):
        for axis, dim in enumerate(value.shape or ()):
            if not isinstance(dim, int) and dim.value in names:
                _set_dim(value, axis, names[dim.value])


def fix_sizes(model: ir.Model, sizes: Mapping[str, tuple[int, ...]]) -> None:
    """Declare the shapes of inputs, and forget what the model says of its other values, which may contradict them."""
    graph = model.graph
    for value in graph.inputs:
        if value.name is not None and value.name in sizes and not value.is_initializer():
            value.shape = ir.Shape(sizes[value.name])
    for value in (*graph.outputs, *(value for node in graph.all_nodes() for value in node.outputs)):
        value.shape = None


def _declared(graph: ir.Graph) -> list[ir.Value]:
    return [*graph.inputs, *graph.outputs, *(value for node in graph for value in node.outputs)]


def _set_dim(value: ir.Value, axis: int, size: int) -> None:
    assert value.shape is not None
    dims = list(value.shape)
    dims[axis] = size
    value.shape = ir.Shape(dims)


def take_off_inputs(model: ir.Model) -> None:
    """Make constants of the initializers that are inputs of the graph as well."""
    graph = model.graph
    for value in list(graph.inputs):
        if value.is_initializer():
            make_constant(value)


def replace_initializers(model: ir.Model, replacements: Mapping[str, OrtValue]) -> None:
    """Put values given by `SessionOptions.add_initializer` in place of the model's; unknown names are ignored."""
    for name, given in replacements.items():
        value = model.graph.initializers.get(name)
        if value is not None:
            _replace(value, given)


def replace_external_initializers(proto: onnx.ModelProto, replacements: Mapping[str, OrtValue]) -> None:
    """Put values given by `SessionOptions.add_external_initializers` in place of weights in files.

    `Fail` for a name that the model does not know or does not keep outside, and for a value of another type or shape.
    """
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    for name, given in replacements.items():
        tensor = tensors.get(name)
        if tensor is None:
            raise errors.Fail(f"Failed to find existing initializer with name {name}.")
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            raise errors.Fail(f"Trying to replace non-external initializer with external data: {name}")
        value = given._ortvalue
        if tuple(tensor.dims) != tuple(value.shape()) or tensor.data_type != value.element_type():
            raise errors.Fail(
                f"Replacement tensor's dimensions do not match, or its type: initializer {name} has type "
                f"{tensor.data_type} and shape {list(tensor.dims)}, the value given for it type "
                f"{value.element_type()} and shape {value.shape()}"
            )
        array = value.array()
        tensor.CopyFrom(ir.to_proto(ir.Tensor(array, dtype=element_type(array.dtype), name=name)))


def _replace(value: ir.Value, given: OrtValue) -> None:
    array = given._ortvalue.array()
    dtype = element_type(array.dtype)
    declared = value.const_value.dtype if value.const_value is not None else dtype
    if dtype != declared:
        raise errors.InvalidArgument(
            f"The value given for initializer {value.name} has element type {dtype.name.lower()}; "
            f"the model declares {declared.name.lower()}"
        )
    if dtype == ir.DataType.STRING:
        texts = [item.encode("utf-8") for item in array.reshape(-1)]
        value.const_value = ir.StringTensor(texts, shape=ir.Shape(array.shape), name=value.name)
    else:
        value.const_value = ir.Tensor(array, dtype=dtype, name=value.name)
    value.shape = ir.Shape(array.shape)

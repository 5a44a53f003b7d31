"""Weights of a model apart from it, for `SessionOptions.add_external_initializers`."""

from __future__ import annotations

from onnx import ModelProto, TensorProto
from onnx.external_data_helper import set_external_data
from onnx.numpy_helper import to_array

from sardonyx.api.values.ort_value import OrtValue
from sardonyx.transformers.graph_order import graphs_of

_NOWHERE = "foo.bin"  # the file that they are said to lie in, which nobody reads


def extract_raw_data_from_model(model: ModelProto) -> tuple[tuple[str, ...], tuple[OrtValue, ...]]:
    """Take the contents of raw initializers out of a model, in place: their names and values, in order.

    The model says afterwards that they lie in a file, for which a session takes the values in its options. Both are
    empty where there are no raw initializers.
    """
    found: list[tuple[str, OrtValue]] = []
    for graph in graphs_of(model.graph):
        for initializer in graph.initializer:
            if initializer.HasField("raw_data"):
                found.append((initializer.name, OrtValue.ortvalue_from_numpy(to_array(initializer))))
                set_external_data(initializer, location=_NOWHERE)
                initializer.ClearField("raw_data")
    return tuple(name for name, _ in found), tuple(value for _, value in found)


def has_external_data(model: ModelProto) -> bool:
    """Whether an initializer of the model lies in a file."""
    return any(
        initializer.data_location == TensorProto.EXTERNAL
        for graph in graphs_of(model.graph)
        for initializer in graph.initializer
    )

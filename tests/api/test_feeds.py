"""What values a run takes and how they are converted, beside onnxruntime: maps, raw bytes, optional tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sardonyx as ort
from tests.api import session_models as models

peer = pytest.importorskip("onnxruntime")


def outcome(run: Callable[[], Any]) -> Any:
    """The result, or the name of the error's class."""
    try:
        return run()
    except Exception as error:
        return type(error).__name__


def vectorizer(key: int) -> bytes:
    """A DictVectorizer for a map of floats."""
    kind = onnx.TypeProto()
    kind.map_type.key_type = key
    kind.map_type.value_type.tensor_type.elem_type = TensorProto.FLOAT
    words = {"string_vocabulary": ["a", "b"]} if key == TensorProto.STRING else {"int64_vocabulary": [0, 1]}
    node = helper.make_node("DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", **words)
    graph = helper.make_graph(
        [node],
        "maps",
        [helper.make_value_info("x", kind)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


@pytest.mark.parametrize(
    ("key", "given", "expected"),
    [
        (TensorProto.INT64, {0: 1.5, 1: 2.5}, [[1.5, 2.5]]),
        (TensorProto.INT64, {np.int64(1): np.float64(0.1)}, [[0, np.float32(0.1)]]),
        (TensorProto.INT64, {np.int32(0): 3, 1: True}, [[3, 1]]),
        (TensorProto.STRING, {"b": np.float16(2)}, [[0, 2]]),
        (TensorProto.STRING, {np.str_("a"): np.array(4)}, [[4, 0]]),
        (TensorProto.INT64, {0: 1.0, "a": 2.0}, "RuntimeError"),
        (TensorProto.INT64, {0.0: 1.0}, "RuntimeError"),
        (TensorProto.INT64, {0: "x"}, "RuntimeError"),
        (TensorProto.INT64, {0: None}, "RuntimeError"),
        (TensorProto.INT64, {}, "RuntimeError"),
    ],
)
def test_maps(key: int, given: dict[Any, Any], expected: Any) -> None:
    for package in (peer, ort):
        session = package.InferenceSession(vectorizer(key))
        assert outcome(lambda session=session: session.run(None, {"x": given})[0].tolist()) == expected


def test_errors_of_maps_name_the_type_and_the_input() -> None:
    for package in (peer, ort):
        session = package.InferenceSession(vectorizer(TensorProto.INT64))
        with pytest.raises(RuntimeError, match=r"Unexpected key type  <class 'str'>, .* C type int64_t for input 'x'"):
            session.run(None, {"x": {0: 1.0, "a": 2.0}})
        with pytest.raises(RuntimeError, match="Unexpected value type  <class 'str'>, it cannot be linked to C type"):
            session.run(None, {"x": {0: "1"}})
        with pytest.raises(RuntimeError, match="Size of dictionary is empty"):
            session.run(None, {"x": {}})


def test_raw_bytes_are_texts_with_their_zeros() -> None:
    raw = np.array([b"A\0A\0", b"abcd"], np.void)
    for package in (peer, ort):
        session = package.InferenceSession(models.identity(TensorProto.STRING))
        assert session.run(None, {"x": raw})[0].tolist() == ["A\0A\0", "abcd"]
    with pytest.raises(RuntimeError):
        ort.InferenceSession(models.identity(TensorProto.STRING)).run(None, {"x": np.zeros(2, [("a", "f4")])})


def test_optional_tensors_have_a_shape() -> None:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [1, "n"]))
    graph = helper.make_graph(
        [helper.make_node("OptionalHasElement", ["x"], ["y"])],
        "optional",
        [helper.make_value_info("x", kind)],
        [helper.make_tensor_value_info("y", TensorProto.BOOL, [])],
    )
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()
    for package in (peer, ort):
        session = package.InferenceSession(source)
        assert [(item.type, item.shape) for item in session.get_inputs()] == [("optional(tensor(float))", [1, "n"])]
        assert session.run(None, {"x": None})[0].tolist() is False
        assert session.run(None, {"x": np.ones((1, 3), np.float32)})[0].tolist() is True

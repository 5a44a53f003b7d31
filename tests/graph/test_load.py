"""Loading: sources, weights in place, types of data, sparse tensors, maps, initializers, saving."""

from __future__ import annotations

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from sardonyx import errors
from sardonyx.graph import wire_format
from sardonyx.graph.load import load_model
from sardonyx.graph.saving import save_model
from sardonyx.graph.types import type_name
from tests.graph.models import FLOAT, adding, info, model, node, pair, run, tensor

X = np.array([1.0, -2.0], np.float32)
RELU = model([node("Relu", ["x"], ["y"], name="n1")])


def weights_of(proto: onnx.TensorProto) -> np.ndarray:
    found = load_model(model([node("Identity", ["w"], ["y"])], (), [info("y", (), proto.data_type)], [proto]))
    return np.asarray(found.model.graph.initializers["w"].const_value.numpy())


def test_path_bytes_and_message_give_the_same_model(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(RELU, path)
    for source in (str(path), path, path.read_bytes(), RELU):
        loaded = load_model(source)
        assert loaded.is_bytes == (not isinstance(source, str | Path))
        assert loaded.size == path.stat().st_size
        np.testing.assert_array_equal(run(loaded, x=X)[0], [1, 0])


def test_weights_are_views_of_the_bytes() -> None:
    expected = np.random.default_rng(0).normal(size=(3, 400)).astype(np.float32)
    body = helper.make_graph(
        [node("Constant", [], ["o"], value=numpy_helper.from_array(expected + 2))], "b", [], [info("o", (3, 400))]
    )
    other = helper.make_graph([node("Identity", ["v"], ["p"])], "c", [], [info("p", (3, 400))])
    proto = model(
        [node("If", ["c"], ["y"], then_branch=body, else_branch=other)],
        (),
        [info("y", (3, 400))],
        [numpy_helper.from_array(expected, "v"), helper.make_tensor("c", TensorProto.BOOL, [], [True])],
    )
    data = proto.SerializeToString()
    loaded = load_model(data)
    lowest = np.frombuffer(data, np.uint8).ctypes.data

    def inside(array: np.ndarray) -> bool:
        return lowest <= array.ctypes.data < lowest + len(data)

    top = loaded.model.graph.initializers["v"].const_value.numpy()
    (conditional,) = loaded.model.graph
    inner = next(iter(conditional.attributes["then_branch"].as_graph())).attributes["value"].as_tensor().numpy()
    assert inside(top)
    assert inside(inner)
    np.testing.assert_array_equal(top, expected)
    np.testing.assert_array_equal(inner, expected + 2)
    np.testing.assert_array_equal(run(loaded)[0], expected + 2)


def test_what_is_left_for_protobuf_is_small_and_complete() -> None:
    proto = adding(numpy_helper.from_array(np.zeros(100_000, np.float32), "w"))
    small, payloads = wire_format.split(memoryview(proto.SerializeToString()))
    parsed = onnx.ModelProto.FromString(small)
    assert len(small) < 300
    assert payloads.find(parsed.graph.initializer[0].raw_data).nbytes == 400_000
    parsed.graph.initializer[0].raw_data = proto.graph.initializer[0].raw_data
    assert parsed == proto


def test_long_attributes_of_numbers_are_passed_over_whole() -> None:
    """Numbers of every length before and after a large tensor; the last one must end where its message does."""
    integers = [0, 1, -1, 127, 128, 2**31, -(2**63), 2**63 - 1] * 300
    floats = np.linspace(-1e30, 1e30, 2000, dtype=np.float32).tolist()
    large = numpy_helper.from_array(np.ones(1000, np.float32), "large")
    attributes = {"a": integers, "b": floats, "t": large, "z": integers}
    proto = model([helper.make_node("Op", ["x"], ["y"], domain="test", **attributes)])
    small, payloads = wire_format.split(memoryview(proto.SerializeToString()))
    assert len(payloads.views) == 1
    left = {one.name: one for one in onnx.ModelProto.FromString(small).graph.node[0].attribute}
    assert list(left["a"].ints) == list(left["z"].ints) == integers
    assert list(left["b"].floats) == floats
    for last in (b"\x40\x80", b"\x40", b"\x3d123", b"\x39"):
        message = b"\x40\x01" * 1000 + last
        for field in (5, 1, 7):  # an attribute in a node in a graph in a model
            size = len(message)
            message = bytes([field << 3 | 2, size & 127 | 128, size >> 7]) + message
        with pytest.raises(errors.InvalidProtobuf):
            wire_format.split(memoryview(message))


@pytest.mark.parametrize("kind", ["BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT16", "INT8", "UINT16", "BOOL"])
@pytest.mark.parametrize("raw", [True, False])
def test_element_types(kind: str, raw: bool) -> None:
    dtype = ir.DataType[kind]
    expected = np.array([0, 1, 1, 0, 1], np.float32).astype(dtype.numpy())
    stored = expected.tobytes()
    if raw:
        proto = tensor([5], int(dtype), raw_data=stored)
    else:
        width = expected.dtype.itemsize
        proto = tensor([5], int(dtype), int32_data=np.frombuffer(stored, f"<u{width}").astype(np.int32).tolist())
    found = weights_of(proto)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("kind", "dtype", "packed", "expected"),
    [
        (TensorProto.INT4, ml_dtypes.int4, [0xF1, 0x07], [1, -1, 7]),
        (TensorProto.UINT4, ml_dtypes.uint4, [0xF1, 0x07], [1, 15, 7]),
        (TensorProto.FLOAT4E2M1, ml_dtypes.float4_e2m1fn, [0x21, 0x07], [0.5, 1.0, 6.0]),
        (TensorProto.INT2, ml_dtypes.int2, [0b00111001], [1, -2, -1]),
        (TensorProto.UINT2, ml_dtypes.uint2, [0b00111001], [1, 2, 3]),
    ],
)
def test_packed_element_types(kind: int, dtype: type, packed: list[int], expected: list[float]) -> None:
    for proto in (tensor([3], kind, raw_data=bytes(packed)), tensor([3], kind, int32_data=packed)):
        found = weights_of(proto)
        assert found.dtype == dtype
        assert found.astype(np.float32).tolist() == expected


def test_other_data_fields() -> None:
    assert weights_of(tensor([2], TensorProto.INT64, int64_data=[1, -(2**40)])).tolist() == [1, -(2**40)]
    assert weights_of(tensor([1], TensorProto.UINT64, uint64_data=[2**63])).tolist() == [2**63]
    assert weights_of(tensor([1], TensorProto.UINT32, uint64_data=[7])).dtype == np.uint32
    assert weights_of(tensor([1], TensorProto.COMPLEX64, float_data=[1, 2])).tolist() == [1 + 2j]
    assert weights_of(tensor([2], TensorProto.STRING, string_data=[b"a", "ü".encode()])).tolist() == [
        b"a",
        "ü".encode(),
    ]
    assert weights_of(tensor([0, 5])).shape == (0, 5)


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        (tensor([2], raw_data=b"\0" * 4), "raw_data size (4 bytes) does not match"),
        (tensor([2], raw_data=b"\0" * 12), "raw_data size (12 bytes) does not match"),
        (tensor([2], float_data=[1.0]), "data field count (1) does not match expected count from shape (2)"),
        (tensor([2], int64_data=[1, 2]), "data field count (0) does not match"),
        (tensor([-2], float_data=[1.0, 2.0]), "Out of bounds dimensions"),
        (tensor([2**40, 2**40], float_data=[1.0]), "larger than any memory"),
        (tensor([2**40], float_data=[1.0]), "data field count (1) does not match"),
        (tensor([2], 0, float_data=[1.0, 2.0]), "does not have type information"),
        (tensor([2], 99, float_data=[1.0, 2.0]), "does not have valid data type"),
    ],
)
def test_bad_tensors_are_refused_as_onnxruntime_does(weights: onnx.TensorProto, text: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    data = adding(weights).SerializeToString()
    with pytest.raises(errors.Fail) as caught:
        load_model(data)
    assert text in str(caught.value)
    with pytest.raises(Exception, match="FAIL") as theirs:
        ort.InferenceSession(data)
    assert type(theirs.value).__name__ == "Fail"


def test_more_dimensions_than_numpy_has() -> None:
    with pytest.raises(errors.Fail, match="65 dimensions"):
        load_model(adding(tensor([1] * 65, float_data=[1.0])))


def test_sparse_initializers_become_dense() -> None:
    flat = helper.make_sparse_tensor(
        pair("a", (5.0, 6.0)), helper.make_tensor("", TensorProto.INT64, [2], [1, 3]), [2, 2]
    )
    coordinates = helper.make_sparse_tensor(
        pair("b", (7.0, 8.0)), helper.make_tensor("", TensorProto.INT64, [2, 2], [0, 0, 1, 1]), [2, 2]
    )
    proto = model([node("Add", ["a", "b"], ["y"])], (), [info("y", (2, 2))])
    proto.graph.sparse_initializer.extend([flat, coordinates])
    assert run(proto)[0].tolist() == [[7, 5], [0, 14]]


@pytest.mark.parametrize("index", [-1, 4, 2**40])
def test_sparse_indices_outside_of_the_shape(index: int) -> None:
    proto = model([node("Identity", ["a"], ["y"])], (), ["y"])
    indices = helper.make_tensor("", TensorProto.INT64, [2], [0, index])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(pair("a"), indices, [4]))
    with pytest.raises(errors.Fail, match="outside of the shape"):
        load_model(proto)


def test_huge_sparse_tensor_is_refused_before_it_is_made() -> None:
    proto = model([node("Identity", ["a"], ["y"])], (), ["y"])
    indices = helper.make_tensor("", TensorProto.INT64, [2], [0, 1])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(pair("a"), indices, [2**50]))
    with pytest.raises(errors.Fail, match="Failed to allocate memory for requested buffer of size"):
        load_model(proto)


def map_model() -> onnx.ModelProto:
    kind = onnx.TypeProto()
    kind.map_type.key_type = TensorProto.INT64
    kind.map_type.value_type.tensor_type.elem_type = FLOAT
    sequence = onnx.TypeProto()
    sequence.sequence_type.elem_type.CopyFrom(kind)
    zip_map = node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[4, 7])
    cast = node("CastMap", ["m"], ["z"], domain="ai.onnx.ml")
    values = helper.make_value_info("m", kind), helper.make_value_info("y", sequence)
    return model(
        [zip_map, cast], [info("x", (1, 2)), values[0]], [values[1], info("z", (1, 1))], imports=[("ai.onnx.ml", 3)]
    )


def test_map_types_survive_loading_and_saving(tmp_path: Path) -> None:
    loaded = load_model(map_model())
    graph = loaded.model.graph
    assert type_name(graph.inputs[1].type) == "map(int64,tensor(float))"
    assert type_name(graph.outputs[0].type) == "seq(map(int64,tensor(float)))"
    save_model(loaded.model, tmp_path / "maps.onnx")
    saved = onnx.load(tmp_path / "maps.onnx")
    assert saved.graph.input[1].type == map_model().graph.input[1].type
    assert saved.graph.output[0].type.sequence_type.elem_type.map_type.key_type == TensorProto.INT64


def test_initializers_among_the_inputs() -> None:
    proto = model([node("Add", ["x", "w"], ["y"])], ["x", "w"], initializers=[pair("w")], ir_version=3)
    loaded = load_model(proto)
    assert [value.name for value in loaded.model.graph.inputs] == ["x"]
    assert loaded.warnings == ()
    proto.ir_version = 4
    loaded = load_model(proto)
    assert [value.name for value in loaded.model.graph.inputs] == ["x", "w"]
    assert loaded.warnings[0].startswith("Initializer w appears in graph inputs and will not be treated as constant")


def test_duplicate_and_unused_initializers() -> None:
    loaded = load_model(
        model([node("Add", ["x", "w"], ["y"])], initializers=[pair("w"), pair("u"), pair("w", (3.0, 4.0))])
    )
    assert [text.split(":")[0].split(".")[0] for text in loaded.warnings] == [
        "Duplicate initializer (dense, sparse or ConstantNode)",
        "Removing initializer 'u'",
    ]
    assert list(loaded.model.graph.initializers) == ["w"]
    np.testing.assert_array_equal(run(loaded, x=X)[0], [4, 2])


def test_initializer_that_contradicts_its_declaration() -> None:
    for declared, text in (
        (info("w", (3,)), "Shape of initializer w does not match. {3} != {2}"),
        (info("w", (2,), TensorProto.INT64), "Data in initializer 'w' has element type"),
    ):
        with pytest.raises(errors.Fail) as caught:
            load_model(model([node("Add", ["x", "w"], ["y"])], ["x", declared], initializers=[pair("w")]))
        assert text in str(caught.value)


def test_saved_models_load_in_onnxruntime(tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    weights = np.arange(2000, dtype=np.float32)
    proto = model(
        [node("Add", ["x", "w"], ["h"]), node("Mul", ["h", "s"], ["y"])],
        [info("x", (2000,))],
        [info("y", (2000,))],
        [numpy_helper.from_array(weights, "w"), helper.make_tensor("s", FLOAT, [], [2.0])],
    )
    loaded = load_model(proto)
    for external in (None, "weights.bin"):
        path = tmp_path / f"{external}.onnx"
        save_model(loaded.model, path, external)
        assert (path.stat().st_size < 1000) == (external is not None)
        onnx.checker.check_model(str(path))
        (theirs,) = ort.InferenceSession(str(path)).run(None, {"x": weights})
        np.testing.assert_array_equal(theirs, 4 * weights)
        np.testing.assert_array_equal(run(path, x=weights)[0], theirs)
    assert [name for name in os.listdir(tmp_path) if "draft" in name] == []


def test_saving_to_no_folder_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(errors.Fail, match="Saving the model"):
        save_model(load_model(RELU).model, tmp_path / "none" / "model.onnx")


def test_a_configuration_of_devices_without_a_name_is_left_out() -> None:
    """Nothing here uses several devices, and what names no configuration cannot be written again."""
    proto = adding(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    proto.graph.node[0].device_configurations.add()
    assert load_model(proto).model.graph[0].device_configurations == ()

"""Models made ready for QNN: what is fused, and that they compute the same here and in ONNX Runtime."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from sardonyx import errors
from sardonyx.quantization.execution_providers.qnn import qnn_preprocess_model
from sardonyx.quantization.refusal import InvalidQuantization
from tests.quantization.quantizing import run, run_peer


def parsed(text: str, constants: Mapping[str, Any] | None = None, opset: int = 17) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')
    for name, value in (constants or {}).items():
        array = np.asarray(value)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def gelu(opset: int = 17) -> onnx.ModelProto:
    text = """g (float[2,4] x) => (float[2,3] z) { [a] d = Div(x, root)  [b] e = Erf(d)  [c] p = Add(e, one)
    [h] q = Mul(x, p)  [k] y = Mul(q, half)  [m] z = MatMul(y, w) }"""
    weight = np.random.default_rng(2).normal(size=(4, 3))
    return parsed(text, {"root": np.sqrt(2.0), "one": 1.0, "half": 0.5, "w": weight}, opset)


def norm(opset: int = 17) -> onnx.ModelProto:
    text = """g (float[2,3,4] x) => (float[2,3,4] z) { [a] m = ReduceMean<axes=[-1]>(x)  [b] d = Sub(x, m)
    [c] q = Pow(d, two)  [d] v = ReduceMean<axes=[-1]>(q)  [e] w = Add(v, eps)  [f] s = Sqrt(w)  [g1] n = Div(d, s)
    [h] y = Mul(n, g)  [i] z = Add(y, b) }"""
    return parsed(text, {"two": 2.0, "eps": 1e-5, "g": np.ones(4), "b": np.ones(4)}, opset)


def length(least: float = 1e-12, axis: int = -1, expands: bool = True) -> onnx.ModelProto:
    rest = "[sh] s = Shape(x)  [e] k = Expand(m, s)  [v] z = Div(x, k)" if expands else "[v] z = Div(x, m)"
    text = f"""g (float[2,3,4] x) => (float[2,3,4] z) {{
    [r] n = ReduceL2<keepdims=1>(x, ax)  [c] m = Clip(n, least)  {rest} }}"""
    return parsed(text, {"least": least, "ax": np.array([axis])}, 18)


def blocks(size: int, channels: int, height: int, width: int, short: bool = False, order: str = "") -> onnx.ModelProto:
    h, w, square = height // size, width // size, size * size
    shapes = {"s1": [1, channels, h, size, w, size], "s4": [1, channels * square, h, w]}
    if short:
        middle = f"[b] f = Transpose<perm=[{order or '0,3,5,1,2,4'}]>(a)"
    else:
        middle = """[b] b = Transpose<perm=[0,1,2,4,3,5]>(a)  [c] c = Reshape(b, s2)
        [d] d = Transpose<perm=[0,1,3,2]>(c)  [e] e = Reshape(d, s3)  [f] f = Transpose<perm=[0,2,1,3,4]>(e)"""
        shapes |= {"s2": [1, channels, h * w, square], "s3": [1, channels, square, h, w]}
    text = f"""g (float[1,{channels},{height},{width}] x) => (float[1,{channels * square},{h},{w}] z) {{
    [a] a = Reshape(x, s1)  {middle}  [g1] z = Reshape(f, s4) }}"""
    return parsed(text, {name: np.array(shape) for name, shape in shapes.items()})


IMAGE = parsed("g (float[N,3,4,5] x) => (float[N,3,4,5] z) { [a] y = Relu(x)  [b] z = Neg(y) }")


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def check_same(model: onnx.ModelProto, path: Path, **turned: tuple[int, ...]) -> None:
    """The written model computes what the model computes, here and in ONNX Runtime."""
    rng = np.random.default_rng(3)
    shapes = {one.name: [dim.dim_value or 2 for dim in one.type.tensor_type.shape.dim] for one in model.graph.input}
    feeds = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    written = onnx.load(path)
    onnx.checker.check_model(written)
    others = {name: one.transpose(turned.get(name, range(one.ndim))) for name, one in feeds.items()}
    for engine in (run, run_peer):
        (expected,), (found,) = engine(model, feeds), engine(written, others)
        np.testing.assert_allclose(found, expected.transpose(turned.get("z", range(expected.ndim))), atol=2e-6)


@pytest.mark.parametrize(
    ("model", "asked", "found"),
    [
        (gelu(), {}, ["Gelu", "MatMul"]),
        (gelu(20), {}, ["Gelu", "MatMul"]),
        (norm(), {"fuse_layernorm": True}, ["LayerNormalization"]),
        (length(), {}, ["LpNormalization"]),
        (length(axis=2), {}, ["LpNormalization"]),
        (length(expands=False), {}, ["LpNormalization"]),
        (blocks(2, 2, 4, 6), {}, ["SpaceToDepth"]),
        (blocks(3, 3, 9, 9), {}, ["SpaceToDepth"]),
        (blocks(2, 3, 8, 4, short=True), {}, ["SpaceToDepth"]),
    ],
)
def test_fusions(model: onnx.ModelProto, asked: dict[str, Any], found: list[str], tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    assert qnn_preprocess_model(model, path, **asked) is True
    assert operators(path) == found
    check_same(model, path)


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        (IMAGE, {}),
        (norm(), {}),
        (norm(16), {"fuse_layernorm": True}),
        (length(least=1e-6), {}),
        (length(least=0.0), {}),
        (length(axis=1), {}),
        (blocks(2, 3, 8, 4, short=True, order="0,1,3,5,2,4"), {}),
        (IMAGE, {"exclude_initializer_from_input": True}),
    ],
)
def test_nothing_is_written_where_there_is_nothing_to_do(
    model: onnx.ModelProto, asked: dict[str, Any], tmp_path: Path
) -> None:
    assert qnn_preprocess_model(model, tmp_path / "model.onnx", **asked) is False
    assert os.listdir(tmp_path) == []


def test_weights_of_the_same_contents_stay_apart(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    qnn_preprocess_model(norm(), path, fuse_layernorm=True)
    (node,) = onnx.load(path).graph.node
    assert list(node.input) == ["x", "g", "b"]


def test_channels_come_last(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    asked = {"inputs_to_make_channel_last": ["x"], "outputs_to_make_channel_last": ["z"]}
    assert qnn_preprocess_model(IMAGE, str(path), **asked) is True
    graph = onnx.load(path).graph
    for value in (graph.input[0], graph.output[0]):
        assert [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim] == ["N", 4, 5, 3]
    assert [node.name for node in graph.node] == ["Transpose_channel_0", "a", "b", "Transpose_channel_1"]
    assert graph.node[1].input[0] == "x_channel_first_0"
    assert graph.node[3].input[0] == "z_channel_first_0"
    check_same(IMAGE, path, x=(0, 2, 3, 1), z=(0, 2, 3, 1))


def test_an_output_that_is_read_inside_is_turned_too(tmp_path: Path) -> None:
    model = parsed("g (float[1,3,4,5] x) => (float[1,3,4,5] z) { [a] y = Relu(x)  [b] z = Neg(y) }")
    model.graph.output.append(onnx.helper.make_tensor_value_info("y", 1, [1, 3, 4, 5]))
    path = tmp_path / "model.onnx"
    qnn_preprocess_model(model, path, outputs_to_make_channel_last=["y"])
    feeds = {"x": np.random.default_rng(1).normal(size=(1, 3, 4, 5)).astype(np.float32)}
    for engine in (run, run_peer):
        z, y = engine(onnx.load(path), feeds)
        np.testing.assert_array_equal(z, -np.maximum(feeds["x"], 0))
        np.testing.assert_array_equal(y, np.maximum(feeds["x"], 0).transpose(0, 2, 3, 1))


def test_sizes_of_inputs(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    assert qnn_preprocess_model(IMAGE, path, dynamic_input_shapes=[("x", "2,3,4,5")]) is True
    graph = onnx.load(path).graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        assert [dim.dim_value for dim in value.type.tensor_type.shape.dim] == [2, 3, 4, 5]
    check_same(IMAGE, path)


def test_nodes_get_names(tmp_path: Path) -> None:
    model = parsed("g (float[2,4] x) => (float[2,4] z) { [qnn_preproc_node_0] y = Relu(x)  z = Neg(y) }")
    path = tmp_path / "model.onnx"
    assert qnn_preprocess_model(model, path) is True
    assert [node.name for node in onnx.load(path).graph.node] == ["qnn_preproc_node_0", "qnn_preproc_node_1"]


def test_weights_leave_the_inputs(tmp_path: Path) -> None:
    model = gelu()
    model.graph.input.append(onnx.helper.make_tensor_value_info("one", 1, []))
    path = tmp_path / "model.onnx"
    assert qnn_preprocess_model(model, path) is False  # a caller may give another number
    assert qnn_preprocess_model(model, path, exclude_initializer_from_input=True) is True
    assert [value.name for value in onnx.load(path).graph.input] == ["x"]
    assert operators(path) == ["Gelu", "MatMul"]


@pytest.mark.parametrize(
    ("asked", "files"),
    [
        ({}, ["m.onnx"]),
        ({"save_as_external_data": True}, ["m.onnx"]),  # all are small
        ({"save_as_external_data": True, "external_data_size_threshold": 0}, ["m.onnx", "w"]),
        (
            {"save_as_external_data": True, "external_data_size_threshold": 16, "all_tensors_to_one_file": True},
            ["m.onnx", "m.onnx.data"],
        ),
        (
            {"save_as_external_data": True, "external_data_size_threshold": 16, "external_data_location": "w.bin"},
            ["m.onnx", "w.bin"],
        ),
        (
            {
                "save_as_external_data": True,
                "external_data_size_threshold": 16,
                "all_tensors_to_one_file": True,
                "external_data_convert_attribute": True,
            },
            ["m.onnx", "m.onnx.data"],
        ),
    ],
)
def test_where_weights_go(asked: dict[str, Any], files: list[str], tmp_path: Path) -> None:
    source = tmp_path / "source.onnx"
    onnx.save(gelu(), source)
    out = tmp_path / "out"
    out.mkdir()
    assert qnn_preprocess_model(source, out / "m.onnx", **asked) is True
    assert sorted(os.listdir(out)) == files
    check_same(gelu(), out / "m.onnx")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"inputs_to_make_channel_last": ["y"]}, "the model has no input 'y'. It has x"),
        ({"outputs_to_make_channel_last": ["y"]}, "the model has no output 'y'. It has z"),
        ({"dynamic_input_shapes": [("q", "1")]}, "the model has no input 'q'"),
        ({"dynamic_input_shapes": [("x", "2,3,4")]}, "has 4 dimensions, and 3 sizes are given"),
        ({"dynamic_input_shapes": [("x", "2,3,4,6")]}, "has size 5 in dimension 3, and 6 is given"),
        ({"dynamic_input_shapes": [("x", "a,3,4,5")]}, "must be whole numbers above 0"),
        ({"dynamic_input_shapes": ["x"]}, "must be pairs of a name and its sizes"),
        (
            {
                "inputs_to_make_channel_last": ["x"],
                "save_as_external_data": True,
                "external_data_location": "w.bin",
                "external_data_convert_attribute": True,
            },
            "leave it or external_data_convert_attribute out",
        ),
    ],
)
def test_refusals(asked: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidQuantization, match=told):
        qnn_preprocess_model(IMAGE, tmp_path / "model.onnx", **asked)
    assert os.listdir(tmp_path) == []


def test_other_refusals(tmp_path: Path) -> None:
    with pytest.raises(InvalidQuantization, match="must be a path or a ModelProto, not int"):
        qnn_preprocess_model(3, tmp_path / "model.onnx")
    with pytest.raises(errors.NoSuchFile):
        qnn_preprocess_model(tmp_path / "nope.onnx", tmp_path / "model.onnx")
    with pytest.raises(errors.Fail, match="Saving the model"):
        qnn_preprocess_model(gelu(), tmp_path / "nope" / "model.onnx")
    flat = parsed("g (float[3,4] x) => (float[3,4] z) { [a] z = Relu(x) }")
    with pytest.raises(InvalidQuantization, match="at least 3 are needed"):
        qnn_preprocess_model(flat, tmp_path / "model.onnx", inputs_to_make_channel_last=["x"])

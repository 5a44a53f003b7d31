"""Sessions of operators that move data: the native steps among each other, and errors that data causes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as ort
from sardonyx import errors

Array = np.ndarray[Any, Any]


def session(nodes: list[Any], inputs: dict[str, tuple[int, list[Any]]], outputs: list[str], **constants: Array) -> Any:
    """A session of nodes; the element types and shapes of the outputs are inferred."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def test_an_index_out_of_bounds_is_the_error_of_its_node() -> None:
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"], name="lookup", axis=1)]
    found = session(nodes, {"x": (FLOAT, ["n", 5]), "i": (INT64, ["k"])}, ["y"])
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    for _ in range(2):
        (y,) = found.run(None, {"x": x, "i": np.array([4, -5, 2])})
        np.testing.assert_array_equal(y, x[:, [4, 0, 2]])
        with pytest.raises(errors.InvalidArgument, match=r"lookup.*idx=5 must be within the inclusive range \[-5,4\]"):
            found.run(None, {"x": x, "i": np.array([1, 5])})


def test_heads_of_attention_are_moved_and_joined() -> None:
    """Split, reshape, transpose, join with a cache, and back: what decoders do around their attention."""
    nodes = [
        helper.make_node("Split", ["x"], ["q", "k", "v"], axis=2, num_outputs=3),
        helper.make_node("Reshape", ["k", "heads"], ["k4"]),
        helper.make_node("Transpose", ["k4"], ["kt"], perm=[0, 2, 1, 3]),
        helper.make_node("Concat", ["past", "kt"], ["present"], axis=2),
        helper.make_node("Transpose", ["present"], ["back"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["back", "flat"], ["joined"]),
        helper.make_node("Add", ["q", "v"], ["sum"]),
    ]
    inputs: dict[str, tuple[int, list[Any]]] = {
        "x": (FLOAT, ["b", "s", 3 * 4 * 8]),
        "past": (FLOAT, ["b", 4, "p", 8]),
    }
    heads, flat = np.array([0, 0, 4, 8]), np.array([0, 0, -1])
    found = session(nodes, inputs, ["present", "joined", "sum"], heads=heads, flat=flat)
    rng = np.random.default_rng(5)
    for b, s, p in [(1, 1, 7), (2, 5, 0), (3, 4, 33)]:
        x, past = rng.random((b, s, 96), np.float32), rng.random((b, 4, p, 8), np.float32)
        present, joined, total = found.run(None, {"x": x, "past": past})
        keys = x[:, :, 32:64].reshape(b, s, 4, 8).transpose(0, 2, 1, 3)
        expected = np.concatenate([past, keys], 2)
        np.testing.assert_array_equal(present, expected)
        np.testing.assert_array_equal(joined, expected.transpose(0, 2, 1, 3).reshape(b, p + s, 32))
        np.testing.assert_array_equal(total, x[:, :, :32] + x[:, :, 64:])


def test_features_are_computed_where_their_concatenation_lies() -> None:
    """Dense connections: each stage reads the concatenation of all before it, which is an output as well."""
    nodes, names = [], ["x"]
    for stage in range(4):
        joined = names[0] if stage == 0 else f"joined{stage}"
        nodes.append(helper.make_node("ReduceMax", [joined, "axes"], [f"new{stage}"], keepdims=1))
        nodes.append(helper.make_node("Sigmoid", [f"new{stage}"], [f"on{stage}"]))
        names.append(f"on{stage}")
        nodes.append(helper.make_node("Concat", [*names], [f"joined{stage + 1}"], axis=1))
    outputs = [f"joined{stage + 1}" for stage in range(4)] + ["on2"]
    found = session(nodes, {"x": (FLOAT, ["n", "c", 4, 8])}, outputs, axes=np.array([1]))
    for n in (1, 2):
        x = np.random.default_rng(5).random((n, 3, 4, 8), np.float32)
        results = found.run(None, {"x": x})
        joined = x
        for stage in range(4):
            new = 1 / (1 + np.exp(-joined.max(1, keepdims=True)))
            joined = np.concatenate([joined, new], 1)
            np.testing.assert_allclose(results[stage], joined, rtol=1e-6)
        np.testing.assert_array_equal(results[4], results[2][:, 5:6])


def test_padding_and_blocks_in_a_row() -> None:
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["padded"], mode="reflect"),
        helper.make_node("DepthToSpace", ["padded"], ["image"], blocksize=2, mode="CRD"),
        helper.make_node("Slice", ["image", "start", "end", "axes", "steps"], ["turned"]),
        helper.make_node("Tile", ["turned", "repeats"], ["y"]),
        helper.make_node("SpaceToDepth", ["y"], ["z"], blocksize=2),
    ]
    constants = {
        "pads": np.array([0, 0, 1, 2, 0, 0, 1, 0]),
        "start": np.array([-1, 0]),
        "end": np.array([-1000, 1000]),
        "axes": np.array([2, 3]),
        "steps": np.array([-1, 2]),
        "repeats": np.array([1, 1, 1, 2]),
    }
    found = session(nodes, {"x": (FLOAT, ["n", 8, "h", "w"])}, ["y", "z"], **constants)
    for n, h, w in [(1, 3, 4), (2, 9, 20)]:
        x = np.random.default_rng(5).random((n, 8, h, w), np.float32)
        y, z = found.run(None, {"x": x})
        padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (2, 0)], "reflect")
        height, width = padded.shape[2:]
        image = padded.reshape(n, 2, 2, 2, height, width).transpose(0, 1, 4, 2, 5, 3)
        image = image.reshape(n, 2, 2 * height, 2 * width)
        expected = np.tile(image[:, :, ::-1, ::2], (1, 1, 1, 2))
        np.testing.assert_array_equal(y, expected)
        rows, columns = expected.shape[2] // 2, expected.shape[3] // 2
        blocks = expected.reshape(n, 2, rows, 2, columns, 2).transpose(0, 3, 5, 1, 2, 4)
        np.testing.assert_array_equal(z, blocks.reshape(n, 8, rows, columns))


def test_a_diagonal_follows_from_a_shape() -> None:
    nodes = [
        helper.make_node("EyeLike", ["x"], ["diagonal"], k=1),
        helper.make_node("Add", ["x", "diagonal"], ["y"]),
    ]
    found = session(nodes, {"x": (FLOAT, ["n", "m"])}, ["y"])
    for shape in [(3, 5), (4, 2), (0, 3)]:
        x = np.random.default_rng(5).random(shape, np.float32)
        np.testing.assert_array_equal(found.run(None, {"x": x})[0], x + np.eye(*shape, k=1, dtype=np.float32))

"""Dimensions that a model calls by one name, fed with different sizes: the results are those of the sizes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sardonyx as ort
from sardonyx import errors
from sardonyx.api.building.shared_symbols import SharedSymbols


def built(
    nodes: Sequence[Any], inputs: dict[str, Sequence[Any]], outputs: Sequence[str], values: Sequence[Any] = ()
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        value_info=list(values),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def agree_with_onnxruntime(model: bytes, feeds: dict[str, np.ndarray]) -> None:
    peer = pytest.importorskip("onnxruntime")
    options = peer.SessionOptions()
    options.log_severity_level = 4
    expected = peer.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, feeds)
    session = ort.InferenceSession(model)
    for _ in range(4):  # later runs may take shorter ways
        for found, wanted in zip(session.run(None, feeds), expected, strict=True):
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


SQUARE = built(
    [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Reshape", ["t", "s"], ["r"]),
        helper.make_node("MatMul", ["x", "t"], ["y"]),
        helper.make_node("Relu", ["r"], ["z"]),
    ],
    {"x": ["N", "N"]},
    ["y", "z"],
)
BROADCAST = built(
    [
        helper.make_node("Add", ["a", "b"], ["t"]),
        helper.make_node("Mul", ["t", "c"], ["u"]),
        helper.make_node("Sub", ["u", "a"], ["v"]),
    ],
    {"a": ["N", 4], "b": ["N", 4], "c": ["N", 4]},
    ["t", "u", "v"],
)
PRODUCT = built(
    [helper.make_node("MatMul", ["a", "b"], ["p"]), helper.make_node("Add", ["p", "c"], ["y"])],
    {"a": ["N", "K"], "b": ["K", "M"], "c": ["N", "M"]},
    ["y"],
)


@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (1, 5), (4, 4)])
def test_an_input_that_should_be_square(shape: tuple[int, int]) -> None:
    agree_with_onnxruntime(SQUARE, {"x": numbers(*shape)})


@pytest.mark.parametrize("rows", [(1, 1, 3), (3, 1, 1), (1, 3, 1), (1, 3, 3), (3, 3, 3)])
def test_inputs_that_broadcast(rows: tuple[int, int, int]) -> None:
    agree_with_onnxruntime(BROADCAST, {name: numbers(size, 4) for name, size in zip("abc", rows, strict=True)})


@pytest.mark.parametrize("addend", [(1, 1), (1, 5), (2, 1), (2, 5)])
def test_an_addend_of_a_product(addend: tuple[int, int]) -> None:
    agree_with_onnxruntime(PRODUCT, {"a": numbers(2, 3), "b": numbers(3, 5), "c": numbers(*addend)})


def test_sizes_that_no_operator_takes_are_the_error_of_the_node() -> None:
    session = ort.InferenceSession(PRODUCT)
    for _ in range(2):
        with pytest.raises(errors.OnnxRuntimeError, match=r"MatMul|Add"):
            session.run(None, {"a": numbers(2, 3), "b": numbers(4, 5), "c": numbers(2, 5)})


def test_feeds_may_agree_and_contradict_in_turns() -> None:
    session = ort.InferenceSession(BROADCAST)
    for rows in ((3, 3, 3), (1, 1, 3), (3, 3, 3), (3, 3, 3), (3, 1, 1), (3, 3, 3)) * 2:
        a, b, c = (numbers(size, 4) for size in rows)
        t, u, v = session.run(None, {"a": a, "b": b, "c": c})
        np.testing.assert_allclose(t, a + b, rtol=1e-6)
        np.testing.assert_allclose(u, (a + b) * c, rtol=1e-6)
        np.testing.assert_allclose(v, (a + b) * c - a, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(session.run(["t"], {"a": a, "b": b, "c": c})[0], t)


def test_bound_memory() -> None:
    session = ort.InferenceSession(BROADCAST)
    binding = session.io_binding()
    for name, size in zip("abc", (1, 1, 3), strict=True):
        binding.bind_cpu_input(name, numbers(size, 4))
    for name in "tuv":
        binding.bind_output(name)
    for _ in range(3):
        session.run_with_iobinding(binding)
        assert [array.shape for array in binding.copy_outputs_to_cpu()] == [(1, 4), (3, 4), (3, 4)]


def test_names_inside_the_model_do_not_count_then() -> None:
    """The declared shapes of values between the nodes use the same name."""
    declared = [helper.make_tensor_value_info("r", TensorProto.FLOAT, ["N", "N"])]
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Reshape", ["x", "s"], ["r"]),
        helper.make_node("Transpose", ["r"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["r", "t"], ["y"]),
    ]
    agree_with_onnxruntime(built(nodes, {"x": ["N", "N"]}, ["y"], declared), {"x": numbers(2, 5)})


def test_a_model_that_is_gone_is_told(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.load_from_string(BROADCAST), path)
    session = ort.InferenceSession(path)
    os.remove(path)
    feeds = {name: numbers(size, 4) for name, size in zip("abc", (1, 1, 3), strict=True)}
    with pytest.raises(errors.InvalidArgument, match=r"'N' is 1 in axis 0 of input 'a' and 3 in axis 0 of input 'c'"):
        session.run(None, feeds)
    same = {name: numbers(3, 4) for name in "abc"}
    np.testing.assert_array_equal(session.run(["t"], same)[0], same["a"] + same["b"])


def test_a_model_that_is_another_one_by_now_is_told(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    nodes = [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)]
    path.write_bytes(built(nodes, {"x": ["n", "n"]}, {"y": []}))
    session = ort.InferenceSession(path)
    path.write_bytes(built([helper.make_node("ReduceMax", ["x"], ["y"], keepdims=0)], {"x": ["n", "n"]}, {"y": []}))
    with pytest.raises(errors.InvalidArgument, match="not the one that was loaded before"):
        session.run(None, {"x": numbers(2, 3)})


def test_expressions_over_names() -> None:
    shared = SharedSymbols([("x", ["b", "past"]), ("mask", ["b", "past + 1"]), ("other", [None, 3])])
    arrays = [np.zeros((2, 4)), np.zeros((2, 5)), np.zeros((7, 3))]
    assert shared.contradiction(arrays) is None
    arrays[1] = np.zeros((2, 6))
    assert str(shared.contradiction(arrays)) == (
        "the dimension 'past + 1' is 6 in axis 1 of input 'mask' and 5 by 'past' 4"
    )
    arrays[1] = np.zeros((3, 5))
    assert "'b' is 2 in axis 0 of input 'x' and 3 in axis 0 of input 'mask'" in str(shared.contradiction(arrays))
    assert shared.contradiction([None, [], arrays[2]]) is None


@pytest.mark.parametrize("from_bytes", [False, True])
@pytest.mark.parametrize("entry", ["", "sub"])
def test_the_model_is_found_again_in_whatever_folder_the_process_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_bytes: bool, entry: str
) -> None:
    weights = helper.make_tensor("w", TensorProto.FLOAT, [4], numbers(4).tobytes(), raw=True)
    model = onnx.load_from_string(
        built([helper.make_node("Sum", ["x", "z", "w"], ["y"])], {"x": ["N"], "z": ["N"]}, ["y"])
    )
    model.graph.initializer.append(weights)
    folder = tmp_path / entry if from_bytes else tmp_path
    folder.mkdir(exist_ok=True)
    (tmp_path / "other").mkdir()
    onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    monkeypatch.chdir(tmp_path)
    options = ort.SessionOptions()
    if entry:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", entry)
    session = ort.InferenceSession((folder / "m.onnx").read_bytes() if from_bytes else "m.onnx", options)
    monkeypatch.chdir(tmp_path / "other")
    (result,) = session.run(None, {"x": numbers(4), "z": numbers(1)})
    np.testing.assert_allclose(result, numbers(4) + numbers(1) + numbers(4), rtol=1e-6)
    with pytest.raises(errors.NoSuchFile if not from_bytes else errors.Fail):  # as in onnxruntime, which reads it anew
        session.set_providers(["CPUExecutionProvider"])

"""SparseToDenseMatMul: a sparse input in either form times a dense one, beside onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import sardonyx as ort

RNG = np.random.default_rng(21)
PLACES = np.array([[0, 1], [0, 4], [2, 0], [3, 3], [3, 4]], np.int64)  # of a matrix of 4 rows and 5 columns
OUTER = np.array([0, 2, 2, 3, 5], np.int64)
SHAPE = [4, 5]


def product(kind: int, **attributes: Any) -> bytes:
    graph = helper.make_graph(
        [helper.make_node("SparseToDenseMatMul", ["a", "b"], ["y"], domain="com.microsoft", **attributes)],
        "product",
        [
            helper.make_sparse_tensor_value_info("a", kind, SHAPE),
            helper.make_tensor_value_info("b", kind, ["k", "n"]),
        ],
        [helper.make_tensor_value_info("y", kind, ["m", "n"])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def sparse(package: Any, values: np.ndarray, form: str) -> Any:
    """The values at their places, as an OrtValue."""
    device = package.OrtDevice.make("cpu", 0)
    if form == "csr":
        tensor = package.SparseTensor.sparse_csr_from_numpy(SHAPE, values, PLACES[:, 1].copy(), OUTER, device)
    else:
        indices = PLACES if form == "pairs" else PLACES[:, 0] * SHAPE[1] + PLACES[:, 1]
        tensor = package.SparseTensor.sparse_coo_from_numpy(SHAPE, values, indices, device)
    return package.OrtValue.ort_value_from_sparse_tensor(tensor)


def result(package: Any, source: bytes, values: np.ndarray, form: str, dense: np.ndarray) -> Any:
    session = package.InferenceSession(source)
    feeds = {"a": sparse(package, values, form), "b": package.OrtValue.ortvalue_from_numpy(dense)}
    (value,) = session.run_with_ort_values(["y"], feeds)
    return value


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("form", ["csr", "pairs", "places"])
@pytest.mark.parametrize("attributes", [{}, {"transB": 1}, {"alpha": 2.0}, {"transA": 1}, {"transA": 1, "transB": 1}])
def test_products(attributes: dict[str, Any], form: str, dtype: type) -> None:
    values = RNG.integers(-9, 9, len(PLACES)).astype(dtype)
    matrix = np.zeros(SHAPE, dtype)
    matrix[PLACES[:, 0], PLACES[:, 1]] = values
    left = matrix.T if attributes.get("transA") else matrix
    dense = RNG.integers(-9, 9, (left.shape[1], 3)).astype(dtype)
    expected = (left @ dense * dtype(attributes.get("alpha", 1))).tolist()
    dense = np.ascontiguousarray(dense.T) if attributes.get("transB") else dense
    source = product(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), **attributes)
    ours = result(ort, source, values, form, dense)
    assert ours.is_tensor()
    assert ours.numpy().dtype == dtype
    assert ours.numpy().tolist() == expected
    if form == "pairs" and (dtype is np.float32 or "alpha" not in attributes):  # which it takes for float32 alone
        peer = pytest.importorskip("onnxruntime")
        assert result(peer, source, values, form, dense).numpy().tolist() == expected


def test_facts_of_the_inputs() -> None:
    peer = pytest.importorskip("onnxruntime")
    source = product(TensorProto.FLOAT)
    ours, theirs = (package.InferenceSession(source).get_inputs()[0] for package in (ort, peer))
    assert (ours.name, ours.type, ours.shape) == (theirs.name, theirs.type, theirs.shape)


@pytest.mark.parametrize(
    ("places", "rows", "text"),
    [([[4, 0]], 5, "row outside of"), ([[0, -1]], 5, "column outside of"), ([[0, 0]], 4, "cannot be multiplied")],
)
def test_wrong_values_are_refused(places: list[list[int]], rows: int, text: str) -> None:
    device = ort.OrtDevice.make("cpu", 0)
    one, where = np.ones(len(places), np.float32), np.array(places, np.int64)
    given = ort.OrtValue.ort_value_from_sparse_tensor(ort.SparseTensor.sparse_coo_from_numpy(SHAPE, one, where, device))
    session = ort.InferenceSession(product(TensorProto.FLOAT))
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail, match=text):
        session.run(None, {"a": given, "b": np.ones((rows, 2), np.float32)})


def test_empty_matrices() -> None:
    device = ort.OrtDevice.make("cpu", 0)
    nothing, places = np.zeros(0, np.float32), np.zeros(0, np.int64)
    for tensor in (
        ort.SparseTensor.sparse_coo_from_numpy(SHAPE, nothing, places, device),
        ort.SparseTensor.sparse_csr_from_numpy(SHAPE, nothing, places, places, device),
    ):
        given = ort.OrtValue.ort_value_from_sparse_tensor(tensor)
        session = ort.InferenceSession(product(TensorProto.FLOAT))
        assert session.run(None, {"a": given, "b": np.ones((5, 2), np.float32)})[0].tolist() == [[0, 0]] * 4

"""Operators of ai.onnx.ml against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from tests.ops.one_node import model_of, run

RNG = np.random.default_rng(5)
X = RNG.normal(size=(4, 3)).astype(np.float32)
NAN = X.copy()
NAN[0, 0] = np.nan
TEXT = np.array([["a", "b"], ["c", "zz"]], object)

TREE = {
    "nodes_treeids": [0, 0, 0, 1, 1, 1],
    "nodes_nodeids": [0, 1, 2, 0, 1, 2],
    "nodes_featureids": [0, 0, 0, 1, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_LT", "LEAF", "LEAF"],
    "nodes_values": [0.1, 0.0, 0.0, -0.2, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0, 1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0, 2, 0, 0],
    "nodes_missing_value_tracks_true": [0] * 6,
    "nodes_hitrates": [1.0] * 6,
}
LEAVES = {"treeids": [0, 0, 1, 1], "nodeids": [1, 2, 1, 2]}
REGRESSION = {
    **TREE,
    **{f"target_{key}": value for key, value in LEAVES.items()},
    "target_ids": [0, 0, 0, 0],
    "target_weights": [1.5, -2.0, 0.25, 4.0],
    "n_targets": 1,
}
CLASSIFICATION = {
    **TREE,
    **{f"class_{key}": value for key, value in LEAVES.items()},
    "class_ids": [0, 1, 2, 0],
    "class_weights": [1.0, 0.5, 0.25, 2.0],
    "classlabels_int64s": [10, 20, 30],
}
VECTORS = RNG.normal(size=(3, 3)).astype(np.float32).ravel().tolist()

CASES: list[tuple[str, str, list[Any], int, dict[str, Any]]] = [
    ("array_feature_extractor", "ArrayFeatureExtractor", [X, np.array([2, 0])], 1, {}),
    ("binarizer", "Binarizer", [X], 1, {"threshold": 0.2}),
    ("category_to_int", "CategoryMapper", [TEXT], 1, {"cats_int64s": [1, 2, 3], "cats_strings": ["a", "b", "c"]}),
    (
        "category_to_text",
        "CategoryMapper",
        [np.array([[1, 9]])],
        1,
        {"cats_int64s": [1, 2], "cats_strings": ["a", "b"], "default_string": "none"},
    ),
    ("feature_vectorizer", "FeatureVectorizer", [X, X[:, :2]], 1, {"inputdimensions": [3, 2]}),
    ("imputer", "Imputer", [NAN], 1, {"imputed_value_floats": [9.0], "replaced_value_float": float("nan")}),
    ("label_encoder", "LabelEncoder", [TEXT], 1, {"keys_strings": ["a", "b"], "values_int64s": [7, 8]}),
    ("linear_regressor", "LinearRegressor", [X], 1, {"coefficients": [1.0, -2.0, 0.5], "intercepts": [0.25]}),
    (
        "linear_classifier",
        "LinearClassifier",
        [X],
        2,
        {
            "coefficients": VECTORS,
            "intercepts": [0.1, 0.2, 0.3],
            "classlabels_ints": [4, 5, 6],
            "post_transform": "SOFTMAX",
        },
    ),
    ("normalizer_l1", "Normalizer", [X], 1, {"norm": "L1"}),
    ("normalizer_l2", "Normalizer", [X], 1, {"norm": "L2"}),
    ("normalizer_max", "Normalizer", [np.abs(X)], 1, {"norm": "MAX"}),
    ("one_hot", "OneHotEncoder", [np.array([[1], [3]])], 1, {"cats_int64s": [1, 2, 3]}),
    ("scaler", "Scaler", [X], 1, {"offset": [0.5, 0.0, -1.0], "scale": [2.0, 1.0, 0.5]}),
    ("tree_regressor", "TreeEnsembleRegressor", [X], 1, REGRESSION),
    ("tree_classifier", "TreeEnsembleClassifier", [X], 2, CLASSIFICATION),
    (
        "svm_regressor",
        "SVMRegressor",
        [X],
        1,
        {
            "coefficients": [0.5, -1.0, 0.75],
            "kernel_type": "RBF",
            "kernel_params": [0.3, 0.0, 3.0],
            "n_supports": 3,
            "rho": [0.2],
            "support_vectors": VECTORS,
        },
    ),
    (
        "svm_classifier",
        "SVMClassifier",
        [X],
        2,
        {
            "coefficients": [0.5, -1.0, 0.75],
            "kernel_type": "RBF",
            "kernel_params": [0.3, 0.0, 3.0],
            "rho": [0.2],
            "support_vectors": VECTORS,
            "vectors_per_class": [2, 1],
            "classlabels_ints": [0, 1],
        },
    ),
]


@pytest.mark.parametrize(
    ("op_type", "inputs", "count", "attributes"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_against_onnxruntime(op_type: str, inputs: list[Any], count: int, attributes: dict[str, Any]) -> None:
    ort = pytest.importorskip("onnxruntime")
    feeds = {f"x{index}": value for index, value in enumerate(inputs)}
    outputs = [f"y{index}" for index in range(count)]
    node = helper.make_node(op_type, list(feeds), outputs, domain="ai.onnx.ml", **attributes)
    model = model_of([node], feeds, outputs, domains={"ai.onnx.ml": 3})
    expected = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    found = run(model, feeds)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        if theirs.dtype == object:
            assert ours.tolist() == theirs.tolist()
        else:
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("labels", [{"classlabels_int64s": [3, 1, 2]}, {"classlabels_strings": ["x", "y", "z"]}])
def test_zip_map(labels: dict[str, Any]) -> None:
    ort = pytest.importorskip("onnxruntime")
    key = TensorProto.STRING if "classlabels_strings" in labels else TensorProto.INT64
    element = helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    node = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", **labels)
    model = model_of([node], {"x": X}, ["y"], domains={"ai.onnx.ml": 3})
    model.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(element))
    expected = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": X})
    assert run(model, {"x": X}) == expected


@pytest.mark.parametrize("count", [1, 2, 3, 5, 15, 16, 40])
def test_zip_map_of_any_number_of_classes(count: int) -> None:
    from sardonyx.ops.ml.maps import ZipMap

    labels = [f"class {place}" for place in range(count)]
    node = ir.node("ZipMap", [], {"classlabels_strings": labels}, domain="ai.onnx.ml")
    scores = np.arange(4 * count, dtype=np.float32).reshape(4, count)
    for rows in (scores, scores[:0]):
        expected = [dict(zip(labels, row, strict=True)) for row in rows.tolist()]
        assert ZipMap(node, 1).run(rows) == (expected,)
    assert ZipMap(node, 1).run(scores[1]) == ([dict(zip(labels, scores[1].tolist(), strict=True))],)


def test_maps_to_rows() -> None:
    from sardonyx.ops.ml.maps import CastMap, DictVectorizer

    node = ir.node("DictVectorizer", [], {"string_vocabulary": ["a", "b", "c"]}, domain="ai.onnx.ml")
    assert DictVectorizer(node, 1).run({"c": 2.5, "a": 1.0})[0].tolist() == [[1.0, 0.0, 2.5]]
    node = ir.node("CastMap", [], {"map_form": "SPARSE", "max_map": 4}, domain="ai.onnx.ml")
    assert CastMap(node, 1).run({3: "1.5", 0: "2"})[0].tolist() == [[2.0, 0.0, 0.0, 1.5]]
    node = ir.node("CastMap", [], {"cast_to": "TO_INT64"}, domain="ai.onnx.ml")
    assert CastMap(node, 1).run({7: 3.0, 2: 1.0})[0].tolist() == [[1, 3]]


@pytest.mark.parametrize("form", ["DENSE", "SPARSE"])
@pytest.mark.parametrize("kind", ["TO_FLOAT", "TO_INT64", "TO_STRING"])
@pytest.mark.parametrize(
    "given",
    [
        {0: 1.5, 2: -2.7},
        {5: 1.0},
        {1: 2.0, 9: 3.0},
        {2: 1e10, 1: float("nan")},
        {1: 1e-7},
        {0: float("inf")},
        {-1: 1.0},
    ],
    ids=str,
)
def test_cast_map_of_numbers_is_that_of_onnxruntime(form: str, kind: str, given: dict[int, float]) -> None:
    import sardonyx
    from sardonyx import errors

    ort = pytest.importorskip("onnxruntime")
    made = {"TO_FLOAT": TensorProto.FLOAT, "TO_INT64": TensorProto.INT64, "TO_STRING": TensorProto.STRING}[kind]
    numbers = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    graph = helper.make_graph(
        [helper.make_node("CastMap", ["m"], ["y"], domain="ai.onnx.ml", cast_to=kind, map_form=form, max_map=3)],
        "g",
        [helper.make_value_info("m", numbers)],
        [helper.make_tensor_value_info("y", made, [1, None])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    ours = sardonyx.InferenceSession(model)
    theirs = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    if form == "SPARSE" and min(given) < 0:
        with pytest.raises(errors.Fail):
            ours.run(None, {"m": given})
        with pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail):
            theirs.run(None, {"m": given})
        return
    found, expected = ours.run(None, {"m": given})[0], theirs.run(None, {"m": given})[0]
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)

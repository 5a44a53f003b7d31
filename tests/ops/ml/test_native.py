"""Classic models in native code: which nodes they cover, and their results beside NumPy's and onnxruntime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

import sardonyx
from sardonyx.compiler.kernels.template import find_template
from sardonyx.kernel.program import Template
from sardonyx.ops.framework.registry import operator_of
from tests.compiler.steps import VARIANTS, outputs_of
from tests.ops.ml.test_trees import Grown
from tests.ops.peer import node_model

DOMAIN = "ai.onnx.ml"
RNG = np.random.default_rng(31)
X = RNG.normal(size=(19, 3)).astype(np.float32)
INTEGERS = RNG.integers(-2, 6, (7, 5))
SPECIAL = np.array([[1.0, np.nan, 2.0], [np.inf, 0.0, -1.0]], np.float32)

CASES: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("Scaler", [X], {"offset": [1.0, 2.0, 3.0], "scale": [0.5, 2.0, 1.0]}),
    ("Scaler", [INTEGERS], {"offset": [1.0], "scale": [0.5]}),
    ("Scaler", [X.astype(np.float16)], {"offset": [1.0], "scale": [0.5]}),
    *(("Normalizer", [data], {"norm": norm}) for norm in ("MAX", "L1", "L2") for data in (X, X[0], X[:0])),
    ("Binarizer", [X], {"threshold": 0.2}),
    ("Binarizer", [SPECIAL.astype(np.float64)], {"threshold": 0.2}),
    ("Imputer", [SPECIAL], {"imputed_value_floats": [9.0, 8.0, 7.0], "replaced_value_float": float("nan")}),
    ("Imputer", [INTEGERS], {"imputed_value_int64s": [9], "replaced_value_int64": 2}),
    ("OneHotEncoder", [INTEGERS], {"cats_int64s": [0, 3, 5]}),
    ("OneHotEncoder", [SPECIAL], {"cats_int64s": [0, 2, -1]}),
    ("FeatureVectorizer", [X, INTEGERS[:1].repeat(19, 0)], {"inputdimensions": [5, 2]}),
    ("ArrayFeatureExtractor", [X, np.array([2, 0])], {}),
    ("ArrayFeatureExtractor", [X[0], np.array([[1, 1]])], {}),
    ("LabelEncoder", [INTEGERS], {"keys_int64s": [4, -1, 2, 4], "values_floats": [0.5, 1.5, 2.5, 9.0]}),
    ("LabelEncoder", [SPECIAL], {"keys_floats": [1.0, float("nan"), -1.0], "values_int64s": [7, 8, 9]}),
    ("LinearRegressor", [X], {"coefficients": [1.0, 2.0, 3.0], "intercepts": [0.5]}),
    ("SVMRegressor", [X], {
        "kernel_type": "RBF", "kernel_params": [0.5, 0.0, 3.0], "coefficients": [1.0, -2.0], "rho": [0.25],
        "n_supports": 2, "support_vectors": [0.1, 0.2, 0.3, -1.0, 1.0, 0.5],
    }),
]  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_kernels_give_what_numpy_does(case: int, variant: str) -> None:
    op_type, arrays, attributes = CASES[case]
    version = 4 if op_type == "LabelEncoder" else 3
    model = node_model(op_type, arrays, 1, 21, DOMAIN, version, attributes)
    node = next(iter(ir.from_proto(model).graph))
    node.version = version
    operator = operator_of(node)
    kernel = operator.lower([array.dtype for array in arrays])
    assert isinstance(kernel, Template)
    native = find_template(kernel.name)
    assert native is not None
    (want,) = operator.run(*arrays)
    (found,) = outputs_of(native(kernel.parameters), arrays, variant, one_by_one=True)
    assert found.dtype == want.dtype
    assert found.shape == want.shape
    np.testing.assert_allclose(found, want, rtol=2e-5, atol=2e-6)


def pipeline(classifier: onnx.NodeProto, labels: dict[str, Any]) -> onnx.ModelProto:
    """Imputer, Scaler, a classifier and ZipMap, as exporters of pipelines write them."""
    nodes = [
        helper.make_node("Imputer", ["x"], ["i"], domain=DOMAIN, imputed_value_floats=[0.5],
                         replaced_value_float=float("nan")),
        helper.make_node("Scaler", ["i"], ["s"], domain=DOMAIN, offset=[0.1] * 5, scale=[2.0] * 5),
        classifier,
        helper.make_node("ZipMap", ["p"], ["z"], domain=DOMAIN, **labels),
    ]  # fmt: skip
    text = "classlabels_strings" in labels
    kind = onnx.TensorProto.STRING if text else onnx.TensorProto.INT64
    maps = helper.make_map_type_proto(kind, helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None))
    graph = helper.make_graph(
        nodes,
        "pipeline",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 5])],
        [
            helper.make_tensor_value_info("l", kind, ["n"]),
            helper.make_tensor_value_info("p", onnx.TensorProto.FLOAT, ["n", 3]),
            helper.make_value_info("z", helper.make_sequence_type_proto(maps)),
        ],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 3)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def classifiers() -> dict[str, tuple[onnx.NodeProto, dict[str, Any]]]:
    rng = np.random.default_rng(4)
    forest = Grown(3, trees=12)
    weights = {"coefficients": rng.normal(size=15).tolist(), "intercepts": [0.1, 0.2, 0.3]}
    trees = {**forest.attributes("class", [0, 1, 2]), "post_transform": "SOFTMAX"}
    vectors = {
        "kernel_type": "RBF", "kernel_params": [0.3, 0.0, 3.0], "vectors_per_class": [2, 1, 2], "rho": [0.1, 0.2, -0.1],
        "coefficients": rng.normal(size=10).tolist(), "support_vectors": rng.normal(size=25).tolist(),
    }  # fmt: skip
    numbers, texts = [10, 20, 30], ["a", "b", "c"]
    named = {
        "linear": ("LinearClassifier", {**weights, "post_transform": "SOFTMAX"}, "classlabels_ints"),
        "trees": ("TreeEnsembleClassifier", trees, "classlabels_int64s"),
        "vectors": ("SVMClassifier", vectors, "classlabels_ints"),
    }
    made = {}
    for name, (op_type, attributes, field) in named.items():
        for kind, labels in ((field, numbers), ("classlabels_strings", texts)):
            node = helper.make_node(op_type, ["s"], ["l", "p"], domain=DOMAIN, **{**attributes, kind: labels})
            zipped = {"classlabels_strings": labels} if labels is texts else {"classlabels_int64s": labels}
            made[f"{name}, {'strings' if labels is texts else 'numbers'}"] = node, zipped
    return made


@pytest.mark.parametrize("variant", VARIANTS)
def test_coupled_probabilities(variant: str) -> None:
    """Rows stop in different rounds, each as it does in NumPy."""
    classes, features, each = 5, 4, 3
    pairs = classes * (classes - 1) // 2
    rng = np.random.default_rng(12)
    attributes = {
        "kernel_type": "RBF", "kernel_params": [0.4, 0.0, 3.0], "classlabels_ints": list(range(classes)),
        "vectors_per_class": [each] * classes, "support_vectors": rng.normal(size=classes * each * features).tolist(),
        "coefficients": rng.normal(size=(classes - 1) * classes * each).tolist(),
        "rho": rng.normal(size=pairs).tolist(), "prob_a": (-1 - rng.random(pairs)).tolist(),
        "prob_b": rng.normal(size=pairs).tolist(),
    }  # fmt: skip
    rows = rng.normal(size=(200, features)).astype(np.float32)
    node = next(iter(ir.from_proto(node_model("SVMClassifier", [rows], 2, 21, DOMAIN, 3, attributes)).graph))
    node.version = 3
    operator = operator_of(node)
    kernel = operator.lower([rows.dtype])
    assert isinstance(kernel, Template)
    native = find_template(kernel.name)
    assert native is not None
    labels, scores = outputs_of(native(kernel.parameters), [rows], variant)
    expected_labels, expected = operator.run(rows)
    np.testing.assert_array_equal(labels, expected_labels)
    np.testing.assert_allclose(scores, expected, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(scores.sum(axis=1, dtype=np.float64), 1, rtol=1e-6)


@pytest.mark.parametrize("name", list(classifiers()))
def test_pipelines_are_one_native_step_up_to_what_makes_python_objects(name: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    model = pipeline(*classifiers()[name]).SerializeToString()
    data = np.random.default_rng(8).normal(size=(23, 5)).astype(np.float32)
    data[3, 2] = np.nan
    session = sardonyx.InferenceSession(model)
    labels, scores, maps = session.run(None, {"x": data})
    want_labels, want_scores, want_maps = ort.InferenceSession(model).run(None, {"x": data})
    assert labels.tolist() == want_labels.tolist()
    np.testing.assert_allclose(scores, want_scores, rtol=1e-4, atol=1e-5)
    assert [list(one) for one in maps] == [list(one) for one in want_maps]
    hosts = 2 if "strings" in name else 1
    assert len(session._sess._plan.steps) == 1 + hosts

"""Tree ensembles against onnxruntime, on random forests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from sardonyx import errors
from tests.ops.peer import compare, ours

DOMAIN = "ai.onnx.ml"
LEQ = ("BRANCH_LEQ",)
ALL = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
FEATURES = 5


class Grown:
    """A random forest as the attributes of a node; `leaves` are (tree, node) pairs."""

    def __init__(self, seed: int, trees: int = 7, depth: int = 4, modes: tuple[str, ...] = LEQ) -> None:
        self.rng = np.random.default_rng(seed)
        self.modes = modes
        self.rows: list[dict[str, Any]] = []
        self.leaves: list[tuple[int, int]] = []
        for tree in range(trees):
            self._next = 0
            self._grow(tree, depth, depth)

    def _grow(self, tree: int, depth: int, left: int) -> int:
        number, self._next = self._next, self._next + 1
        leaf = left == 0 or (left < depth and self.rng.random() < 0.2)
        row: dict[str, Any] = {
            "treeids": tree,
            "nodeids": number,
            "featureids": int(self.rng.integers(FEATURES)),
            "modes": "LEAF" if leaf else str(self.rng.choice(self.modes)),
            "values": float(np.float32(self.rng.normal())),
            "missing_value_tracks_true": int(self.rng.random() < 0.5),
            "truenodeids": 0,
            "falsenodeids": 0,
        }
        self.rows.append(row)
        if leaf:
            self.leaves.append((tree, number))
        else:
            row["truenodeids"] = self._grow(tree, depth, left - 1)
            row["falsenodeids"] = self._grow(tree, depth, left - 1)
        return number

    def attributes(self, prefix: str, ids: int | list[int], positive: bool = False) -> dict[str, Any]:
        """Node lists and leaves' weights: an id of its own drawn for each leaf, or each of the ids in `ids`."""
        entries = [
            (*leaf, number)
            for leaf in self.leaves
            for number in (ids if isinstance(ids, list) else [int(self.rng.integers(ids))])
        ]
        weights = self.rng.random(len(entries)) if positive else self.rng.normal(size=len(entries))
        return {
            **{f"nodes_{name}": [row[name] for row in self.rows] for name in self.rows[0]},
            f"{prefix}_treeids": [entry[0] for entry in entries],
            f"{prefix}_nodeids": [entry[1] for entry in entries],
            f"{prefix}_ids": [entry[2] for entry in entries],
            f"{prefix}_weights": weights.astype(np.float32).tolist(),
        }


def rows(count: int, seed: int = 1, dtype: Any = np.float32, missing: bool = True) -> Any:
    rng = np.random.default_rng(seed)
    data = rng.normal(size=(count, FEATURES)).astype(dtype)
    if missing:
        data[rng.random(data.shape) < 0.2] = np.nan
    return data


@pytest.mark.parametrize("function", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("modes", [LEQ, ALL], ids=["one_mode", "all_modes"])
@pytest.mark.parametrize(("targets", "ids"), [(1, 1), (1, [0, 0]), (3, [0, 1, 2]), (3, 3)])
def test_regressor(function: str, modes: tuple[str, ...], targets: int, ids: Any) -> None:
    attributes = Grown(targets, modes=modes).attributes("target", ids)
    common = {"domain": DOMAIN, "n_targets": targets, "aggregate_function": function, "rtol": 1e-4}
    for base in ({}, {"base_values": [0.5, -0.25, 0.125][:targets]}):
        compare("TreeEnsembleRegressor", [rows(6)], **common, **attributes, **base)
    compare("TreeEnsembleRegressor", [rows(6, dtype=np.float64)], **common, **attributes)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("base", [[], [0.5, -0.25, 0.125]], ids=["plain", "base"])
@pytest.mark.parametrize("ids", [3, [0, 1, 2]], ids=["one", "each"])
def test_classifier_of_three(transform: str, base: list[float], ids: Any) -> None:
    attributes = Grown(4).attributes("class", ids)
    if base:
        attributes["base_values"] = base
    for labels in ({"classlabels_int64s": [7, 5, 9]}, {"classlabels_strings": ["a", "b", "c"]}):
        compare(
            "TreeEnsembleClassifier", [rows(8)], 2, domain=DOMAIN, rtol=1e-4, post_transform=transform, **attributes,
            **labels,
        )  # fmt: skip


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("base", [False, True], ids=["plain", "base"])
@pytest.mark.parametrize("weights", ["own", "of_classes", "of_leaves"])
@pytest.mark.parametrize("count", [1, 8, 45])
def test_a_tree_whose_leaves_name_a_class_each(transform: str, base: bool, weights: str, count: int) -> None:
    grown = Grown(13, trees=1, depth=6)
    leaves = len(grown.leaves)
    attributes = grown.attributes("class", 5)
    ids = attributes["class_ids"]
    if weights == "own":
        attributes["class_ids"] = grown.rng.permutation(leaves + 3)[:leaves].tolist()
    elif weights == "of_classes":
        attributes["class_weights"] = [attributes["class_weights"][ids.index(one)] for one in ids]
    if base:
        attributes["base_values"] = grown.rng.normal(size=leaves + 3).tolist()
    labels = grown.rng.permutation(leaves + 3).tolist()
    compare(
        "TreeEnsembleClassifier", [rows(count)], 2, domain=DOMAIN, rtol=1e-4, post_transform=transform, **attributes,
        classlabels_int64s=labels,
    )  # fmt: skip


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("base", [[], [0.5], [0.5, -0.25]], ids=["plain", "one_base", "two_bases"])
@pytest.mark.parametrize("ids", [[0], [1], [0, 1]], ids=["first", "second", "both"])
@pytest.mark.parametrize("positive", [False, True])
def test_classifier_of_two(transform: str, base: list[float], ids: list[int], positive: bool) -> None:
    attributes = Grown(5).attributes("class", ids, positive)
    if base:
        attributes["base_values"] = base
    compare(
        "TreeEnsembleClassifier", [rows(8)], 2, domain=DOMAIN, rtol=1e-4, post_transform=transform, **attributes,
        classlabels_int64s=[0, 1],
    )  # fmt: skip


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
@pytest.mark.parametrize("base", [[], [0.5, -0.25]], ids=["plain", "two_bases"])
@pytest.mark.parametrize("ids", [1, 2, [0, 1]], ids=["first", "either", "both"])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("labels", [{"classlabels_int64s": [0, 1]}, {"classlabels_strings": ["a", "b"]}], ids=str)
def test_leaves_with_weights_for_one_class_or_none(
    transform: str, base: list[float], ids: Any, positive: bool, labels: dict[str, Any]
) -> None:
    attributes = Grown(9, trees=1).attributes("class", ids, positive)
    for name in ("treeids", "ids", "weights", "nodeids"):
        attributes[f"class_{name}"] = [
            value
            for value, node in zip(attributes[f"class_{name}"], attributes["class_nodeids"], strict=True)
            if node % 3
        ]
    if base:
        attributes["base_values"] = base
    compare(
        "TreeEnsembleClassifier", [rows(40)], 2, domain=DOMAIN, rtol=1e-4, post_transform=transform, **attributes,
        **labels,
    )  # fmt: skip


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"])
@pytest.mark.parametrize("base", [[], [0.5]], ids=["plain", "base"])
@pytest.mark.parametrize("positive", [False, True])
def test_classifier_of_one(transform: str, base: list[float], positive: bool) -> None:
    attributes = Grown(5).attributes("class", [0], positive)
    if base:
        attributes["base_values"] = base
    compare(
        "TreeEnsembleClassifier", [rows(8)], 2, domain=DOMAIN, rtol=1e-4, post_transform=transform, **attributes,
        classlabels_int64s=[7],
    )  # fmt: skip


def test_one_text_as_a_label_does_not_tell_rows_apart() -> None:
    attributes = {**Grown(5).attributes("class", [0]), "classlabels_strings": ["a"]}
    with pytest.raises(errors.OnnxRuntimeError, match="classlabels_strings holds one label"):
        ours("TreeEnsembleClassifier", [rows(8)], 2, domain=DOMAIN, **attributes)


def votes(classes: int, given: list[list[float]]) -> dict[str, Any]:
    """Trees of one leaf each, which gives the classes the weights in `given` whatever the row is."""
    entries = [(tree, index, weight) for tree, row in enumerate(given) for index, weight in enumerate(row) if weight]
    return {
        "nodes_treeids": list(range(len(given))), "nodes_nodeids": [0] * len(given),
        "nodes_featureids": [0] * len(given), "nodes_values": [0.0] * len(given), "nodes_modes": ["LEAF"] * len(given),
        "nodes_truenodeids": [0] * len(given), "nodes_falsenodeids": [0] * len(given),
        "class_treeids": [tree for tree, _, _ in entries], "class_nodeids": [0] * len(entries),
        "class_ids": [index if classes > 2 else 0 for _, index, _ in entries],
        "class_weights": [weight for _, _, weight in entries], "classlabels_int64s": list(range(classes)),
    }  # fmt: skip


@pytest.mark.parametrize("count", [5, 10])
def test_classes_with_the_same_share_of_the_trees_are_equal(count: int) -> None:
    halves = votes(2, [[0.1]] * count)
    labels, scores = ours("TreeEnsembleClassifier", [rows(1)], 2, domain=DOMAIN, **halves)
    # Ten tenths of single precision are a little more than 1, and five of them more than a half.
    assert labels == (count > 5)
    assert scores.tolist() == [[1 - count / 10, count / 10]]
    thirds = votes(3, [[0.0, 0.5, 0.3], [0.0, 0.5, 0.7], [0.5, 0.0, 0.0]])
    labels, scores = ours("TreeEnsembleClassifier", [rows(1)], 2, domain=DOMAIN, **thirds)
    assert labels == 1
    assert scores.tolist() == [[0.5, 1, 1]]
    compare("TreeEnsembleClassifier", [rows(1)], 2, domain=DOMAIN, **thirds)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float64])
def test_classifier_of_other_inputs(dtype: Any) -> None:
    attributes = {**Grown(6).attributes("class", [0, 1, 2]), "classlabels_int64s": [1, 2, 3]}
    compare("TreeEnsembleClassifier", [(rows(5, missing=False) * 3).astype(dtype)], 2, domain=DOMAIN, **attributes)


def test_no_rows_and_too_few_features() -> None:
    attributes = {**Grown(6).attributes("class", [0, 1, 2]), "classlabels_int64s": [1, 2, 3]}
    labels, scores = ours("TreeEnsembleClassifier", [rows(0)], 2, domain=DOMAIN, **attributes)
    assert labels.shape == (0,)
    assert scores.shape == (0, 3)
    with pytest.raises(errors.OnnxRuntimeError, match="the input has 2 features"):
        ours("TreeEnsembleClassifier", [rows(3)[:, :2]], 2, domain=DOMAIN, **attributes)


def test_many_rows_are_walked_in_blocks() -> None:
    attributes = Grown(8, trees=3).attributes("target", [0])
    data = rows(40000)
    (whole,) = ours("TreeEnsembleRegressor", [data], domain=DOMAIN, n_targets=1, **attributes)
    (part,) = ours("TreeEnsembleRegressor", [data[35000:35010]], domain=DOMAIN, n_targets=1, **attributes)
    np.testing.assert_array_equal(whole[35000:35010], part)


def test_a_circle_is_refused() -> None:
    attributes = Grown(9, trees=1, depth=1).attributes("target", [0])
    attributes["nodes_truenodeids"] = [0, *attributes["nodes_truenodeids"][1:]]
    attributes["nodes_falsenodeids"] = [0, *attributes["nodes_falsenodeids"][1:]]
    with pytest.raises(errors.OnnxRuntimeError, match="circle"):
        ours("TreeEnsembleRegressor", [rows(2)], domain=DOMAIN, n_targets=1, **attributes)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("function", [0, 1, 2, 3])
@pytest.mark.parametrize("transform", [0, 3])  # onnxruntime takes 1 for LOGISTIC and 2 for SOFTMAX
def test_ensemble_with_membership(dtype: Any, function: int, transform: int) -> None:
    def tensor(*values: float) -> Any:
        return numpy_helper.from_array(np.array(values, dtype))

    data = np.array([1.2, 3.4, -0.12, 1.66, 4.14, 1.77, np.nan, 2, 5, 12, 5, 7, 5, 8], dtype).reshape(-1, 2)
    compare(
        "TreeEnsemble",
        [data],
        domain=DOMAIN,
        version=5,
        n_targets=2,
        aggregate_function=function,
        post_transform=transform,
        membership_values=tensor(1.2, 3.7, 8, 9, np.nan, 12, 7, np.nan),
        nodes_featureids=[0, 0, 1, 1],
        nodes_modes=numpy_helper.from_array(np.array([0, 6, 0, 6], np.uint8)),
        nodes_splits=tensor(2, 232344, 4.14, 1),
        nodes_truenodeids=[1, 0, 3, 4],
        nodes_trueleafs=[0, 1, 0, 1],
        nodes_falsenodeids=[2, 2, 1, 3],
        nodes_falseleafs=[0, 1, 1, 1],
        leaf_targetids=[0, 1, 0, 1, 1],
        leaf_weights=tensor(5.23, 12.12, -12.23, 7.21, 2.0),
        tree_roots=[0],
    )

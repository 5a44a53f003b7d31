"""A gradient-boosted ensemble of regression trees with random splits, as converters of LightGBM or XGBoost write it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.zoo import registry

TREES, DEPTH, FEATURES = 500, 6, 28
_SEED = 20240607


BASE = 0.5


@dataclass(frozen=True)
class Ensemble:
    """Complete trees: the feature and threshold of each inner node [TREES, splits], the leaves [TREES, leaves].

    Node i has the children 2 i + 1, where its feature is below its threshold or missing, and 2 i + 2.
    """

    features: np.ndarray
    thresholds: np.ndarray
    leaves: np.ndarray


def ensemble() -> Ensemble:
    rng = np.random.default_rng(_SEED)
    splits, leaves = (1 << DEPTH) - 1, 1 << DEPTH
    return Ensemble(
        rng.integers(0, FEATURES, (TREES, splits)),
        rng.standard_normal((TREES, splits)).astype(np.float32),
        (rng.standard_normal((TREES, leaves)) / TREES**0.5).astype(np.float32),
    )


def answer(model: registry.Model, x: np.ndarray) -> np.ndarray:
    """The prediction [rows, 1] for features [rows, FEATURES]."""
    trees = ensemble()
    each = np.arange(TREES)
    total = np.empty((len(x), 1))
    for row, values in enumerate(x):
        node = np.zeros(TREES, np.int64)
        for _ in range(DEPTH):
            below = values[trees.features[each, node]] < trees.thresholds[each, node]
            node = 2 * node + np.where(below, 1, 2)
        total[row] = BASE + trees.leaves[each, node - trees.thresholds.shape[1]].sum(dtype=np.float64)
    return total


def build(model: registry.Model, path: Path) -> None:
    """Write the ensemble as a TreeEnsembleRegressor."""
    trees = ensemble()
    splits, leaves = trees.thresholds.shape[1], trees.leaves.shape[1]
    size = splits + leaves
    node = np.arange(size)
    inner = node < splits

    def padded(values: np.ndarray) -> np.ndarray:
        return np.concatenate([values, np.zeros((TREES, leaves), values.dtype)], 1).ravel()

    attributes = {
        "aggregate_function": "SUM",
        "base_values": [BASE],
        "n_targets": 1,
        "nodes_treeids": np.repeat(np.arange(TREES), size),
        "nodes_nodeids": np.tile(node, TREES),
        "nodes_featureids": padded(trees.features),
        "nodes_values": padded(trees.thresholds),
        "nodes_modes": np.tile(np.where(inner, "BRANCH_LT", "LEAF"), TREES).tolist(),
        "nodes_truenodeids": np.tile(np.where(inner, 2 * node + 1, 0), TREES),
        "nodes_falsenodeids": np.tile(np.where(inner, 2 * node + 2, 0), TREES),
        "nodes_missing_value_tracks_true": np.tile(inner.astype(np.int64), TREES),
        "target_treeids": np.repeat(np.arange(TREES), leaves),
        "target_nodeids": np.tile(node[~inner], TREES),
        "target_ids": np.zeros(TREES * leaves, np.int64),
        "target_weights": trees.leaves.ravel(),
    }
    regressor = helper.make_node(
        "TreeEnsembleRegressor", ["features"], ["prediction"], "trees", domain="ai.onnx.ml", **attributes
    )
    inputs = [helper.make_tensor_value_info(t.name, TensorProto.FLOAT, t.shape) for t in model.inputs]
    outputs = [helper.make_tensor_value_info(t.name, TensorProto.FLOAT, t.shape) for t in model.outputs]
    opsets = [helper.make_opsetid("", model.opset), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([regressor], model.name, inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)

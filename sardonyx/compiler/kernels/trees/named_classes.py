"""A tree each leaf of which has a weight for one class alone: that class wins, so that no scores need be compared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sardonyx.compiler.binding import Array
from sardonyx.ops.ml.forest import LEAF, Forest


def weights_by_class(forest: Forest, classes: int) -> Array | None:
    """The weight of each class where its leaves are reached (0: it has none); None where this is no such tree.

    None as well where a class has several weights, or one that is not finite in single precision.
    """
    ends, leaves = forest.mode == LEAF, forest.leaves
    if len(forest.roots) != 1 or (leaves.count[ends] != 1).any():
        return None
    entries = leaves.start[ends]
    named, weight = leaves.target[entries], leaves.weight[entries].astype(np.float64)
    weights = np.zeros(classes)
    weights[named] = weight
    if (weights[named] != weight).any() or not np.isfinite(weights.astype(np.float32)).all():
        return None
    return weights


def naming(forest: Forest) -> Forest:
    """The tree whose only score is the number of the class that a leaf names."""
    leaves = forest.leaves
    numbers = replace(leaves, target=np.zeros_like(leaves.target), weight=leaves.target.astype(np.float64))
    return replace(forest, leaves=numbers)

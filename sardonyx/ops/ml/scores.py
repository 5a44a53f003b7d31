"""What the models of ai.onnx.ml share: rows of features, post transforms of scores, class labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.ops.framework.operator import Array

DOMAIN = "ai.onnx.ml"
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def rows_of(data: Array) -> Array:
    """The input as (rows, features): a vector is one row."""
    if data.ndim not in (1, 2):
        raise ValueError(f"the input must be one row of features or a matrix of rows, not of shape {list(data.shape)}")
    return data.reshape(1, -1) if data.ndim == 1 else data


def transformed(scores: Array, transform: str) -> Array:
    """Scores (rows, n) after a post transform, each row by itself."""
    if transform == "NONE":
        return scores
    if transform == "LOGISTIC":
        return logistic(scores)
    if transform == "PROBIT":
        return probit(scores)
    if transform == "SOFTMAX":
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))
    if transform == "SOFTMAX_ZERO":
        # Scores of 0 stay 0 and take no part in the sum.
        most = scores.max(axis=1, keepdims=True)
        powers = np.where(np.abs(scores) > 1e-7, np.exp(scores - most), scores * np.exp(-most))
        total = np.where(np.abs(scores) > 1e-7, powers, 0).sum(axis=1, keepdims=True)
        return np.asarray(powers / total)
    raise ValueError(f"post_transform '{transform}' is none of {', '.join(TRANSFORMS)}")


def logistic(scores: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    half = 1 / (1 + np.exp(-np.abs(scores)))
    return np.where(scores < 0, 1 - half, half)


def probit(scores: Array) -> Array:
    """The quantile of the normal distribution by Winitzki's approximation of erf's inverse, as onnxruntime has it."""
    centred = 2 * scores - 1
    with np.errstate(divide="ignore", invalid="ignore"):  # what is no probability has no quantile
        logarithm = np.log((1 - centred) * (1 + centred))
        first = 2 / (3.14159 * 0.147) + 0.5 * logarithm
        root = np.sqrt(np.sqrt(first * first - logarithm / 0.147) - first)
    return np.asarray(1.41421356 * np.where(centred < 0, -root, root))


def labels_of(numbers: Sequence[int] | None, texts: Sequence[str] | None) -> Array:
    """The labels of the classes: strings where they are given, else integers."""
    if texts:
        labels: Array = np.empty(len(texts), object)
        labels[:] = texts
        return labels
    return np.array(numbers or (), np.int64)


def float_list(values: Any, dtype: Any = np.float32) -> Array:
    """A list of floats of a node, which are of single precision, as an array."""
    return np.array(values if values is not None else (), np.float32).astype(dtype)

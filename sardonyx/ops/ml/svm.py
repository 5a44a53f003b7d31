"""Support vector machines: SVMRegressor, SVMClassifier."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.kernel.program import Host, Kernel, Template
from sardonyx.ops.framework.facts import Fact, tensor
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator
from sardonyx.ops.ml.coupling import coupled, pairwise
from sardonyx.ops.ml.scores import DOMAIN, TRANSFORMS, float_list, labels_of, logistic, probit, rows_of, transformed
from sardonyx.ops.ml.trees import row_count


def kernel(kind: str, parameters: Sequence[float], rows: Array, vectors: Array) -> Array:
    """The kernel of each row with each support vector, (rows, vectors); parameters are gamma, coef0, degree."""
    gamma, offset, degree = (*parameters, 0.0, 0.0, 0.0)[:3]
    if kind == "RBF":
        # |x - v|² from single differences: the expanded square would lose what is close.
        result = np.empty((len(rows), len(vectors)), np.float32)
        for index, vector in enumerate(vectors):
            result[:, index] = np.square(rows - vector).sum(axis=1)
        return np.asarray(np.exp(np.float32(-gamma) * result))
    product = np.asarray(rows @ vectors.T)
    if kind == "LINEAR":
        return product
    scaled = np.float32(gamma) * product + np.float32(offset)
    if kind == "POLY":
        return np.asarray(np.power(scaled, np.float32(degree)))
    if kind == "SIGMOID":
        return np.asarray(np.tanh(scaled))
    raise ValueError(f"kernel_type '{kind}' is none of LINEAR, POLY, RBF, SIGMOID")


_KINDS = ("LINEAR", "POLY", "RBF", "SIGMOID")
_WRONG = "its attributes contradict each other"


@operator("SVMRegressor", domain=DOMAIN)
class SVMRegressor(Operator):
    """(rows, features) to (rows, 1): kernels with the support vectors, weighted and summed, plus rho.

    Without support vectors the coefficients are those of a linear model. `one_class` keeps the sign alone. As in
    onnxruntime the post transform has no effect on the one score.
    """

    coefficients: tuple[float, ...] = ()
    kernel_params: tuple[float, ...] = ()
    kernel_type: str = "LINEAR"
    n_supports: int = 0
    one_class: int = 0
    post_transform: str = "NONE"
    rho: tuple[float, ...] = ()
    support_vectors: tuple[float, ...] = ()

    def run(self, data: Array) -> Sequence[Value]:
        rows = rows_of(data).astype(np.float32, copy=False)
        weights, features = float_list(self.coefficients), rows.shape[1]
        if not self.rho:
            raise ValueError("rho must have an entry")
        if self.n_supports > 0:
            vectors = float_list(self.support_vectors)
            if vectors.size != self.n_supports * features or weights.size != self.n_supports:
                raise ValueError(
                    f"{self.n_supports} support vectors of {features} features do not fit {vectors.size} entries of "
                    f"support_vectors and {weights.size} of coefficients"
                )
            near = kernel(self.kernel_type, self.kernel_params, rows, vectors.reshape(self.n_supports, features))
            scores = near @ weights
        else:
            if weights.size != features:
                raise ValueError(f"coefficients has {weights.size} entries for {features} features")
            scores = rows @ weights
        scores = (scores + np.float32(self.rho[0])).reshape(-1, 1)
        if self.one_class:
            scores = np.where(scores > 0, np.float32(1), np.float32(-1))
        return (scores.astype(np.float32, copy=False),)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        weights, vectors = float_list(self.coefficients), None
        if not self.rho or not weights.size or self.kernel_type not in _KINDS:
            return Host(self.run, _WRONG)
        if self.n_supports > 0:
            vectors = float_list(self.support_vectors)
            if weights.size != self.n_supports or not vectors.size or vectors.size % self.n_supports:
                return Host(self.run, _WRONG)
            vectors = vectors.reshape(self.n_supports, -1)
        parameters = {
            "kind": self.kernel_type,
            "parameters": self.kernel_params,
            "vectors": vectors,
            "weights": weights[:, None],
            "offsets": float_list(self.rho[:1]),
            "one_class": bool(self.one_class),
        }
        return Template("svm_scores", parameters, self.run)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [tensor(ir.DataType.FLOAT, (row_count(inputs[0]), 1))]


def _both(score: Array, transform: str) -> Array:
    """The scores (rows, 2) for the one decision (rows, 1) between two classes, as onnxruntime transforms it.

    PROBIT leaves one score, beside which onnxruntime writes nothing; here it is 0.
    """
    if transform == "PROBIT":
        return np.pad(probit(score), ((0, 0), (0, 1)))
    if transform == "LOGISTIC":
        return np.concatenate([logistic(-score), logistic(score)], axis=1)
    return np.concatenate([-score if transform == "NONE" else 1 - score, score], axis=1)


@operator("SVMClassifier", domain=DOMAIN)
class SVMClassifier(Operator):
    """(rows, features) to each row's label and scores.

    With support vectors every two classes have a decision (libsvm's form: `coefficients` is (classes - 1, vectors),
    a class's row against class j being j - 1 or j), and the class with the most votes wins. Scores are these
    decisions, or the classes' probabilities where `prob_a` and `prob_b` are given. Without support vectors each class
    has a linear model of its own and the first `rho`.
    """

    classlabels_ints: tuple[int, ...] | None = None
    classlabels_strings: tuple[str, ...] | None = None
    coefficients: tuple[float, ...] = ()
    kernel_params: tuple[float, ...] = ()
    kernel_type: str = "LINEAR"
    post_transform: str = "NONE"
    prob_a: tuple[float, ...] = ()
    prob_b: tuple[float, ...] = ()
    rho: tuple[float, ...] = ()
    support_vectors: tuple[float, ...] = ()
    vectors_per_class: tuple[int, ...] = ()

    def _classes(self) -> int:
        return len(self.classlabels_strings or self.classlabels_ints or ())

    def run(self, data: Array) -> Sequence[Value]:
        rows = rows_of(data).astype(np.float32, copy=False)
        labels = labels_of(self.classlabels_ints, self.classlabels_strings)
        if not len(labels):
            raise ValueError("one of classlabels_ints and classlabels_strings must name the classes")
        if self.post_transform not in TRANSFORMS:
            raise ValueError(f"post_transform '{self.post_transform}' is none of {', '.join(TRANSFORMS)}")
        voted = sum(self.vectors_per_class) > 0
        scores, winners = self._voted(rows) if voted else self._linear(rows)
        if scores.shape[1] == 1 and voted:
            scores = _both(scores, self.post_transform)
        elif scores.shape[1] == 1:
            # As in onnxruntime the one score of one class knows PROBIT only.
            scores = probit(scores) if self.post_transform == "PROBIT" else scores
        elif scores.size:
            scores = transformed(scores, self.post_transform)
        return labels[winners], scores.astype(np.float32, copy=False)

    def _linear(self, rows: Array) -> tuple[Array, Array]:
        weights, classes, features = float_list(self.coefficients), self._classes(), rows.shape[1]
        if weights.size != classes * features or not self.rho:
            raise ValueError(
                f"{weights.size} coefficients and {len(self.rho)} entries of rho do not fit {classes} classes of "
                f"{features} features"
            )
        scores = rows @ weights.reshape(classes, features).T + np.float32(self.rho[0])
        winners = scores.argmax(axis=1)
        if classes == 2 and not self.prob_a:
            # onnxruntime takes the higher of two scores for one decision: above its threshold, the second class.
            best = scores.max(axis=1)
            winners[best >= 0.5 if (weights >= 0).all() else best > 0] = 1
        return scores, winners

    def _voted(self, rows: Array) -> tuple[Array, Array]:
        decisions, pairs = self._decisions(rows), list(combinations(range(self._classes()), 2))
        votes = np.zeros((len(rows), self._classes()), np.int64)
        for place, (first, second) in enumerate(pairs):
            votes[:, first] += decisions[:, place] > 0
            votes[:, second] += ~(decisions[:, place] > 0)
        if not self.prob_a:
            return decisions, votes.argmax(axis=1)
        slopes, offsets = float_list(self.prob_a), float_list(self.prob_b)
        if slopes.size != len(pairs) or offsets.size != len(pairs):
            raise ValueError(
                f"prob_a and prob_b must have {len(pairs)} entries, one for every two classes, not {slopes.size} and "
                f"{offsets.size}"
            )
        return coupled(pairwise(decisions, slopes, offsets, pairs, self._classes())), votes.argmax(axis=1)

    def _decisions(self, rows: Array) -> Array:
        """The decision values of every two classes, (rows, pairs): above 0 is for the first one."""
        classes, features, counts = self._classes(), rows.shape[1], self.vectors_per_class
        total, pairs = sum(counts), list(combinations(range(classes), 2))
        vectors, weights = float_list(self.support_vectors), float_list(self.coefficients)
        if (
            classes < 2
            or len(counts) != classes
            or vectors.size != total * features
            or weights.size != (classes - 1) * total
            or len(self.rho) != len(pairs)
        ):
            raise ValueError(
                f"{len(counts)} entries of vectors_per_class, {vectors.size} of support_vectors, {weights.size} of "
                f"coefficients and {len(self.rho)} of rho do not fit {classes} classes of {features} features"
            )
        near = kernel(self.kernel_type, self.kernel_params, rows, vectors.reshape(total, features))
        weights = weights.reshape(-1, total)
        ends = np.cumsum(counts).tolist()
        own = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
        result = np.empty((len(rows), len(pairs)), np.float32)
        for place, (i, j) in enumerate(pairs):
            result[:, place] = near[:, own[i]] @ weights[j - 1, own[i]] + near[:, own[j]] @ weights[i, own[j]]
        return result + float_list(self.rho)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        if self.classlabels_strings:
            return Host(self.run, "its labels are strings, which are Python objects")
        classes, total = self._classes(), sum(self.vectors_per_class)
        weights, vectors = float_list(self.coefficients), None
        pairs = list(combinations(range(classes), 2))
        known = self.post_transform in TRANSFORMS and self.kernel_type in _KINDS and self.rho and weights.size
        threshold = None
        if not known or classes < 1:
            return Host(self.run, _WRONG)
        if total > 0:
            vectors = float_list(self.support_vectors)
            fits = classes > 1 and len(self.vectors_per_class) == classes and weights.size == (classes - 1) * total
            if self.prob_a and not len(self.prob_a) == len(self.prob_b) == len(pairs):
                return Host(self.run, _WRONG)
            if not fits or len(self.rho) != len(pairs) or not vectors.size or vectors.size % total:
                return Host(self.run, _WRONG)
            vectors = vectors.reshape(total, -1)
            weights, offsets = self._pair_weights(weights.reshape(-1, total)), float_list(self.rho)
        else:
            if weights.size % classes:
                return Host(self.run, _WRONG)
            if classes == 2 and not self.prob_a:
                threshold = 0.5 if (weights >= 0).all() else 0.0
            weights = np.ascontiguousarray(weights.reshape(classes, -1).T)
            offsets = np.repeat(float_list(self.rho[:1]), classes)
        parameters = {
            "kind": self.kernel_type,
            "parameters": self.kernel_params,
            "vectors": vectors,
            "weights": weights,
            "offsets": offsets,
            "labels": labels_of(self.classlabels_ints, None),
            "transform": self.post_transform,
            "voted": total > 0,
            "chances": (float_list(self.prob_a), float_list(self.prob_b)) if total > 0 and self.prob_a else None,
            "threshold": threshold,
            "reached": threshold == 0.5,
        }
        return Template("svm_classes", parameters, self.run)

    def _pair_weights(self, weights: Array) -> Array:
        """The weights (vectors, pairs) of the vectors for the decision of every two classes, 0 for other classes'."""
        ends = np.cumsum(self.vectors_per_class).tolist()
        own = [slice(end - count, end) for end, count in zip(ends, self.vectors_per_class, strict=True)]
        pairs = list(combinations(range(len(own)), 2))
        result = np.zeros((weights.shape[1], len(pairs)), np.float32)
        for place, (i, j) in enumerate(pairs):
            result[own[i], place] = weights[j - 1, own[i]]
            result[own[j], place] = weights[i, own[j]]
        return result

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        classes = self._classes()
        kind = ir.DataType.STRING if self.classlabels_strings else ir.DataType.INT64
        paired = sum(self.vectors_per_class) > 0 and not self.prob_a
        columns = max(2, classes * (classes - 1) // 2) if paired else classes
        rows = row_count(inputs[0])
        return [tensor(kind, (rows,)), tensor(ir.DataType.FLOAT, (rows, columns))]

"""SVMRegressor and SVMClassifier: kernels of rows with support vectors, weighted sums of them, votes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.kernels.classic.coupling import couple
from sardonyx.compiler.kernels.classic.scores import (
    F32,
    I64,
    alone,
    as_type,
    both_scores,
    by_elements,
    by_rows,
    column,
    labelled,
    logistic,
    rows_of,
    transform_rows,
    weighted_sums,
    winner,
    write_pair,
)
from sardonyx.compiler.kernels.template import Epilogue, NativeKernel, template
from sardonyx.compiler.native.products.matmul import MatMulKernel
from sardonyx.compiler.native.rows.reduction import ReductionKernel
from sardonyx.kernel.expr import Expr, Input, constant, exp, maximum, minimum, power, reduce, tanh, where

# How near probabilities between two classes come to 0 and 1.
_LEAST_CHANCE = 1e-7


class SupportVectors:
    """Weighted sums of the kernels of rows with vectors, plus an offset for each sum.

    `vectors` (vectors, features), `weights` (vectors, sums), `offsets` (sums,), all float32; `parameters` are gamma,
    coef0 and degree. Without vectors the weights are those of the features.
    """

    def __init__(self, kind: str, parameters: Sequence[float], vectors: Array | None, weights: Array, offsets: Array):
        self._kind = kind
        self._gamma, self._offset, self._degree = (*parameters, 0.0, 0.0, 0.0)[:3]
        self._vectors = vectors
        self._columns = None if vectors is None else np.ascontiguousarray(vectors.T)
        self._weights, self._offsets = np.ascontiguousarray(weights), offsets

    def bind(self, binder: Binder, data: Tensor) -> Tensor:
        """The sums (rows, sums) in float32."""
        rows = as_type(binder, rows_of(data), F32)
        features = len(self._weights) if self._vectors is None else self._vectors.shape[1]
        if rows.shape[1] != features:
            what, count = (
                ("coefficients", self._weights) if self._vectors is None else ("support_vectors", self._vectors)
            )
            raise ValueError(f"{what} has {count.size} entries for {rows.shape[1]} features: {features} would fit")
        near = self._near(binder, rows)
        return weighted_sums(binder, near, self._weights, self._offsets)

    def _near(self, binder: Binder, rows: Tensor) -> Tensor:
        """The kernel of each row with each vector."""
        if self._vectors is None or self._columns is None:
            return rows
        if self._kind == "RBF":
            # |x - v|² from single differences: the expanded square would lose what is close.
            away = Input(F32, 0) - Input(F32, 1)
            near = exp(reduce("sum", away * away) * -self._gamma)
            count, features = rows.shape
            across = rows.reshaped((count, 1, features), (rows.strides[0], 0, rows.strides[1]))
            (result,) = ReductionKernel([near], [F32, F32]).bind(binder, [across, binder.constant(self._vectors)], (2,))
            return result.reshaped((count, len(self._vectors)))
        product: Expr = Input(F32, 0)
        if self._kind != "LINEAR":
            product = product * self._gamma + self._offset
        if self._kind == "POLY":
            product = power(product, self._degree)
        elif self._kind == "SIGMOID":
            product = tanh(product)
        (result,) = MatMulKernel({}).bind(  # type: ignore[assignment]
            binder, rows, binder.constant(self._columns), epilogue=Epilogue((product,), ())
        )
        return result


class _Vectors(NativeKernel):
    """Parameters: `kind`, `parameters`, `vectors`, `weights`, `offsets`."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        names = ("kind", "parameters", "vectors", "weights", "offsets")
        self._sums = SupportVectors(*(parameters[name] for name in names))


@template("svm_scores")
class SVMScores(_Vectors):
    """The one score of each row, or its sign where `one_class` is set."""

    def bind(self, binder: Binder, data: Tensor) -> Sequence[Tensor]:
        scores = self._sums.bind(binder, data)
        if self.parameters["one_class"]:
            sign = where(Input(F32, 0) > 0, constant(1.0, F32), -1.0)
            return by_elements(binder, [sign], [scores])
        return [scores]


@template("svm_classes")
class SVMClasses(_Vectors):
    """Labels (int64) and scores: the decisions of every two classes, whose votes win, or one score for each class.

    Parameters besides: `labels`, `transform`; `voted`: sums are decisions; `chances`: the slopes and offsets by which
    decisions become probabilities, which are then coupled, or None; `threshold`: of two scores the second class wins
    where the higher one lies above (with `reached`: at) it, None: the greater score wins.
    """

    def bind(self, binder: Binder, data: Tensor) -> Sequence[Tensor]:
        labels, transform = self.parameters["labels"], self.parameters["transform"]
        scores = self._sums.bind(binder, data)
        if self.parameters["voted"]:
            winners = self._votes(binder, scores, len(labels))
            if self.parameters["chances"] is not None:
                coupled = self._coupled(binder, scores, len(labels), *self.parameters["chances"])
                results = transform_rows(binder, coupled, transform, F32)
            elif scores.shape[1] == 1:
                score = Input(F32, 0)
                pair = both_scores(score, transform, -score if transform == "NONE" else 1 - score)
                _, results = write_pair(binder, None, pair, [column(scores, 0)])
            else:
                results = transform_rows(binder, scores, transform, F32)
            return [labelled(binder, winners, labels), results]
        (numbers,) = by_rows(binder, [self._linear_winner()], [scores])
        if scores.shape[1] == 1:
            transform = alone(transform)
        winners = numbers.reshaped((scores.shape[0],))
        return [labelled(binder, winners, labels), transform_rows(binder, scores, transform, F32)]

    def _linear_winner(self) -> Expr:
        score = Input(F32, 0)
        greatest = winner(score)
        threshold = self.parameters["threshold"]
        if threshold is None:
            return greatest
        most = reduce("maximum", score)
        above = most >= threshold if self.parameters["reached"] else most > threshold
        return where(above, constant(1, I64), greatest)

    def _coupled(self, binder: Binder, decisions: Tensor, classes: int, slopes: Array, offsets: Array) -> Tensor:
        """The probabilities of the classes, (rows, classes)."""
        chance = 1 - logistic(Input(F32, 0) * Input(F32, 1) + Input(F32, 2))
        nearly_one = float(np.float32(1) - np.float32(_LEAST_CHANCE))
        limited = minimum(maximum(chance, _LEAST_CHANCE), nearly_one)
        platt = [binder.constant(np.asarray(one, np.float32)) for one in (slopes, offsets)]
        (chances,) = by_elements(binder, [limited], [decisions, *platt])
        return couple(binder, chances, classes)

    def _votes(self, binder: Binder, decisions: Tensor, classes: int) -> Tensor:
        """The class with the most votes, the first of equal ones: each decision is one for either class."""
        pairs = list(combinations(range(classes), 2))
        votes, against = np.zeros((len(pairs), classes), np.float32), np.zeros(classes, np.float32)
        for place, (first, second) in enumerate(pairs):
            votes[place, first] = 1
            votes[place, second] = -1
            against[second] += 1
        (held,) = by_elements(binder, [where(Input(F32, 0) > 0, constant(1.0, F32), 0.0)], [decisions])
        counts = weighted_sums(binder, held, votes, against)
        (numbers,) = by_rows(binder, [winner(Input(F32, 0))], [counts])
        return numbers.reshaped((decisions.shape[0],))

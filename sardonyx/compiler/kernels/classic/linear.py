"""LinearRegressor and LinearClassifier: one product, then the rules for its scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.kernels.classic.scores import (
    F32,
    I64,
    alone,
    as_type,
    both_scores,
    by_rows,
    column,
    labelled,
    rows_of,
    transform_rows,
    weighted_sums,
    winner,
    write_pair,
)
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.kernel.expr import Input, constant, where


class LinearScores:
    """Rows times coefficients (targets, features), plus intercepts (targets) or none, all float32."""

    def __init__(self, coefficients: Array, intercepts: Array, targets: int) -> None:
        self._targets = targets
        self._coefficients = coefficients.reshape(-1)
        self._weights: dict[int, Array] = {}  # by the number of features: one array for all shapes
        self._offsets = intercepts

    def bind(self, binder: Binder, data: Tensor) -> Tensor:
        """The scores (rows, targets) in float32."""
        rows = as_type(binder, rows_of(data), F32)
        features = rows.shape[1]
        needed = self._targets * features
        if self._coefficients.size < needed:
            raise ValueError(
                f"coefficients has {self._coefficients.size} entries for {self._targets} targets of {features} features"
            )
        if features not in self._weights:
            taken = self._coefficients[:needed].reshape(self._targets, features)
            self._weights[features] = np.ascontiguousarray(taken.T)
        return weighted_sums(binder, rows, self._weights[features], self._offsets)


class _Linear(NativeKernel):
    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self._scores = LinearScores(parameters["coefficients"], parameters["intercepts"], parameters["targets"])


@template("linear_scores")
class LinearRegression(_Linear):
    """Scores after a post transform. Parameters: `coefficients`, `intercepts`, `targets`, `transform`."""

    def bind(self, binder: Binder, data: Tensor) -> Sequence[Tensor]:
        transform = self.parameters["transform"]
        if self.parameters["targets"] == 1:
            transform = alone(transform)
        return [transform_rows(binder, self._scores.bind(binder, data), transform, F32)]


@template("linear_classes")
class LinearClasses(_Linear):
    """Labels (int64) and scores. Parameters as above, and `labels`, those of the scores or two for one score."""

    def bind(self, binder: Binder, data: Tensor) -> Sequence[Tensor]:
        labels, transform = self.parameters["labels"], self.parameters["transform"]
        scores = self._scores.bind(binder, data)
        rows = scores.shape[0]
        if scores.shape[1] > 1:
            (winners,) = by_rows(binder, [winner(Input(F32, 0))], [scores])
            return [labelled(binder, winners.reshaped((rows,)), labels), transform_rows(binder, scores, transform, F32)]
        score = Input(F32, 0)
        chosen = where(score > 0, constant(1, I64), 0)
        numbers, pair = write_pair(binder, chosen, both_scores(score, transform, 1 - score), [column(scores, 0)])
        assert numbers is not None
        if len(labels) == 2:
            return [labelled(binder, numbers, labels), pair]
        return [numbers, transform_rows(binder, scores, alone(transform), F32)]

"""TreeEnsemble, TreeEnsembleRegressor and TreeEnsembleClassifier: trees, then the rules for their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Tensor
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
    rows_of,
    transform_rows,
    transformed,
    transformed_pair,
    winner,
    write_pair,
)
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.kernels.trees.ensemble import EnsembleWalk
from sardonyx.compiler.kernels.trees.named_classes import naming, weights_by_class
from sardonyx.kernel.expr import Expr, Input, constant, logical_or, where
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.ml.forest import Forest

F64 = np.dtype(np.float64)
_TRUTH = np.dtype(np.bool_)


def _rows(binder: Binder, tensor: Tensor) -> Tensor:
    """The rows in the precision that they are compared in."""
    rows = rows_of(tensor)
    return rows if rows.dtype.kind == "f" or rows.dtype.name == "bfloat16" else as_type(binder, rows, F32)


@template("tree_scores")
class TreeScores(NativeKernel):
    """Scores of rows (rows, targets) after a post transform.

    Parameters: `forest` (a function that gives it), `targets`, `function`, `base` (float64 numbers, none or one for
    each target), `transform`.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self._walk: EnsembleWalk | None = None

    def bind(self, binder: Binder, data: Tensor) -> Sequence[Tensor]:
        targets, transform = self.parameters["targets"], self.parameters["transform"]
        if self._walk is None:
            forest: Forest = self.parameters["forest"]()
            self._walk = EnsembleWalk(forest, targets, self.parameters["function"], self.parameters["base"])
        result = np.dtype(self.parameters.get("result") or data.dtype)
        if targets == 1:
            transform = alone(transform)
        if transform == "NONE":
            return [self._walk.bind(binder, _rows(binder, data), result).values]
        scores = self._walk.bind(binder, _rows(binder, data), F64).values
        return [transform_rows(binder, scores, transform, result)]


def _rounded(total: Expr, single: bool) -> Expr:
    """A sum of scores, rounded to `single` precision: classes that have the same share of the trees stay equal."""
    return total.cast(F32).cast(F64) if single else total


@template("tree_classes")
class TreeClasses(NativeKernel):
    """Labels (int64) and scores of rows.

    Parameters: `forest`, `base` as above; `labels`; `transform`; `positive`: no weight is negative; `scores`: whether
    somebody reads the scores.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self._walk: EnsembleWalk | None = None
        self._only: int | None = None  # the one class that has weights
        self._weights: Array | None = None  # those of the classes that leaves name

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        return "one class alone has no kernel" if len(self.parameters["labels"]) < 2 else None

    def _forest(self) -> EnsembleWalk:
        if self._walk is None:
            forest: Forest = self.parameters["forest"]()
            classes = len(self.parameters["labels"])
            given = np.unique(forest.leaves.target)
            if classes == 2 and len(given) == 1:
                self._only, classes = int(given[0]), 1
                forest = replace(forest, leaves=replace(forest.leaves, target=np.zeros_like(forest.leaves.target)))
            elif classes > 2 and not self.parameters["base"].size:
                self._weights = weights_by_class(forest, classes)
                if self._weights is not None:
                    forest, classes = naming(forest), 1
            self._walk = EnsembleWalk(forest, classes, "SUM", np.zeros(0))
        return self._walk

    def bind(self, binder: Binder, data: Tensor) -> Sequence[Tensor | None]:
        labels: Array = self.parameters["labels"]
        base: Array = self.parameters["base"]
        if base.size > len(labels):
            raise ValueError(f"base_values has {base.size} entries for {len(labels)} classes")
        walk, single = self._forest(), data.dtype != F64
        scores = walk.bind(binder, _rows(binder, data), F64 if self._weights is None else I64)
        results: Tensor | None
        if self._weights is not None:
            winners, results = self._named(binder, scores.values, self._weights, single)
        elif len(labels) == 2:
            winners, results = self._pair(binder, scores.values, scores.known, base, single)
        else:
            winners, results = self._several(binder, scores.values, scores.known, base, single)
        return [labelled(binder, winners, labels), results]

    def _named(self, binder: Binder, numbers: Tensor, weights: Array, single: bool) -> tuple[Tensor, Tensor | None]:
        """The classes that leaves name, which win, and the scores of all."""
        winners = numbers.reshaped((numbers.shape[0],))
        if not self.parameters["scores"]:
            return winners, None
        inputs = [numbers, binder.constant(np.arange(len(weights))), binder.constant(weights)]
        score = where(Input(I64, 0).equals(Input(I64, 1)), Input(F64, 2), 0.0)
        return winners, self._results(binder, score, inputs, single)

    def _several(
        self, binder: Binder, values: Tensor, known: Tensor | None, base: Array, single: bool
    ) -> tuple[Tensor, Tensor | None]:
        assert known is not None
        classes = values.shape[1]
        more, scored = np.zeros(classes), np.arange(classes) < base.size
        more[: base.size] = base
        inputs = [values, known, binder.constant(more), binder.constant(scored)]
        total = _rounded(Input(F64, 0) + Input(F64, 2), single)
        chosen = where(logical_or(Input(_TRUTH, 1), Input(_TRUTH, 3)), total, -np.inf)
        (winners,) = by_rows(binder, [winner(chosen)], inputs)
        winners = winners.reshaped((values.shape[0],))
        if not self.parameters["scores"]:
            return winners, None
        return winners, self._results(binder, Input(F64, 0) + Input(F64, 1), [values, inputs[2]], single)

    def _results(self, binder: Binder, score: Expr, inputs: Sequence[Tensor], single: bool) -> Tensor:
        """Scores after the post transform."""
        transform = self.parameters["transform"]
        run = by_rows if transform.startswith("SOFTMAX") else by_elements
        (results,) = run(binder, [transformed(_rounded(score, single), transform).cast(F32)], inputs)
        return results

    def _pair(
        self, binder: Binder, values: Tensor, known: Tensor | None, base: Array, single: bool
    ) -> tuple[Tensor, Tensor]:
        """As the operator's rules for two classes have it."""
        inputs: list[Tensor] = []

        def read(matrix: Tensor, place: int) -> Expr:
            inputs.append(column(matrix, place))
            return Input(matrix.dtype, len(inputs) - 1)

        score: list[Expr] = [constant(0.0, F64), constant(0.0, F64)]
        scored: list[Expr] = [constant(False, _TRUTH), constant(False, _TRUTH)]
        for place, target in enumerate((0, 1) if self._only is None else (self._only,)):
            score[target] = read(values, place)
            scored[target] = read(known, place) if known is not None else constant(True, _TRUTH)
        first, second, both = score[0], score[1], scored[1]
        positive, one_sided = self.parameters["positive"], self._only is not None
        if base.size == 2:
            sums = first + base[1].item()
            first, second = where(both, -sums, first + base[0].item()), where(both, sums, second)
        elif base.size:
            first = first + base[0].item()
        first = where(scored[0], _rounded(first, single), 0.0)
        second = where(scored[1], _rounded(second, single), 0.0)
        winners = where(where(both, second, first) > (0.5 if one_sided and positive else 0.0), constant(1, I64), 0)
        pair = transformed_pair(first, second, self.parameters["transform"])
        if base.size != 2:
            alone = self._alone(first, one_sided, positive)
            pair = (where(both, pair[0], alone[0]), where(both, pair[1], alone[1]))
        numbers, results = write_pair(binder, winners, pair, inputs)
        assert numbers is not None
        return numbers, results

    def _alone(self, score: Expr, one_sided: bool, positive: bool) -> tuple[Expr, Expr]:
        """Two scores from one class's sum."""
        transform = self.parameters["transform"]
        if not one_sided and transform != "PROBIT" and self.parameters["base"].size:
            return score, constant(0.0, F64)
        return both_scores(score, transform, 1 - score if one_sided and positive else -score)

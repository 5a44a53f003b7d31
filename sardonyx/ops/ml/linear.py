"""Linear models: LinearRegressor, LinearClassifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.kernel.program import Host, Kernel, Template
from sardonyx.ops.framework.facts import Fact, tensor
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator
from sardonyx.ops.ml.scores import DOMAIN, TRANSFORMS, float_list, labels_of, logistic, probit, rows_of, transformed
from sardonyx.ops.ml.trees import row_count


class _Linear(Operator):
    """Rows times coefficients (targets, features), plus intercepts; in single precision, as onnxruntime computes.

    Coefficients behind the last one that the features need are left out, as there.
    """

    host_reason = "one matrix product in NumPy"
    coefficients: tuple[float, ...] = ()
    intercepts: tuple[float, ...] | None = None
    post_transform: str = "NONE"

    def scores(self, data: Array, targets: int) -> Array:
        rows = rows_of(data).astype(np.float32, copy=False)
        weights, features = float_list(self.coefficients), rows.shape[1]
        needed = targets * features
        if targets < 1 or weights.size < needed or weights.size % targets:
            raise ValueError(f"coefficients has {weights.size} entries for {targets} targets of {features} features")
        if self.post_transform not in TRANSFORMS:
            raise ValueError(f"post_transform '{self.post_transform}' is none of {', '.join(TRANSFORMS)}")
        found = rows @ weights[:needed].reshape(targets, features).T
        offsets = float_list(self.intercepts)
        if offsets.size not in (0, targets):
            raise ValueError(f"intercepts has {offsets.size} entries for {targets} targets")
        return found + offsets if offsets.size else found

    def kernel(self, name: str, targets: int, **more: Any) -> Kernel:
        """The native kernel called `name`; a host step, which raises the error, where attributes are wrong."""
        weights, offsets = float_list(self.coefficients), float_list(self.intercepts)
        fits = targets > 0 and weights.size and weights.size % targets == 0 and offsets.size in (0, targets)
        if not fits or self.post_transform not in TRANSFORMS:
            return Host(self.run, "its attributes contradict each other")
        parameters = {
            "coefficients": weights,
            "intercepts": offsets,
            "targets": targets,
            "transform": self.post_transform,
            **more,
        }
        return Template(name, parameters, self.run)


@operator("LinearRegressor", domain=DOMAIN)
class LinearRegressor(_Linear):
    """(rows, features) to (rows, targets); one target alone knows the post transform PROBIT only."""

    targets: int = 1

    def run(self, data: Array) -> Sequence[Value]:
        scores = self.scores(data, self.targets)
        if self.targets == 1:
            scores = probit(scores) if self.post_transform == "PROBIT" else scores
        elif scores.size:
            scores = transformed(scores, self.post_transform)
        return (scores.astype(np.float32),)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return self.kernel("linear_scores", self.targets)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [tensor(ir.DataType.FLOAT, (row_count(inputs[0]), self.targets))]


@operator("LinearClassifier", domain=DOMAIN)
class LinearClassifier(_Linear):
    """(rows, features) to each row's label and scores (rows, classes), one for each intercept.

    One score for two labels is that of the second one, chosen above 0. Labels are those of the scores before the
    post transform.
    """

    coefficients: tuple[float, ...]
    classlabels_ints: tuple[int, ...] | None = None
    classlabels_strings: tuple[str, ...] | None = None
    multi_class: int = 0

    def _classes(self) -> int:
        return len(self.intercepts or ()) or len(self.classlabels_strings or self.classlabels_ints or ()) or 1

    def run(self, data: Array) -> Sequence[Value]:
        classes = self._classes()
        labels = labels_of(self.classlabels_ints, self.classlabels_strings)
        scores = self.scores(data, classes)
        if classes > 1:
            if len(labels) < classes:
                raise ValueError(f"there are {len(labels)} labels for {classes} classes")
            winners = scores.argmax(axis=1)
            return labels[winners], (transformed(scores, self.post_transform) if scores.size else scores).astype(
                np.float32
            )
        winners = (scores[:, 0] > 0).astype(np.int64)
        if len(labels) != 2:
            chosen = labels_of((0, 1), ("0", "1") if self.classlabels_strings else None)[winners]
            return chosen, (probit(scores) if self.post_transform == "PROBIT" else scores).astype(np.float32)
        if self.post_transform == "PROBIT":
            scores = np.pad(probit(scores), ((0, 0), (0, 1)))
        elif self.post_transform == "LOGISTIC":
            scores = np.concatenate([logistic(-scores), logistic(scores)], axis=1)
        else:
            scores = np.concatenate([1 - scores, scores], axis=1)
        return labels[winners], scores.astype(np.float32)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        labels, classes = labels_of(self.classlabels_ints, self.classlabels_strings), self._classes()
        if labels.dtype == object:
            return Host(self.run, "its labels are strings, which are Python objects")
        if classes > 1 and len(labels) < classes:
            return Host(self.run, "its attributes contradict each other")
        return self.kernel("linear_classes", classes, labels=labels)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        rows, classes = row_count(inputs[0]), self._classes()
        labels = self.classlabels_strings or self.classlabels_ints or ()
        kind = ir.DataType.STRING if self.classlabels_strings else ir.DataType.INT64
        count = 2 if classes == 1 and len(labels) == 2 else classes
        return [tensor(kind, (rows,)), tensor(ir.DataType.FLOAT, (rows, count))]

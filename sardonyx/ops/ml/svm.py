"""Support vector regression: SVMRegressor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.ops.framework.facts import Fact, tensor
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator
from sardonyx.ops.ml.scores import DOMAIN, float_list, rows_of
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


@operator("SVMRegressor", domain=DOMAIN)
class SVMRegressor(Operator):
    """(rows, features) to (rows, 1): kernels with the support vectors, weighted and summed, plus rho.

    Without support vectors the coefficients are those of a linear model. `one_class` keeps the sign alone. As in
    onnxruntime the post transform has no effect on the one score.
    """

    host_reason = "a few matrix products in NumPy"
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

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [tensor(ir.DataType.FLOAT, (row_count(inputs[0]), 1))]

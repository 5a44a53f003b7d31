"""Support vector regression against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx import errors
from tests.ops.peer import compare, ours

DOMAIN = "ai.onnx.ml"
RNG = np.random.default_rng(31)
X = RNG.normal(size=(6, 3)).astype(np.float32)


def floats(count: int) -> list[float]:
    return RNG.normal(size=count).astype(np.float32).tolist()


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("one_class", [0, 1])
def test_regressor(kernel: str, one_class: int) -> None:
    compare(
        "SVMRegressor", [X], domain=DOMAIN, rtol=1e-4, coefficients=floats(5), support_vectors=floats(15),
        n_supports=5, rho=[0.25], kernel_type=kernel, kernel_params=[0.25, 0.125, 2.0], one_class=one_class,
    )  # fmt: skip


def test_regressor_without_support_vectors() -> None:
    weights = floats(3)
    (found,) = ours("SVMRegressor", [X], domain=DOMAIN, coefficients=weights, rho=[0.25])
    np.testing.assert_allclose(found[:, 0], X @ np.array(weights, np.float32) + 0.25, rtol=1e-5, atol=1e-6)
    with pytest.raises(errors.OnnxRuntimeError, match="coefficients has 4 entries"):
        ours("SVMRegressor", [X], domain=DOMAIN, coefficients=floats(4), rho=[0.25])

"""Linear models against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx import errors
from tests.ops.peer import compare, ours

DOMAIN = "ai.onnx.ml"
RNG = np.random.default_rng(11)
X = (RNG.normal(size=(4, 3)) * 2).astype(np.float32)


def floats(count: int) -> list[float]:
    return RNG.normal(size=count).astype(np.float32).tolist()


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("targets", [1, 2])
def test_regressor(transform: str, targets: int) -> None:
    compare(
        "LinearRegressor", [X], domain=DOMAIN, coefficients=floats(3 * targets), intercepts=floats(targets),
        targets=targets, post_transform=transform,
    )  # fmt: skip


def test_regressor_without_intercepts() -> None:
    compare("LinearRegressor", [X], domain=DOMAIN, coefficients=floats(3))


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
@pytest.mark.parametrize(
    ("classes", "labels"),
    [
        (1, {"classlabels_ints": [4, 5]}),
        (1, {"classlabels_strings": ["a", "b"]}),
        (2, {"classlabels_ints": [4, 5]}),
        (3, {"classlabels_strings": ["a", "b", "c"]}),
    ],
)
def test_classifier(transform: str, classes: int, labels: dict[str, Any]) -> None:
    compare(
        "LinearClassifier", [X], 2, domain=DOMAIN, coefficients=floats(3 * classes), intercepts=floats(classes),
        post_transform=transform, **labels,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int32])
def test_classifier_of_other_inputs(dtype: Any) -> None:
    compare(
        "LinearClassifier", [X.astype(dtype)], 2, domain=DOMAIN, coefficients=floats(9), intercepts=floats(3),
        classlabels_ints=[1, 2, 3],
    )  # fmt: skip


def test_coefficients_must_fit_the_features() -> None:
    with pytest.raises(errors.OnnxRuntimeError, match="coefficients has 2 entries"):
        ours("LinearRegressor", [X], domain=DOMAIN, coefficients=floats(2))
    with pytest.raises(errors.OnnxRuntimeError, match="coefficients has 7 entries"):
        ours("LinearRegressor", [X], domain=DOMAIN, coefficients=floats(7), targets=2)


@pytest.mark.parametrize("count", [12, 15])
def test_coefficients_behind_those_of_the_features_are_left_out(count: int) -> None:
    compare("LinearRegressor", [X], domain=DOMAIN, coefficients=floats(count), intercepts=floats(3), targets=3)
    compare(
        "LinearClassifier", [X], 2, domain=DOMAIN, coefficients=floats(count), intercepts=floats(3),
        classlabels_ints=[1, 2, 3], post_transform="LOGISTIC",
    )  # fmt: skip

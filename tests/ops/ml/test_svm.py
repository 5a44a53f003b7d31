"""Support vector machines against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx import errors
from sardonyx.ops.ml.coupling import coupled
from tests.ops.peer import compare, ours

DOMAIN = "ai.onnx.ml"
RNG = np.random.default_rng(31)
X = RNG.normal(size=(6, 3)).astype(np.float32)


def floats(count: int) -> list[float]:
    return [float(value) for value in RNG.normal(size=count).astype(np.float32)]


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


def classifier(classes: int, kernel: str, *, strings: bool, probabilities: bool = False) -> dict[str, Any]:
    """A random model with one to four support vectors for each class, three features each."""
    counts = RNG.integers(1, 5, size=classes).tolist()
    vectors, pairs = sum(counts), classes * (classes - 1) // 2
    labels = RNG.permutation(20)[:classes].tolist()
    found = {
        "vectors_per_class": counts,
        "support_vectors": floats(vectors * 3),
        "coefficients": floats((classes - 1) * vectors),
        "rho": floats(pairs),
        "kernel_type": kernel,
        "kernel_params": [0.25, 0.5, 2.0],
    }
    found.update(
        {"classlabels_strings": [f"c{label}" for label in labels]} if strings else {"classlabels_ints": labels}
    )
    if probabilities:
        found.update(prob_a=(-np.abs(floats(pairs))).tolist(), prob_b=floats(pairs))
    return found


@pytest.mark.parametrize("classes", [2, 3, 4, 5])
@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("strings", [False, True])
@pytest.mark.parametrize("probabilities", [False, True])
def test_classifier(classes: int, kernel: str, strings: bool, probabilities: bool) -> None:
    model = classifier(classes, kernel, strings=strings, probabilities=probabilities)
    compare("SVMClassifier", [X], 2, domain=DOMAIN, rtol=1e-4, **model)
    compare("SVMClassifier", [X[0]], 2, domain=DOMAIN, rtol=1e-4, **model)


@pytest.mark.parametrize("transform", ["SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("probabilities", [False, True])
def test_transformed_decisions(transform: str, classes: int, probabilities: bool) -> None:
    model = classifier(classes, "RBF", strings=True, probabilities=probabilities)
    compare("SVMClassifier", [X], 2, domain=DOMAIN, rtol=1e-4, post_transform=transform, **model)


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int32])
def test_classifier_of_other_inputs(dtype: Any) -> None:
    model = classifier(3, "RBF", strings=False, probabilities=True)
    compare("SVMClassifier", [(X * 3).astype(dtype)], 2, domain=DOMAIN, rtol=1e-4, **model)


@pytest.mark.parametrize("classes", [1, 2, 3, 5])
@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
@pytest.mark.parametrize("positive", [False, True])
def test_classifier_without_support_vectors(classes: int, transform: str, positive: bool) -> None:
    weights = np.array(floats(classes * 3), np.float32)
    weights = np.abs(weights) if positive else weights
    model: dict[str, Any] = {"coefficients": weights.tolist(), "rho": [0.25], "kernel_params": [0.0, 0.0, 0.0]}
    model.update(classlabels_ints=[7, 3, 5, 11, 2][:classes], post_transform=transform)
    compare("SVMClassifier", [X], 2, domain=DOMAIN, rtol=1e-4, **model)
    if classes == 2:
        compare("SVMClassifier", [X], 2, domain=DOMAIN, rtol=1e-4, prob_a=[-1.0], prob_b=[0.5], **model)


def test_coupling_finds_consistent_probabilities() -> None:
    """Where r_ij = p_i / (p_i + p_j) for some p, the minimum of the method is p."""
    truth = RNG.dirichlet(np.ones(4), size=7)
    chances = truth[:, :, None] / (truth[:, :, None] + truth[:, None, :])
    chances[:, np.arange(4), np.arange(4)] = 0
    np.testing.assert_allclose(coupled(chances.astype(np.float32)), truth, atol=0.02)
    np.testing.assert_allclose(coupled(chances.astype(np.float32)).sum(axis=1), 1, rtol=1e-5)


def test_classifier_that_does_not_fit() -> None:
    model = classifier(3, "RBF", strings=False, probabilities=True)
    with pytest.raises(errors.OnnxRuntimeError, match="do not fit 3 classes of 3 features"):
        ours("SVMClassifier", [X], 2, domain=DOMAIN, **{**model, "rho": [0.5]})
    with pytest.raises(errors.OnnxRuntimeError, match="prob_a and prob_b must have 3 entries"):
        ours("SVMClassifier", [X], 2, domain=DOMAIN, **{**model, "prob_b": [0.5]})
    with pytest.raises(errors.OnnxRuntimeError, match="classlabels_ints and classlabels_strings"):
        ours("SVMClassifier", [X], 2, domain=DOMAIN, **{key: model[key] for key in model if key != "classlabels_ints"})
    with pytest.raises(errors.OnnxRuntimeError, match="post_transform 'TANH' is none of"):
        ours("SVMClassifier", [X], 2, domain=DOMAIN, post_transform="TANH", **model)

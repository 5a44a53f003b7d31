"""Fused matrix products against onnxruntime."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sardonyx.kernel.evaluate import evaluate
from sardonyx.kernel.expr import Input
from sardonyx.kernel.program import Pointwise
from sardonyx.ops.microsoft.activations import _EXPRESSIONS, _FUNCTIONS, activate, activation_of
from tests.ops.microsoft import peer

RNG = np.random.default_rng(2)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def swapped(shape: tuple[int, ...], swap: int, first: int) -> tuple[int, ...]:
    """The shape that becomes `shape` when the operator has oriented it."""
    if swap:
        shape = (*shape[:-2], shape[-1], shape[-2])
    return (shape[-2], *shape[:-2], shape[-1]) if first else shape


@pytest.mark.parametrize(("trans_a", "trans_b", "batch_a", "batch_b"), itertools.product([0, 1], repeat=4))
def test_fused_matmul(trans_a: int, trans_b: int, batch_a: int, batch_b: int) -> None:
    a = normal(*swapped((2, 3, 4, 5), trans_a, batch_a))
    b = normal(*swapped((2, 3, 5, 6), trans_b, batch_b))
    attributes = {"alpha": 0.25, "transA": trans_a, "transB": trans_b, "transBatchA": batch_a, "transBatchB": batch_b}
    (found,) = peer.compare("FusedMatMul", [a, b], attributes=attributes)
    assert found.shape == (2, 3, 4, 6)


@pytest.mark.parametrize("op_type", ["FusedMatMul", "TransposeMatMul"])
@pytest.mark.parametrize(
    ("a", "b"), [((4, 5), (5, 6)), ((5,), (5, 6)), ((3, 4, 5), (5, 6)), ((4, 5), (2, 5, 6)), ((0, 5), (5, 6))]
)
def test_ranks_broadcast(op_type: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    peer.compare(op_type, [normal(*a), normal(*b)], attributes={"alpha": 2.0})


def test_different_inner_sizes_are_refused() -> None:
    with pytest.raises(Exception, match="differ: 5 and 4"):
        peer.run("FusedMatMul", [normal(3, 5), normal(4, 6)], symbolic=False)


@pytest.mark.parametrize("activation", ["Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Elu", "Softplus"])
@pytest.mark.parametrize("transposed", [0, 1])
def test_fused_gemm(activation: str, transposed: int) -> None:
    a, b = normal(*((4, 3) if transposed else (3, 4))), normal(*((5, 4) if transposed else (4, 5)))
    attributes = {"activation": activation, "alpha": 0.5, "beta": 2.0, "transA": transposed, "transB": transposed}
    if activation in ("LeakyRelu", "HardSigmoid", "Elu"):
        attributes["activation_alpha"] = 0.3
    if activation == "HardSigmoid":
        attributes["activation_beta"] = 0.4
    peer.compare("FusedGemm", [a, b, normal(5)], attributes=attributes)


def test_fused_gemm_without_c() -> None:
    peer.compare("FusedGemm", [normal(3, 4), normal(4, 5)], attributes={"activation": "Relu"})


@pytest.mark.parametrize("bias", [True, False])
def test_gemm_fast_gelu(bias: bool) -> None:
    x, w, b = normal(2, 3, 4), normal(4, 5), normal(5) if bias else None
    (found,) = peer.run("GemmFastGelu", [x, w, b])
    y = x.astype(np.float64) @ w + (0 if b is None else b)
    np.testing.assert_allclose(
        found, 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3))), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("activation", ["Relu", "Softmax", "LogSoftmax"])
def test_fused_matmul_activation(activation: str) -> None:
    a, b = normal(2, 3, 4), normal(5, 4)
    (found,) = peer.run("FusedMatMulActivation", [a, b], attributes={"activation": activation, "transB": 1})
    y = a.astype(np.float64) @ b.T
    if activation == "Relu":
        exact = np.maximum(y, 0)
    else:
        exact = np.exp(y) / np.exp(y).sum(-1, keepdims=True)
        exact = np.log(exact) if activation == "LogSoftmax" else exact
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5)


def test_an_unknown_activation_is_named() -> None:
    with pytest.raises(Exception, match="unknown activation 'Wobble'"):
        peer.run("FusedGemm", [normal(3, 4), normal(4, 5)], attributes={"activation": "Wobble"})


@pytest.mark.parametrize("activation", sorted(_FUNCTIONS))
def test_activations_are_the_same_as_expressions(activation: str) -> None:
    assert _EXPRESSIONS.keys() == _FUNCTIONS.keys()
    x = np.concatenate([np.linspace(-40, 40, 1001, dtype=np.float32), np.array([np.inf, -np.inf, np.nan], np.float32)])
    for parameters in ((), (0.5,), (0.25, 0.75)):
        expression = activation_of(activation, parameters)(Input(x.dtype, 0))
        (found,) = evaluate(Pointwise((x.dtype,), (expression,)), [x])
        with np.errstate(invalid="ignore"):
            expected = activate(activation, x, parameters)
        assert np.allclose(found, expected, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_unknown_activations_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown activation 'Swoosh'"):
        activation_of("Swoosh")

"""Adagrad, Adam and Momentum against the formulas of their specification in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx import errors
from tests.ops.peer import ours

DOMAIN = "ai.onnx.preview.training"
RATE = 0.125
SHAPES = [(3, 2), (4,)]


def adagrad(t: int, x: Any, g: Any, h: Any, *, norm: float, decay: float, epsilon: float) -> tuple[Any, Any]:
    g = norm * x + g
    h = h + g * g
    return x - RATE / (1 + t * decay) * g / (np.sqrt(h) + epsilon), h


def adam(t: int, x: Any, g: Any, v: Any, h: Any, **a: float) -> tuple[Any, Any, Any]:
    g = a["norm_coefficient"] * x + g
    v = a["alpha"] * v + (1 - a["alpha"]) * g
    h = a["beta"] * h + (1 - a["beta"]) * g * g
    rate = RATE * np.sqrt(1 - a["beta"] ** t) / (1 - a["alpha"] ** t) if t > 0 else RATE
    return (1 - a["norm_coefficient_post"]) * (x - rate * v / (np.sqrt(h) + a["epsilon"])), v, h


def momentum(t: int, x: Any, g: Any, v: Any, *, norm: float, alpha: float, beta: float, mode: str) -> tuple[Any, Any]:
    g = norm * x + g
    v = alpha * v + (beta if t > 0 else 1) * g
    return x - RATE * (g + alpha * v if mode == "nesterov" else v), v


def check(
    op_type: str, states: int, reference: Any, dtype: Any, shapes: list[tuple[int, ...]], **attributes: Any
) -> None:
    """Four steps, each from the outputs of the one before; `states` is how many accumulators each tensor has."""
    rng = np.random.default_rng(51)
    xs = [rng.normal(size=shape).astype(dtype) for shape in shapes]
    state = [np.abs(rng.normal(size=shape)).astype(dtype) for _ in range(states) for shape in shapes]
    exact = [array.astype(np.float64) for array in (*xs, *state)]
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    count = len(shapes)
    for t in range(4):
        gradients = [rng.normal(size=shape).astype(dtype) for shape in shapes]
        inputs = [np.array(RATE, dtype), np.array(t), *xs, *gradients, *state]
        found = ours(op_type, inputs, count * (states + 1), domain=DOMAIN, version=1, **attributes)
        results = [
            reference(t, exact[place], gradients[place].astype(np.float64), *exact[count + place :: count])
            for place in range(count)
        ]
        exact = [result[part] for part in range(states + 1) for result in results]
        for mine, theirs in zip(found, exact, strict=True):
            assert mine.dtype == dtype
            np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance)
        xs, state = found[:count], found[count:]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("norm", [0.0, 0.25])
class TestSteps:
    def test_adagrad(self, dtype: Any, count: int, norm: float) -> None:
        def reference(*arrays: Any) -> Any:
            return adagrad(*arrays, norm=norm, decay=0.5, epsilon=0.0625)

        check(
            "Adagrad", 1, reference, dtype, SHAPES[:count], norm_coefficient=norm, decay_factor=0.5, epsilon=0.0625,
        )  # fmt: skip

    def test_adam(self, dtype: Any, count: int, norm: float) -> None:
        attributes = {
            "alpha": 0.875, "beta": 0.9375, "epsilon": 0.0625, "norm_coefficient": norm,
            "norm_coefficient_post": norm / 2,
        }  # fmt: skip
        check("Adam", 2, lambda t, x, g, v, h: adam(t, x, g, v, h, **attributes), dtype, SHAPES[:count], **attributes)

    @pytest.mark.parametrize("mode", ["standard", "nesterov"])
    def test_momentum(self, dtype: Any, count: int, norm: float, mode: str) -> None:
        def reference(*arrays: Any) -> Any:
            return momentum(*arrays, norm=norm, alpha=0.875, beta=0.75, mode=mode)

        check(
            "Momentum", 1, reference, dtype, SHAPES[:count], norm_coefficient=norm, alpha=0.875, beta=0.75, mode=mode,
        )  # fmt: skip


def test_defaults_of_adam() -> None:
    values = {name: float(np.float32(value)) for name, value in (("alpha", 0.9), ("beta", 0.999), ("epsilon", 1e-6))}
    attributes = {**values, "norm_coefficient": 0.0, "norm_coefficient_post": 0.0}
    check("Adam", 2, lambda t, x, g, v, h: adam(t, x, g, v, h, **attributes), np.float64, SHAPES)


def test_adam_of_wrong_inputs() -> None:
    x = np.zeros(2, np.float32)
    with pytest.raises(errors.OnnxRuntimeError, match="one element each"):
        ours("Adam", [x, np.array(1), x, x, x, x], 3, domain=DOMAIN, version=1)

"""Activations that fused operators name in an attribute."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sardonyx.kernel.expr import Expr, absolute, exp, expm1, log1p, maximum, minimum, sigmoid, tanh, where
from sardonyx.ops.microsoft.rules import Array

# Each with the parameters that it reads, in the order in which fused operators list them, and their defaults.
_PARAMETERS: dict[str, tuple[float, ...]] = {
    "Clip": (float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)),
    "Elu": (1.0,),
    "HardSigmoid": (0.2, 0.5),
    "HardSwish": (),
    "LeakyRelu": (0.01,),
    "Relu": (),
    "ScaledTanh": (1.0, 1.0),
    "Selu": (1.67326319217681884765625, 1.05070102214813232421875),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": (1.0,),
}


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "Clip": lambda x, low, high: np.clip(x, low, high),
    "Elu": lambda x, alpha: np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x),
    "HardSigmoid": lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "LeakyRelu": lambda x, alpha: np.where(x < 0, alpha * x, x),
    "Relu": lambda x: np.maximum(x, 0),
    "ScaledTanh": lambda x, alpha, beta: alpha * np.tanh(beta * x),
    "Selu": lambda x, alpha, gamma: gamma * np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x),
    "Sigmoid": _sigmoid,
    "Softplus": lambda x: np.logaddexp(x, 0),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Tanh": np.tanh,
    "ThresholdedRelu": lambda x, alpha: np.where(x > alpha, x, 0),
}


def activate(name: str | None, x: Array, parameters: Sequence[float | None] = ()) -> Array:
    """The activation `name` of `x`, in its dtype; None and "" leave `x` as it is.

    `parameters` are alpha, beta… in order; None stands for the default. ValueError for a name that is none.
    """
    if not name:
        return x
    if name not in _FUNCTIONS:
        raise ValueError(f"unknown activation '{name}'; known are {', '.join(sorted(_FUNCTIONS))}")
    given = (*parameters, *[None] * len(_PARAMETERS[name]))
    chosen = [
        x.dtype.type(default if value is None else value)
        for value, default in zip(given, _PARAMETERS[name], strict=False)
    ]
    with np.errstate(over="ignore"):
        return np.asarray(_FUNCTIONS[name](x, *chosen), x.dtype)


# The same as expressions of kernels.
_EXPRESSIONS: dict[str, Callable[..., Expr]] = {
    "Clip": lambda x, low, high: minimum(maximum(x, low), high),
    "Elu": lambda x, alpha: where(x < 0, alpha * expm1(minimum(x, 0)), x),
    "HardSigmoid": lambda x, alpha, beta: minimum(maximum(alpha * x + beta, 0), 1),
    "HardSwish": lambda x: x * minimum(maximum(x * (1 / 6) + 0.5, 0), 1),
    "LeakyRelu": lambda x, alpha: where(x < 0, alpha * x, x),
    "Relu": lambda x: maximum(x, 0),
    "ScaledTanh": lambda x, alpha, beta: alpha * tanh(beta * x),
    "Selu": lambda x, alpha, gamma: gamma * where(x < 0, alpha * expm1(minimum(x, 0)), x),
    "Sigmoid": lambda x: sigmoid(x),
    "Softplus": lambda x: maximum(x, 0) + log1p(exp(-absolute(x))),
    "Softsign": lambda x: x / (1 + absolute(x)),
    "Tanh": lambda x: tanh(x),
    "ThresholdedRelu": lambda x, alpha: where(x > alpha, x, 0),
}


def activation_of(name: str | None, parameters: Sequence[float | None] = ()) -> Callable[[Expr], Expr]:
    """The activation as a function of an expression; ValueError for a name that is none."""
    if not name:
        return lambda x: x
    if name not in _EXPRESSIONS:
        raise ValueError(f"unknown activation '{name}'; known are {', '.join(sorted(_EXPRESSIONS))}")
    function = _EXPRESSIONS[name]
    given = (*parameters, *[None] * len(_PARAMETERS[name]))
    chosen = [default if value is None else value for value, default in zip(given, _PARAMETERS[name], strict=False)]
    return lambda x: function(x, *chosen)

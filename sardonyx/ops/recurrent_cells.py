"""What one time step of a recurrent layer does, as expressions over the units of the hidden state.

A step has stages. In a stage the state is multiplied by some gates' rows of R; then expressions give, unit by unit, new
values of the layer's planes: vectors of one number for each unit. Plane 0 is the hidden state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sardonyx.kernel.canonical import Canonical, canonical
from sardonyx.kernel.expr import Expr, Input, absolute, exp, expm1, log1p, maximum, minimum, sigmoid, tanh, where
from sardonyx.light_dataclass import dataclass

Activation = Callable[[Expr], Expr]


# Each activation with the defaults of its alpha and beta.
_ACTIVATIONS: dict[str, tuple[Callable[[Expr, float, float], Expr], float, float]] = {
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "elu": (lambda x, a, b: where(x < 0.0, a * expm1(x), x), 1.0, 0.0),
    "hardsigmoid": (lambda x, a, b: minimum(maximum(a * x + b, 0.0), 1.0), 0.2, 0.5),
    "leakyrelu": (lambda x, a, b: where(x < 0.0, a * x, x), 0.01, 0.0),
    "relu": (lambda x, a, b: maximum(x, 0.0), 0.0, 0.0),
    "scaledtanh": (lambda x, a, b: a * tanh(b * x), 1.0, 1.0),
    "sigmoid": (lambda x, a, b: sigmoid(x), 0.0, 0.0),
    "softplus": (lambda x, a, b: maximum(x, 0.0) + log1p(exp(-absolute(x))), 0.0, 0.0),
    "softsign": (lambda x, a, b: x / (1.0 + absolute(x)), 0.0, 0.0),
    "tanh": (lambda x, a, b: tanh(x), 0.0, 0.0),
    "thresholdedrelu": (lambda x, a, b: where(x > a, x, 0.0), 1.0, 0.0),
}
_WITH_ALPHA = frozenset({"affine", "elu", "hardsigmoid", "leakyrelu", "scaledtanh", "thresholdedrelu"})
_WITH_BETA = frozenset({"affine", "hardsigmoid", "scaledtanh"})


def activations(names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]) -> list[Activation]:
    """The functions of these names; alphas and betas go to those that have one, in order.

    ValueError for an unknown name.
    """
    left_alphas, left_betas = iter(alphas), iter(betas)
    made = []
    for name in names:
        key = name.lower()
        if key not in _ACTIVATIONS:
            raise ValueError(f"unknown activation '{name}', expected one of {sorted(_ACTIVATIONS)}")
        function, alpha, beta = _ACTIVATIONS[key]
        alpha = next(left_alphas, alpha) if key in _WITH_ALPHA else alpha
        beta = next(left_betas, beta) if key in _WITH_BETA else beta
        made.append(_with(function, alpha, beta))
    return made


def _with(function: Callable[[Expr, float, float], Expr], alpha: float, beta: float) -> Activation:
    return lambda x: function(x, alpha, beta)


def clipped(function: Activation, clip: float | None) -> Activation:
    """The function of its argument limited to [-clip, clip], where a limit is given."""
    return function if clip is None else lambda x: function(minimum(maximum(x, -clip), clip))


@dataclass(frozen=True)
class Stage:
    """One part of a time step.

    Gates `first` to `first + count` (excluded) of R are multiplied by plane `source`. The inputs of `outputs` are, for
    one unit, the input's parts of those gates, the recurrent parts (with the recurrent biases), the planes as they were
    before the stage, and the peepholes. Its results become the planes `targets`.
    """

    first: int
    count: int
    source: int
    targets: tuple[int, ...]
    outputs: Canonical


@dataclass(frozen=True)
class Cell:
    """A time step: its gates, its planes and its stages.

    The first `states` planes live on from step to step, the others within a step; there are `peepholes` vectors.
    """

    gates: int
    states: int
    planes: int
    peepholes: int
    stages: tuple[Stage, ...]


class _Names:
    """The inputs of a stage's expressions by their parts."""

    def __init__(self, dtype: np.dtype[Any], count: int, planes: int, peepholes: int = 0) -> None:
        numbered = [Input(dtype, index) for index in range(2 * count + planes + peepholes)]
        self.inputs, self.products = numbered[:count], numbered[count : 2 * count]
        self.planes = numbered[2 * count : 2 * count + planes]
        self.peepholes = numbered[2 * count + planes :]

    @property
    def sums(self) -> list[Expr]:
        return [x + product for x, product in zip(self.inputs, self.products, strict=True)]


def simple_cell(functions: Sequence[Activation], dtype: np.dtype[Any]) -> Cell:
    """RNN: H = f(X W' + H R' + biases)."""
    (total,) = _Names(dtype, 1, 1).sums
    return Cell(1, 1, 1, 0, (Stage(0, 1, 0, (0,), canonical([functions[0](total)])),))


def gated_cell(functions: Sequence[Activation], dtype: np.dtype[Any], *, reset_behind: bool) -> Cell:
    """GRU with gates z (update), r (reset) and h: H = (1 - z) h + z H.

    The reset gate is applied to the hidden state, or, with `reset_behind`, to its product with R.
    """
    f, g = functions
    if reset_behind:
        names = _Names(dtype, 3, 1)
        update, reset = (f(total) for total in names.sums[:2])
        candidate = g(names.inputs[2] + reset * names.products[2])
        new = (1.0 - update) * candidate + update * names.planes[0]
        return Cell(3, 1, 1, 0, (Stage(0, 3, 0, (0,), canonical([new])),))
    names = _Names(dtype, 2, 3)
    update, reset = (f(total) for total in names.sums)
    gates = Stage(0, 2, 0, (1, 2), canonical([update, reset * names.planes[0]]))
    names = _Names(dtype, 1, 3)
    hidden, update, _ = names.planes
    new = (1.0 - update) * g(names.sums[0]) + update * hidden
    return Cell(3, 1, 3, 0, (gates, Stage(2, 1, 2, (0,), canonical([new]))))


def long_short_cell(
    functions: Sequence[Activation], dtype: np.dtype[Any], *, couples_forget: bool, has_peepholes: bool
) -> Cell:
    """LSTM with gates i, o, f, c: C = f C + i c, H = o h(C); with `couples_forget` f is 1 - i."""
    f, g, h = functions
    peepholes = 3 if has_peepholes else 0
    names = _Names(dtype, 4, 2, peepholes)
    at_input, at_output, at_forget, candidate = names.sums
    cell: Expr = names.planes[1]
    if has_peepholes:
        at_input = at_input + names.peepholes[0] * cell
        at_forget = at_forget + names.peepholes[2] * cell
    entering = f(at_input)
    kept = 1.0 - entering if couples_forget else f(at_forget)
    cell = kept * cell + entering * g(candidate)
    if has_peepholes:
        at_output = at_output + names.peepholes[1] * cell
    hidden = f(at_output) * h(cell)
    return Cell(4, 2, 2, peepholes, (Stage(0, 4, 0, (0, 1), canonical([hidden, cell])),))

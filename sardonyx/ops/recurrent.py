"""Recurrent layers: RNN, GRU, LSTM, with every activation, direction, layout and sequence length.

The input's part of the gates is one matrix product over the whole sequence; the loop adds the state's part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from sardonyx.kernel.evaluate import working_dtype
from sardonyx.ops.framework.facts import Dim, Fact, unknown_dim
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Cost, Operator, Value, elements, operator

Activation = Callable[[Array], Array]


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


# Each activation with the defaults of its alpha and beta.
_ACTIVATIONS: dict[str, tuple[Callable[[Array, float, float], Array], float, float]] = {
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "elu": (lambda x, a, b: np.where(x < 0, a * np.expm1(x), x), 1.0, 0.0),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5),
    "leakyrelu": (lambda x, a, b: np.where(x < 0, a * x, x), 0.01, 0.0),
    "relu": (lambda x, a, b: np.maximum(x, 0), 0.0, 0.0),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "sigmoid": (lambda x, a, b: _sigmoid(x), 0.0, 0.0),
    "softplus": (lambda x, a, b: np.logaddexp(x, 0), 0.0, 0.0),
    "softsign": (lambda x, a, b: x / (1 + np.abs(x)), 0.0, 0.0),
    "tanh": (lambda x, a, b: np.tanh(x), 0.0, 0.0),
    "thresholdedrelu": (lambda x, a, b: np.where(x > a, x, 0), 1.0, 0.0),
}
_WITH_ALPHA = frozenset({"affine", "elu", "hardsigmoid", "leakyrelu", "scaledtanh", "thresholdedrelu"})
_WITH_BETA = frozenset({"affine", "hardsigmoid", "scaledtanh"})


class Recurrent(Operator):
    """What the three layers share: directions, sequence lengths, layouts, the loop over time.

    `gates` counts the rows of W and R in units of the hidden size; `default_activations` are those of one direction.
    """

    activation_alpha: tuple[float, ...] | None = None
    activation_beta: tuple[float, ...] | None = None
    activations: tuple[str, ...] | None = None
    clip: float | None = None
    direction: str = "forward"
    hidden_size: int | None = None
    layout: int = 0

    host_reason = "the recurrent layer of NumPy: no native kernel"
    gates: ClassVar[int] = 1
    default_activations: ClassVar[tuple[str, ...]] = ("Tanh",)

    def step(
        self, x: Array, state: list[Array], r: Array, bias: Array, extra: Array | None, functions: Sequence[Activation]
    ) -> list[Array]:
        """The next state, hidden state first; `x` is the input's part of the gates (batch, gates * hidden)."""
        raise NotImplementedError

    def directions(self) -> tuple[bool, ...]:
        """For each direction, whether it runs backwards; ValueError for an unknown one."""
        found = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}.get(self.direction)
        if found is None:
            raise ValueError(f"direction must be forward, reverse or bidirectional, not '{self.direction}'")
        return found

    def functions(self) -> list[list[Activation]]:
        """The activations of each direction; alphas and betas go to those that have one, in order."""
        count = len(self.default_activations)
        directions = len(self.directions())
        names = self.activations or self.default_activations * directions
        if len(names) != count * directions:
            raise ValueError(f"activations {names} must be {count * directions} names")
        alphas, betas = iter(self.activation_alpha or ()), iter(self.activation_beta or ())
        made: list[Activation] = []
        for name in names:
            key = name.lower()
            if key not in _ACTIVATIONS:
                raise ValueError(f"unknown activation '{name}', expected one of {sorted(_ACTIVATIONS)}")
            function, alpha, beta = _ACTIVATIONS[key]
            alpha = next(alphas, alpha) if key in _WITH_ALPHA else alpha
            beta = next(betas, beta) if key in _WITH_BETA else beta
            made.append(lambda x, f=function, a=alpha, b=beta: f(x, a, b))  # type: ignore[misc]
        return [made[index * count : (index + 1) * count] for index in range(directions)]

    def clipped(self, x: Array) -> Array:
        """What enters an activation: limited to [-clip, clip] where the attribute is given."""
        return x if self.clip is None else np.clip(x, -self.clip, self.clip)

    def run_layer(
        self,
        x: Array,
        w: Array,
        r: Array,
        bias: Array | None,
        lengths: Array | None,
        initial: Sequence[Array | None],
        extra: Array | None = None,
    ) -> list[Value]:
        """Y and the last states; `initial` holds a state or None for each state that a step gives."""
        wide = working_dtype(x.dtype)
        sequence = (x.swapaxes(0, 1) if self.layout else x).astype(wide, copy=False)
        steps, batch, _ = sequence.shape
        hidden = r.shape[2]
        if w.shape[:2] != (len(self.directions()), self.gates * hidden) or w.shape[2] != sequence.shape[2]:
            raise ValueError(f"W of shape {w.shape} does not fit R of shape {r.shape} and X of shape {x.shape}")
        ends = np.full(batch, steps) if lengths is None else lengths.astype(np.int64)
        outputs = np.zeros((steps, len(self.directions()), batch, hidden), wide)
        finals: list[list[Array]] = []
        for index, (backwards, functions) in enumerate(zip(self.directions(), self.functions(), strict=True)):
            both = np.zeros(2 * self.gates * hidden, wide) if bias is None else bias[index].astype(wide, copy=False)
            state = [np.zeros((batch, hidden), wide) if s is None else self._state(s, index, wide) for s in initial]
            projected = sequence @ w[index].astype(wide, copy=False).T + both[: self.gates * hidden]
            own = None if extra is None else extra[index].astype(wide, copy=False)
            back = r[index].astype(wide, copy=False)
            # A backward direction meets the padding of a short sequence first and leaves its state alone there.
            for time in reversed(range(steps)) if backwards else range(steps):
                new = self.step(projected[time], state, back, both[self.gates * hidden :], own, functions)
                active = (time < ends)[:, None]
                state = [np.where(active, after, before) for after, before in zip(new, state, strict=True)]
                outputs[time, index] = np.where(active, state[0], 0)
            finals.append(state)
        y = outputs.transpose(2, 0, 1, 3) if self.layout else outputs
        last = [
            np.stack([state[number] for state in finals], 1 if self.layout else 0) for number in range(len(initial))
        ]
        return [np.ascontiguousarray(value).astype(x.dtype, copy=False) for value in (y, *last)]

    def _state(self, state: Array, index: int, dtype: np.dtype[Any]) -> Array:
        return (state[:, index] if self.layout else state[index]).astype(dtype, copy=False)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, r = inputs[0], inputs[2]
        assert x is not None
        if x.shape is None:
            return [Fact(x.type, None)] * self.wanted_outputs
        if len(x.shape) != 3:
            raise ValueError(f"X must have rank 3, not shape {x.shape}")
        hidden: Dim = self.hidden_size or (r.shape[2] if r is not None and r.shape else unknown_dim())
        count = len(self.directions())
        if self.layout:
            batch, steps = x.shape[0], x.shape[1]
            shapes: list[tuple[Dim, ...]] = [(batch, steps, count, hidden), (batch, count, hidden)]
        else:
            steps, batch = x.shape[0], x.shape[1]
            shapes = [(steps, count, batch, hidden), (count, batch, hidden)]
        return [Fact(x.type, shapes[0]), Fact(x.type, shapes[1]), Fact(x.type, shapes[1])][: self.wanted_outputs]

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        x, w, r = inputs[0], inputs[1], inputs[2]
        moved = super().cost(inputs, outputs).bytes
        weights = [None if fact is None else elements(fact) for fact in (w, r)]
        if x is None or x.shape is None or not all(isinstance(dim, int) for dim in x.shape[:2]):
            return Cost(None, moved)
        if weights[0] is None or weights[1] is None:
            return Cost(None, moved)
        return Cost(2.0 * x.shape[0] * x.shape[1] * (weights[0] + weights[1]), moved)  # type: ignore[operator]


class OneState(Recurrent):
    """A recurrent layer whose only state is its output."""

    def run(
        self,
        x: Array,
        w: Array,
        r: Array,
        bias: Array | None = None,
        lengths: Array | None = None,
        initial: Array | None = None,
    ) -> Sequence[Value]:
        return self.run_layer(x, w, r, bias, lengths, [initial])


@operator("RNN")
class RNN(OneState):
    """H = f(X W' + H R' + biases)."""

    def step(
        self, x: Array, state: list[Array], r: Array, bias: Array, extra: Array | None, functions: Sequence[Activation]
    ) -> list[Array]:
        return [functions[0](self.clipped(x + state[0] @ r.T + bias))]


@operator("GRU")
class GRU(OneState):
    """Gates z (update), r (reset) and h: H = (1 - z) h + z H."""

    linear_before_reset: int = 0

    gates = 3
    default_activations = ("Sigmoid", "Tanh")

    def step(
        self, x: Array, state: list[Array], r: Array, bias: Array, extra: Array | None, functions: Sequence[Activation]
    ) -> list[Array]:
        f, g = functions
        (h,) = state
        size = h.shape[1]
        gates = self.clipped(x[:, : 2 * size] + h @ r[: 2 * size].T + bias[: 2 * size])
        update, reset = f(gates[:, :size]), f(gates[:, size:])
        if self.linear_before_reset:
            candidate = x[:, 2 * size :] + reset * (h @ r[2 * size :].T + bias[2 * size :])
        else:
            candidate = x[:, 2 * size :] + (reset * h) @ r[2 * size :].T + bias[2 * size :]
        return [(1 - update) * g(self.clipped(candidate)) + update * h]


@operator("LSTM")
class LSTM(Recurrent):
    """Gates i, o, f, c with optional peepholes: C = f C + i c, H = o h(C)."""

    input_forget: int = 0

    gates = 4
    default_activations = ("Sigmoid", "Tanh", "Tanh")

    def step(
        self, x: Array, state: list[Array], r: Array, bias: Array, extra: Array | None, functions: Sequence[Activation]
    ) -> list[Array]:
        f, g, h = functions
        hidden, cell = state
        at_input, at_output, at_forget, candidate = np.split(x + hidden @ r.T + bias, 4, axis=1)
        if extra is not None:
            for_input, for_output, for_forget = np.split(extra, 3)
            at_input = at_input + for_input * cell
            at_forget = at_forget + for_forget * cell
        entering = f(self.clipped(at_input))
        kept = 1 - entering if self.input_forget else f(self.clipped(at_forget))
        cell = kept * cell + entering * g(self.clipped(candidate))
        if extra is not None:
            at_output = at_output + for_output * cell
        return [f(self.clipped(at_output)) * h(cell), cell]

    def run(
        self,
        x: Array,
        w: Array,
        r: Array,
        bias: Array | None = None,
        lengths: Array | None = None,
        initial_h: Array | None = None,
        initial_c: Array | None = None,
        peepholes: Array | None = None,
    ) -> Sequence[Value]:
        return self.run_layer(x, w, r, bias, lengths, [initial_h, initial_c], peepholes)

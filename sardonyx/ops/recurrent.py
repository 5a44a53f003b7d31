"""Recurrent layers: RNN, GRU, LSTM, with every activation, direction, layout and sequence length.

The input's part of the gates is one matrix product over the whole sequence; the loop adds the state's part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from sardonyx import errors
from sardonyx.kernel.evaluate import evaluate, working_dtype
from sardonyx.kernel.program import Host, Kernel, Pointwise, Template
from sardonyx.ops.framework.facts import Dim, Fact, unknown_dim
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Cost, Operator, Value, elements, operator
from sardonyx.ops.recurrent_cells import (
    Activation,
    Cell,
    activations,
    clipped,
    gated_cell,
    long_short_cell,
    simple_cell,
)


class Recurrent(Operator):
    """What the three layers share: directions, sequence lengths, layouts, the loop over time.

    `gates` counts the rows of W and R in units of the hidden size, `states` what lives on from step to step;
    `default_activations` are those of one direction; `template` is the native kernel.
    """

    activation_alpha: tuple[float, ...] | None = None
    activation_beta: tuple[float, ...] | None = None
    activations: tuple[str, ...] | None = None
    clip: float | None = None
    direction: str = "forward"
    hidden_size: int | None = None
    layout: int = 0

    gates: ClassVar[int] = 1
    states: ClassVar[int] = 1
    default_activations: ClassVar[tuple[str, ...]] = ("Tanh",)
    template: ClassVar[str] = "recurrent"

    def cell(self, functions: Sequence[Activation], dtype: np.dtype[Any], has_peepholes: bool) -> Cell:
        """What a time step does, for values of a dtype."""
        raise NotImplementedError

    def directions(self) -> tuple[bool, ...]:
        """For each direction, whether it runs backwards; ValueError for an unknown one."""
        found = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}.get(self.direction)
        if found is None:
            raise ValueError(f"direction must be forward, reverse or bidirectional, not '{self.direction}'")
        return found

    def cells(self, dtype: np.dtype[Any], has_peepholes: bool) -> tuple[Cell, ...]:
        """The time step of each direction."""
        count = len(self.default_activations)
        directions = len(self.directions())
        names = self.activations or self.default_activations * directions
        if len(names) != count * directions:
            raise ValueError(f"activations {names} must be {count * directions} names")
        functions = activations(names, self.activation_alpha or (), self.activation_beta or ())
        return tuple(
            self.cell(functions[index * count : (index + 1) * count], dtype, has_peepholes)
            for index in range(directions)
        )

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        dtype = inputs[0]
        if dtype is None:
            return Host(self.run, "the type of X is not known before the run")
        has_peepholes = len(inputs) > 7 and inputs[7] is not None
        parameters = {
            "cells": self.cells(working_dtype(dtype), has_peepholes),
            "backwards": self.directions(),
            "batch_first": bool(self.layout),
            "hidden_size": self.hidden_size,
            "outputs": tuple(self.has_output(index) for index in range(1 + self.states)),
        }
        return Template(self.template, parameters, self.run)

    def run(self, *inputs: Value) -> Sequence[Value]:
        """Y and the last states, from X, W, R, B, the lengths, the initial states and the peepholes."""
        x, w, r, bias, lengths, *rest = every_input(inputs)
        wide = working_dtype(x.dtype)
        sequence = (x.swapaxes(0, 1) if self.layout else x).astype(wide, copy=False)
        steps, batch, _ = sequence.shape
        hidden = r.shape[2]
        check_shapes(len(self.directions()), self.gates, self.hidden_size, x.shape, w.shape, r.shape)
        ends = np.full(batch, steps) if lengths is None else lengths.astype(np.int64)
        for end in ends:
            if not 0 <= end <= steps:
                raise length_error(int(end), steps)
        outputs = np.zeros((steps, len(self.directions()), batch, hidden), wide)
        finals: list[list[Array]] = []
        cells = self.cells(wide, rest[2] is not None)
        for index, (backwards, cell) in enumerate(zip(self.directions(), cells, strict=True)):
            both = np.zeros(2 * self.gates * hidden, wide) if bias is None else bias[index].astype(wide, copy=False)
            planes = [
                np.zeros((batch, hidden), wide) if state is None else self._state(state, index, wide)
                for state in (*rest[: self.states], *[None] * (cell.planes - self.states))
            ]
            projected = sequence @ w[index].astype(wide, copy=False).T + both[: self.gates * hidden]
            product = recurrent_product(r[index].astype(wide, copy=False), both[self.gates * hidden :])
            peepholes = [] if rest[2] is None else np.split(rest[2][index].astype(wide, copy=False), 3)
            # A backward direction meets the padding of a short sequence first and leaves its state alone there.
            for time in reversed(range(steps)) if backwards else range(steps):
                new = time_step(cell, projected[time], planes, product, peepholes)
                active = (time < ends)[:, None]
                planes = [np.where(active, after, before) for after, before in zip(new, planes, strict=True)]
                outputs[time, index] = np.where(active, planes[0], 0)
            finals.append(planes[: self.states])
        y = outputs.transpose(2, 0, 1, 3) if self.layout else outputs
        last = [np.stack(state, 1 if self.layout else 0) for state in zip(*finals, strict=True)]
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


def every_input(inputs: Sequence[Value]) -> list[Value]:
    """X, W, R, B, the lengths, the initial states and the peepholes; None for those that are absent."""
    return [*inputs, *[None] * (8 - len(inputs))]


def check_shapes(
    directions: int, gates: int, hidden: int | None, x: Sequence[int], w: Sequence[int], r: Sequence[int]
) -> None:
    """ValueError unless X, W and R of these shapes belong together, with `hidden` units where that is given."""
    if len(x) != 3 or len(w) != 3 or len(r) != 3:
        raise ValueError(f"X, W and R must have rank 3, not shapes {tuple(x)}, {tuple(w)} and {tuple(r)}")
    units = r[2] if hidden is None else hidden
    origin = "the last dimension of R" if hidden is None else "hidden_size"
    for name, shape, last in (("R", r, units), ("W", w, x[2])):
        expected = directions, gates * units, last
        if tuple(shape) != expected:
            raise ValueError(
                f"{name} must have shape {expected} for {_counted(directions, 'direction')}, {_counted(gates, 'gate')} "
                f"and {_counted(units, 'unit')} ({origin}) over X of shape {tuple(x)}, not {tuple(shape)}"
            )


def length_error(length: int, steps: int) -> errors.InvalidArgument:
    """The error of an entry of sequence_lens that is no number of time steps."""
    return errors.InvalidArgument(
        f"Invalid value/s in sequence_lens. All values must be >= 0 and <= seq_length. seq_length={steps}, not {length}"
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


# The recurrent part of some gates, from a plane and the rows of R that belong to them.
Recurrence = Callable[[Array, slice], Array]


def recurrent_product(r: Array, bias: Array) -> Recurrence:
    """A plane times rows of R, plus their biases."""
    return lambda plane, rows: np.asarray(plane @ r[rows].T + bias[rows])


def time_step(
    cell: Cell, x: Array, planes: Sequence[Array], product: Recurrence, peepholes: Sequence[Array]
) -> list[Array]:
    """The planes after one step; `x` is the input's part of the gates (batch, gates * hidden)."""
    new = list(planes)
    hidden = planes[0].shape[1]
    inputs = np.split(x, cell.gates, axis=1)
    for stage in cell.stages:
        rows = slice(stage.first * hidden, (stage.first + stage.count) * hidden)
        products = np.split(product(new[stage.source], rows), stage.count, axis=1)
        values = [*inputs[stage.first : stage.first + stage.count], *products, *new, *peepholes]
        program = Pointwise(tuple(value.dtype for value in values), stage.outputs.roots)
        for target, value in zip(stage.targets, evaluate(program, values), strict=True):
            new[target] = value
    return new


@operator("RNN")
class RNN(Recurrent):
    """H = f(X W' + H R' + biases)."""

    def cell(self, functions: Sequence[Activation], dtype: np.dtype[Any], has_peepholes: bool) -> Cell:
        return simple_cell([clipped(function, self.clip) for function in functions], dtype)


@operator("GRU")
class GRU(Recurrent):
    """Gates z (update), r (reset) and h: H = (1 - z) h + z H."""

    linear_before_reset: int = 0

    gates = 3
    default_activations = ("Sigmoid", "Tanh")

    def cell(self, functions: Sequence[Activation], dtype: np.dtype[Any], has_peepholes: bool) -> Cell:
        limited = [clipped(function, self.clip) for function in functions]
        return gated_cell(limited, dtype, reset_behind=bool(self.linear_before_reset))


@operator("LSTM")
class LSTM(Recurrent):
    """Gates i, o, f, c with optional peepholes: C = f C + i c, H = o h(C)."""

    input_forget: int = 0

    gates = 4
    states = 2
    default_activations = ("Sigmoid", "Tanh", "Tanh")

    def cell(self, functions: Sequence[Activation], dtype: np.dtype[Any], has_peepholes: bool) -> Cell:
        f, g, h = functions
        limited = [clipped(f, self.clip), clipped(g, self.clip), h]
        return long_short_cell(limited, dtype, couples_forget=bool(self.input_forget), has_peepholes=has_peepholes)

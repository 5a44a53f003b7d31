"""DynamicQuantizeLSTM: an LSTM with 8-bit weights whose activations are quantised while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.operator import Cost, operator
from sardonyx.ops.microsoft.integer_matmul import dynamically_quantized, moved, scaled_product
from sardonyx.ops.microsoft.linear_quantization import Array, integers, padded
from sardonyx.ops.microsoft.rules import DOMAIN, dim, expect_rank, like
from sardonyx.ops.recurrent import LSTM, time_step
from sardonyx.ops.recurrent_cells import Cell

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


class QuantizedWeight:
    """One direction's weight (rows, 4 * hidden) with its scale and zero point, ready for products."""

    def __init__(self, weight: Array, scale: Array, zero_point: Array) -> None:
        self.values = integers(weight, zero_point)
        self.scale = scale

    def product(self, x: Array) -> Array:
        """x @ weight, x quantised to uint8 over its whole range."""
        codes, step = dynamically_quantized(x)
        return scaled_product(codes, step, self.values, self.scale, None)


@operator("DynamicQuantizeLSTM", domain=DOMAIN)
class DynamicQuantizeLSTM(LSTM):
    """LSTM over (length, batch, size) whose weights have the gates in their last axis; X is quantised over its whole
    range, the hidden state of all sequences together in every time step. A backward direction begins with the last
    step of each sequence.
    """

    inputs: ClassVar[str] = (
        "X, W, R, B?, sequence_lens?, initial_h?, initial_c?, P?, W_scale, W_zero_point, R_scale, R_zero_point"
    )
    outputs: ClassVar[str] = "Y?, Y_h?, Y_c?"
    layout: int = 0

    template = "dynamic_quantize_lstm"

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, w, r, bias, lengths, *states, peepholes, w_scale, w_zero, r_scale, r_zero = padded(inputs, 12)
        parameters = {"W_scale": w_scale, "W_zero_point": w_zero, "R_scale": r_scale, "R_zero_point": r_zero}
        shapes = {name: value.shape for name, value in parameters.items()}
        check_quantized_shapes(len(self.directions()), self.hidden_size, x.shape, w.shape, r.shape, shapes)
        steps, batch, _ = x.shape
        hidden = r.shape[1]
        ends = np.full(batch, steps) if lengths is None else lengths
        parts: list[list[Array]] = []
        for index, (backwards, cell) in enumerate(
            zip(self.directions(), self.cells(x.dtype, peepholes is not None), strict=True)
        ):
            weights = QuantizedWeight(w[index], w_scale[index], w_zero[index])
            projected = weights.product(reverse_each(x, ends) if backwards else x)
            if bias is not None:
                projected = projected + (bias[index, : 4 * hidden] + bias[index, 4 * hidden :])
            y, *last = self.one_direction(
                projected,
                QuantizedWeight(r[index], r_scale[index], r_zero[index]),
                ends,
                [np.zeros((batch, hidden), x.dtype) if state is None else state[index] for state in states],
                cell,
                [] if peepholes is None else np.split(peepholes[index], 3),
            )
            parts.append([reverse_each(y, ends) if backwards else y, *last])
        outputs = zip(zip(*parts, strict=True), (1, 0, 0), strict=True)
        return [np.stack(values, axis) for values, axis in outputs]

    @staticmethod
    def one_direction(
        projected: Array,
        r: QuantizedWeight,
        ends: Array,
        planes: list[Array],
        cell: Cell,
        peepholes: Sequence[Array],
    ) -> list[Array]:
        """Outputs (length, batch, hidden) and the last states of one direction, from its first step to its last."""
        y = np.zeros((*projected.shape[:2], planes[0].shape[1]), projected.dtype)
        for step in range(int(ends.max(initial=0))):
            new = time_step(cell, projected[step], planes, lambda state, _: r.product(state), peepholes)
            alive = (step < ends)[:, None]
            y[step] = np.where(alive, new[0], 0)
            planes = [np.where(alive, after, before) for after, before in zip(new, planes, strict=True)]
        return [y, *planes]

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, r = inputs[0], inputs[2]
        expect_rank(x, (3,), "X")
        expect_rank(r, (3,), "R")
        count, hidden = len(self.directions()), self.hidden_size if self.hidden_size is not None else dim(r, 1)
        state = like(x, (count, dim(x, 1), hidden))
        return [like(x, (dim(x, 0), count, dim(x, 1), hidden)), state, state]

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        x, r = inputs[0], inputs[2]
        sizes = [dim(x, 0), dim(x, 1), dim(x, 2), dim(r, 1)]
        numbers = [size for size in sizes if isinstance(size, int)]
        if len(numbers) != 4:
            return Cost(None, moved([*inputs, *outputs]))
        steps, batch, size, hidden = numbers
        return Cost(8.0 * len(self.directions()) * steps * batch * hidden * (size + hidden), moved([*inputs, *outputs]))


def check_quantized_shapes(
    directions: int,
    hidden: int | None,
    x: Sequence[int],
    w: Sequence[int],
    r: Sequence[int],
    parameters: Mapping[str, Sequence[int]],
) -> None:
    """ValueError unless X, W, R and the parameters of both, by name, belong together, with `hidden` units if given."""
    if len(x) != 3 or len(r) != 3:
        raise ValueError(f"X and R must have rank 3, not shapes {tuple(x)} and {tuple(r)}")
    units = r[1] if hidden is None else hidden
    for name, shape, rows in (("W", w, x[2]), ("R", r, units)):
        expected = directions, rows, 4 * units
        if tuple(shape) != expected:
            raise ValueError(f"{name} must have shape {expected} over X of shape {tuple(x)}, not {tuple(shape)}")
    for name, shape in parameters.items():
        if tuple(shape) not in ((directions,), (directions, 4 * units)):
            raise ValueError(
                f"{name} must have shape ({directions},) or ({directions}, {4 * units}), not {tuple(shape)}"
            )


def reverse_each(x: Array, lengths: Array) -> Array:
    """Each sequence of (length, batch, ...) in reverse order, its padding left at the end."""
    result = np.array(x)
    for index, length in enumerate(lengths):
        result[: int(length), index] = x[: int(length), index][::-1]
    return result

"""DynamicQuantizeLSTM: an LSTM with 8-bit weights whose activations are quantised while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.operator import Cost, Operator, operator
from sardonyx.ops.microsoft.activations import activate
from sardonyx.ops.microsoft.integer_matmul import dynamically_quantized, moved, scaled_product
from sardonyx.ops.microsoft.linear_quantization import Array, integers, padded
from sardonyx.ops.microsoft.rules import DOMAIN, dim, expect_rank, like

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference

DEFAULT_ACTIVATIONS = ("Sigmoid", "Tanh", "Tanh")


class QuantizedWeight:
    """One direction's weight (rows, 4 * hidden) with its scale and zero point, ready for products."""

    def __init__(self, weight: Array, scale: Array, zero_point: Array) -> None:
        self.values = integers(weight, zero_point)
        self.scale = scale

    def product(self, x: Array) -> Array:
        """x @ weight, x quantised to uint8 over its whole range."""
        flat = x.reshape(-1, x.shape[-1])
        codes, step = dynamically_quantized(flat)
        return scaled_product(codes, step, self.values, self.scale, None).reshape(*x.shape[:-1], -1)


@operator("DynamicQuantizeLSTM", domain=DOMAIN)
class DynamicQuantizeLSTM(Operator):
    """LSTM over (length, batch, size) with gates in the order i, o, f, c; each product quantises its activations."""

    inputs: ClassVar[str] = (
        "X, W, R, B?, sequence_lens?, initial_h?, initial_c?, P?, W_scale, W_zero_point, R_scale, R_zero_point"
    )
    outputs: ClassVar[str] = "Y?, Y_h?, Y_c?"
    activation_alpha: tuple[float, ...] | None = None
    activation_beta: tuple[float, ...] | None = None
    activations: tuple[str, ...] | None = None
    clip: float | None = None
    direction: str = "forward"
    hidden_size: int | None = None
    input_forget: int = 0
    host_reason: ClassVar[str] = "a recurrence with integer products"

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, w, r, bias, lengths, h, c, peepholes, w_scale, w_zero, r_scale, r_zero = padded(inputs, 12)
        directions = self.directions()
        if w.ndim != 3 or r.ndim != 3 or w.shape[0] != directions or r.shape[0] != directions:
            raise ValueError(f"inputs 'W' {w.shape} and 'R' {r.shape} must be ({directions}, size, 4 * hidden)")
        steps, batch = x.shape[:2]
        hidden = r.shape[1]
        if lengths is None:
            lengths = np.full(batch, steps, np.int32)
        y = np.zeros((steps, directions, batch, hidden), np.float32)
        last_h, last_c = (np.zeros((directions, batch, hidden), np.float32) for _ in range(2))
        for index in range(directions):
            start = [np.zeros((batch, hidden), np.float32) if state is None else state[index] for state in (h, c)]
            backward = self.direction == "reverse" or index == 1
            y[:, index], last_h[index], last_c[index] = self.one_direction(
                reverse_each(x, lengths) if backward else x,
                QuantizedWeight(w[index], w_scale[index], w_zero[index]),
                QuantizedWeight(r[index], r_scale[index], r_zero[index]),
                None if bias is None else bias[index],
                None if peepholes is None else peepholes[index],
                lengths,
                (start[0], start[1]),
                self.functions(index),
            )
            if backward:
                y[:, index] = reverse_each(y[:, index], lengths)
        return y, last_h, last_c

    def one_direction(
        self,
        x: Array,
        w: QuantizedWeight,
        r: QuantizedWeight,
        bias: Array | None,
        peepholes: Array | None,
        lengths: Array,
        start: tuple[Array, Array],
        functions: Sequence[tuple[str, Sequence[float | None]]],
    ) -> tuple[Array, Array, Array]:
        """Outputs (length, batch, hidden) and the last states of one direction, from its first step to its last."""
        h, c = start
        hidden = h.shape[-1]
        gates = w.product(x)
        if bias is not None:
            gates = gates + (bias[: 4 * hidden] + bias[4 * hidden :])
        p_i, p_o, p_f = (None, None, None) if peepholes is None else np.split(peepholes, 3)
        y = np.zeros((*x.shape[:2], hidden), np.float32)
        for step in range(int(lengths.max(initial=0))):
            i, o, f, new = np.split(gates[step] + r.product(h), 4, axis=-1)
            i = self.gate(i, p_i, c, functions[0])
            f = 1 - i if self.input_forget else self.gate(f, p_f, c, functions[0])
            new = self.gate(new, None, c, functions[1])
            state = f * c + i * new
            o = self.gate(o, p_o, state, functions[0])
            output = o * activate(functions[2][0], state, functions[2][1])
            alive = (step < lengths)[:, None]
            y[step] = np.where(alive, output, 0)
            h, c = np.where(alive, output, h), np.where(alive, state, c)
        return y, h, c

    def gate(
        self, z: Array, peephole: Array | None, cell: Array, function: tuple[str, Sequence[float | None]]
    ) -> Array:
        """An activated gate, clipped before its activation."""
        if peephole is not None:
            z = z + peephole * cell
        if self.clip is not None and self.clip > 0:
            z = np.clip(z, -np.float32(self.clip), np.float32(self.clip))
        return activate(function[0], z, function[1])

    def directions(self) -> int:
        if self.direction not in ("forward", "reverse", "bidirectional"):
            raise ValueError(f"attribute 'direction' must be forward, reverse or bidirectional, not '{self.direction}'")
        return 2 if self.direction == "bidirectional" else 1

    def functions(self, index: int) -> list[tuple[str, Sequence[float | None]]]:
        """The activations f, g, h of a direction, with their parameters: lists name those of all in order."""
        names = self.activations or DEFAULT_ACTIVATIONS * self.directions()
        if len(names) != 3 * self.directions():
            raise ValueError(f"attribute 'activations' must have {3 * self.directions()} names, not {len(names)}")
        alphas, betas = list(self.activation_alpha or ()), list(self.activation_beta or ())
        result: list[tuple[str, Sequence[float | None]]] = []
        for name in names:
            alpha = alphas.pop(0) if alphas and name in WITH_ALPHA else None
            beta = betas.pop(0) if betas and name in WITH_BETA else None
            result.append((name, (alpha, beta)))
        return result[3 * index : 3 * index + 3]

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, r = inputs[0], inputs[2]
        expect_rank(x, (3,), "X")
        expect_rank(r, (3,), "R")
        count, hidden = self.directions(), self.hidden_size if self.hidden_size is not None else dim(r, 1)
        state = like(x, (count, dim(x, 1), hidden))
        return [like(x, (dim(x, 0), count, dim(x, 1), hidden)), state, state]

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        x, r = inputs[0], inputs[2]
        sizes = [dim(x, 0), dim(x, 1), dim(x, 2), dim(r, 1)]
        numbers = [size for size in sizes if isinstance(size, int)]
        if len(numbers) != 4:
            return Cost(None, moved([*inputs, *outputs]))
        steps, batch, size, hidden = numbers
        return Cost(8.0 * self.directions() * steps * batch * hidden * (size + hidden), moved([*inputs, *outputs]))


WITH_ALPHA = frozenset({"Affine", "Elu", "HardSigmoid", "LeakyRelu", "ScaledTanh", "ThresholdedRelu"})
WITH_BETA = frozenset({"Affine", "HardSigmoid", "ScaledTanh"})


def reverse_each(x: Array, lengths: Array) -> Array:
    """Each sequence of (length, batch, ...) in reverse order, its padding left at the end."""
    result = np.array(x)
    for index, length in enumerate(lengths):
        result[: int(length), index] = x[: int(length), index][::-1]
    return result

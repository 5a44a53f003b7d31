"""AttnLSTM: an LSTM whose input at each step is joined by its attention to a memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sardonyx.kernel.program import Host, Kernel
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.operator import operator
from sardonyx.ops.microsoft.linear_quantization import padded
from sardonyx.ops.microsoft.rules import DOMAIN, Array, dim, expect_rank, wide
from sardonyx.ops.recurrent import LSTM, recurrent_product, time_step
from sardonyx.ops.recurrent_cells import Cell

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


class Memory:
    """The attention of Bahdanau, Cho and Bengio (2014) to a memory (batch, steps, depth) of given lengths."""

    def __init__(
        self,
        memory: Array,
        lengths: Array | None,
        query_weight: Array,
        memory_weight: Array,
        v: Array,
        layer_weight: Array | None,
    ) -> None:
        batch, steps, _ = memory.shape
        ends = np.full(batch, steps) if lengths is None else lengths
        if ends.shape != (batch,) or ((ends < 1) | (ends > steps)).any():
            raise ValueError(f"input 'memory_seq_lens' must be {batch} numbers from 1 to {steps}")
        self.hidden = np.arange(steps) >= ends[:, None]
        self.values, self.keys = memory, memory @ memory_weight
        self.query_weight, self.v, self.layer_weight = query_weight, v, layer_weight

    def context(self, query: Array) -> Array:
        """What a query (batch, hidden) finds in the memory: (batch, depth)."""
        scores = np.tanh(self.keys + (query @ self.query_weight)[:, None]) @ self.v
        scores = np.where(self.hidden, -np.inf, scores)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        return np.asarray((weights[:, None] @ self.values)[:, 0])

    def attend(self, query: Array) -> Array:
        """The context, or with the attention layer's weights what that makes of query and context."""
        context = self.context(query)
        if self.layer_weight is None:
            return context
        return np.asarray(np.concatenate([query, context], axis=1) @ self.layer_weight)

    @property
    def width(self) -> int:
        return int(self.values.shape[2] if self.layer_weight is None else self.layer_weight.shape[1])


@operator("AttnLSTM", domain=DOMAIN)
class AttnLSTM(LSTM):
    """An LSTM over (length, batch, size) whose steps also read their attention state, which starts as 0.

    W is (directions, 4 * hidden, size + attention), where the attention state is the context (depth of the memory), or
    (hidden state, context) times AW where that is given. Sequences that have ended attend with a query of 0.
    """

    inputs: ClassVar[str] = (
        "X, W, R, B?, sequence_lens?, initial_h?, initial_c?, P?, QW?, MW?, V?, M?, memory_seq_lens?, AW?"
    )
    outputs: ClassVar[str] = "Y?, Y_h?, Y_c?"
    layout: int = 0
    host_reason: ClassVar[str] = "a recurrence with attention"

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return Host(self.run, self.host_reason)

    def run(self, *inputs: Any) -> Sequence[Any]:
        x, w, r, bias, lengths, first_h, first_c, peepholes, qw, mw, v, memory, memory_lengths, aw = padded(inputs, 14)
        for name, value in (("QW", qw), ("MW", mw), ("V", v), ("M", memory)):
            if value is None:
                raise ValueError(f"input '{name}' is needed")
        parts: list[list[Array]] = []
        cells = self.cells(wide(x).dtype, peepholes is not None)
        for index, backwards in enumerate(self.directions()):
            attention = Memory(
                wide(memory),
                memory_lengths,
                wide(qw[index]),
                wide(mw[index]),
                wide(v[index]),
                None if aw is None else wide(aw[index]),
            )
            state = [
                np.zeros((x.shape[1], r.shape[2]), wide(x).dtype) if first is None else wide(first[index])
                for first in (first_h, first_c)
            ]
            biases = np.zeros(2 * w.shape[1], wide(x).dtype) if bias is None else wide(bias[index])
            own = None if peepholes is None else wide(peepholes[index])
            parts.append(
                self.one_direction(
                    wide(x),
                    (wide(w[index]), wide(r[index]), biases, own),
                    np.full(x.shape[1], x.shape[0]) if lengths is None else lengths,
                    state,
                    attention,
                    (backwards, cells[index]),
                )
            )
        outputs = zip(zip(*parts, strict=True), (1, 0, 0), strict=True)
        y, last_h, last_c = (np.stack(values, axis) for values, axis in outputs)
        return [np.ascontiguousarray(value).astype(x.dtype, copy=False) for value in (y, last_h, last_c)]

    def one_direction(
        self,
        x: Array,
        weights: tuple[Array, Array, Array, Array | None],
        lengths: Array,
        state: list[Array],
        attention: Memory,
        way: tuple[bool, Cell],
    ) -> list[Array]:
        """Outputs (length, batch, hidden) and the last states; `way`: whether it runs backwards, and its time step."""
        w, r, bias, peepholes = weights
        backwards, cell = way
        own = [] if peepholes is None else np.split(peepholes, 3)
        steps, batch, size = x.shape
        if w.shape[1] != size + attention.width:
            raise ValueError(f"input 'W' must have {size} + {attention.width} columns for 'X' and M, not {w.shape[1]}")
        entries = np.arange(batch)
        projected = x @ w[:, :size].T + bias[: len(w)]
        product = recurrent_product(r, bias[len(w) :])
        attended = np.zeros((batch, attention.width), x.dtype)
        y = np.zeros((steps, batch, r.shape[1]), x.dtype)
        for step in range(int(lengths.max(initial=0))):
            alive = (step < lengths)[:, None]
            times = np.where(alive[:, 0], lengths - 1 - step if backwards else step, 0)
            entering = projected[times, entries] + attended @ w[:, size:].T
            new = time_step(cell, entering, state, product, own)
            state = [np.where(alive, after, before) for after, before in zip(new, state, strict=True)]
            y[times[alive[:, 0]], entries[alive[:, 0]]] = state[0][alive[:, 0]]
            attended = attention.attend(np.where(alive, state[0], 0))
        return [y, *state]

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        for index, name in enumerate(("X", "W", "R")):
            expect_rank(inputs[index], (3,), name)
        hidden = dim(inputs[2], 2)
        if self.hidden_size is not None and isinstance(hidden, int) and hidden != self.hidden_size:
            raise ValueError(f"'hidden_size' {self.hidden_size} differs from the {hidden} of input 'R'")
        return super().infer(inputs, inference)

"""Causal depthwise convolutions that carry their last inputs from call to call (Mamba, gated delta networks)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sardonyx import errors
from sardonyx.ops.framework import dims
from sardonyx.ops.framework.facts import Dim, Dims, Fact, unknown_dim
from sardonyx.ops.framework.operator import Operator, operator
from sardonyx.ops.microsoft.linear_quantization import padded
from sardonyx.ops.microsoft.rules import DOMAIN, Array, dim, expect_shape, like, same, wide
from sardonyx.runtime.memory import memory

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


class StatefulConvolution(Operator):
    """Attributes common to both operators."""

    host_reason: ClassVar[str] = "a recurrence over calls"
    activation: str = "none"
    dilation: int = 1

    def activated(self, y: Array) -> Array:
        if self.activation in ("silu", "swish"):
            return np.asarray(y / (1 + np.exp(-y)))
        return y

    def check_activation(self) -> None:
        """ValueError for an unknown activation."""
        if self.activation not in ("silu", "swish", "none"):
            raise ValueError(f"attribute 'activation' must be silu, swish or none, not '{self.activation}'")


def correlated(virtual: Array, weight: Array, dilation: int, length: int) -> Array:
    """sum_j weight[j] * virtual[t + j * dilation] along the last axis, for t below `length`.

    virtual (batch, channels, state + length), weight (channels, 1, taps).
    """
    y = np.zeros((*virtual.shape[:-1], length), virtual.dtype)
    for tap in range(weight.shape[-1]):
        start = tap * dilation
        y += virtual[..., start : start + length] * weight[:, 0, tap, None]
    return y


@operator("CausalConvWithState", domain=DOMAIN)
class CausalConvWithState(StatefulConvolution):
    """Depthwise convolution, causal along the last axis, that reads `past_state` before the first position.

    input (batch, channels, length), or (batch, length, channel axes…) with `channels_last`. The state holds the last
    (k - 1) * dilation inputs; with `state_window` W it has W slots in front, one for each of the last W positions.
    """

    inputs: ClassVar[str] = "input, weight, bias?, past_state?"
    outputs: ClassVar[str] = "output, present_state"
    ndim: int = 1
    channels_last: int = 0
    state_window: int = 0

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, weight, bias, past = padded(inputs, 4)
        if self.ndim != 1:
            raise errors.NotImplemented(f"CausalConvWithState runs with ndim 1 only, not {self.ndim}")
        self.check([None if one is None else one.shape for one in (x, weight, bias, past)])
        if past is not None and self.state_window:
            past = past[-1]
        trailing = x.shape[2:]
        values = self.channels_first(x)
        length = values.shape[-1]
        held = (weight.shape[-1] - 1) * self.dilation
        empty = np.zeros((*values.shape[:-1], held), values.dtype)
        state = empty if past is None else self.channels_first(past)
        virtual = np.concatenate([state, values], axis=-1)
        y = correlated(wide(virtual), wide(weight), self.dilation, length)
        if bias is not None:
            y = y + wide(bias)[:, None]
        y = self.activated(y).astype(x.dtype)
        return self.restored(y, trailing), self.states(virtual, held, length, trailing)

    def check(self, shapes: Sequence[Dims | None]) -> None:
        """ValueError where the shapes of input, weight, bias and past state do not fit together; None is not known."""
        self.check_activation()
        x, weight, bias, past = shapes
        if x is None:
            return
        if len(x) < 3:
            raise ValueError(f"input 'input' is expected to have at least 3 dimensions, got {len(x)}")
        places = x[2:] if self.channels_last else x[1:-1]
        channels = dims.product(places)
        expect_shape("weight", weight, (channels, 1, unknown_dim()))
        expect_shape("bias", bias, (channels,))
        held = None if weight is None else dims.multiply(dims.add(weight[2], -1), self.dilation)
        if held is not None:
            state = (x[0], held, *x[2:]) if self.channels_last else (*x[:-1], held)
            expect_shape("past_state", past, (self.state_window, *state) if self.state_window else state)

    def channels_first(self, x: Array) -> Array:
        return np.swapaxes(x.reshape(*x.shape[:2], math.prod(x.shape[2:])), 1, 2) if self.channels_last else x

    def restored(self, y: Array, trailing: tuple[int, ...]) -> Array:
        if not self.channels_last:
            return y
        moved = np.swapaxes(y, 1, 2)
        return np.ascontiguousarray(moved.reshape(*moved.shape[:2], *trailing))

    def states(self, virtual: Array, held: int, length: int, trailing: tuple[int, ...]) -> Array:
        """The state after the last position, or after each of the last `state_window` positions; zeros before."""
        if not self.state_window:
            return self.restored(virtual[..., length : length + held].copy(), trailing)
        filled = min(self.state_window, length)
        empty = self.restored(np.zeros_like(virtual[..., :held]), trailing)
        memory.require(self.state_window * max(1, empty.nbytes), "a window of states")
        states = np.zeros((self.state_window, *empty.shape), empty.dtype)
        for slot in range(self.state_window - filled, self.state_window):
            end = length - self.state_window + slot + 1  # positions of this call that the slot has seen
            states[slot] = self.restored(virtual[..., end : end + held], trailing)
        return states

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, weight = inputs[0], inputs[1]
        self.check([None if fact is None else fact.shape for fact in padded(inputs, 4)])
        if x is None or x.shape is None:
            return [same(x), like(x, None)]
        held: Dim = (dim(weight, -1) - 1) * self.dilation
        shape = (x.shape[0], held, *x.shape[2:]) if self.channels_last else (*x.shape[:-1], held)
        return [same(x), like(x, (self.state_window, *shape) if self.state_window else shape)]


@operator("VarlenCausalConvWithState", domain=DOMAIN)
class VarlenCausalConvWithState(StatefulConvolution):
    """The same over packed sequences: input (tokens, channels), each sequence with its own state in and out.

    With `state_update_capacity` the third output holds each sequence's first `capture_count` inputs.
    """

    inputs: ClassVar[str] = "input, weight, cumulative_sequence_length, bias?, initial_state, capture_count?"
    outputs: ClassVar[str] = "output, final_state, state_update?"
    state_update_capacity: int = 0

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, weight, sums, bias, initial, captures = padded(inputs, 6)
        self.check_activation()
        if (captures is None) != (self.state_update_capacity == 0):
            raise ValueError("'capture_count' is required exactly when 'state_update_capacity' is positive")
        ends = sums.astype(np.int64).tolist()
        if ends[0] != 0 or ends[-1] != len(x) or any(b <= a for a, b in itertools.pairwise(ends)):
            raise ValueError(f"'cumulative_sequence_length' {ends} does not divide {len(x)} tokens into sequences")
        expect_shape("weight", weight.shape, (x.shape[1], 1, weight.shape[-1]))
        expect_shape("bias", None if bias is None else bias.shape, (x.shape[1],))
        held = (weight.shape[-1] - 1) * self.dilation
        expect_shape("initial_state", initial.shape, (len(ends) - 1, x.shape[1], held))
        y, final = np.empty_like(x), np.empty_like(initial)
        update = np.zeros((len(ends) - 1, self.state_update_capacity, x.shape[1]), x.dtype)
        for entry, (start, end) in enumerate(itertools.pairwise(ends)):
            virtual = np.concatenate([initial[entry], x[start:end].T], axis=-1)[None]
            own = correlated(wide(virtual), wide(weight), self.dilation, end - start)[0]
            if bias is not None:
                own = own + wide(bias)[:, None]
            y[start:end] = self.activated(own).T.astype(x.dtype)
            final[entry] = virtual[0, :, end - start : end - start + held]
            if captures is not None:
                count = min(max(int(captures[entry]), 0), self.state_update_capacity, end - start)
                update[entry, :count] = x[start : start + count]
        return y, final, update

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, initial = inputs[0], inputs[4]
        return [same(x), same(initial), like(x, (dim(initial, 0), self.state_update_capacity, dim(x, 1)))]

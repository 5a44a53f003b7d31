"""Pad: more elements around a tensor, or fewer where a pad is negative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.kernel.program import Kernel
from sardonyx.ops.framework import dims
from sardonyx.ops.framework.facts import UNKNOWN, Dim, Fact
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator, template_unless_text
from sardonyx.ops.shape import axes_of, unknown_shape

_MODES: dict[str, Any] = {"constant": "constant", "reflect": "reflect", "edge": "edge", "wrap": "wrap"}


Widths = tuple[tuple[int, int], ...]


def frame_of(shape: Sequence[int], pads: Sequence[int], axes: Sequence[int], mode: str) -> tuple[Widths, Widths]:
    """What is cut from each axis before and after, and what is added there.

    ValueError for an unknown mode, too few pads, pads that cut more than there is, and modes that repeat what is not
    there: a reflection reaches no further than the other end.
    """
    if mode not in _MODES:
        raise ValueError(f"mode '{mode}' of Pad is none of {', '.join(_MODES)}")
    if len(pads) != 2 * len(axes):
        raise ValueError(f"Pad needs two numbers for each of {len(axes)} axes, not {len(pads)} numbers")
    cut, added = [(0, 0)] * len(shape), [(0, 0)] * len(shape)
    for place, axis in enumerate(axes):
        before, after = pads[place], pads[place + len(axes)]
        left = shape[axis] + min(before, 0) + min(after, 0)
        if left < 0:
            raise ValueError(
                f"the negative pads {before} and {after} leave nothing of axis {axis} of size {shape[axis]}"
            )
        cut[axis] = max(-before, 0), max(-after, 0)
        width = added[axis] = max(before, 0), max(after, 0)
        short = left == 0 or (mode == "reflect" and max(width) > left - 1)
        if mode != "constant" and any(width) and short:
            raise ValueError(f"mode {mode} cannot pad axis {axis} of size {left} by {max(width)}")
    return tuple(cut), tuple(added)


class Padding(Operator):
    """What both forms of Pad share: all pads before the axes come first, then all behind them."""

    mode: str = "constant"

    def padded(self, data: Array, pads: Sequence[int], axes: Sequence[int], filling: Any) -> Array:
        cut, widths = frame_of(data.shape, pads, axes, self.mode)
        crop = [slice(before, size - after) for size, (before, after) in zip(data.shape, cut, strict=True)]
        inner = data[tuple(crop)]
        if not any(before or after for before, after in widths):
            return inner
        if self.mode == "constant":
            result = np.full([d + sum(w) for d, w in zip(inner.shape, widths, strict=True)], filling, data.dtype)
            inside = tuple(slice(w[0], w[0] + d) for d, w in zip(inner.shape, widths, strict=True))
            result[inside] = inner
            return result
        return np.asarray(np.pad(inner, widths, mode=_MODES[self.mode]))

    def inferred(self, data: Fact, pads: Sequence[Dim] | None, axes: Sequence[int] | None) -> Fact:
        if data.shape is None:
            return Fact(data.type, None)
        if pads is None or axes is None:
            return Fact(data.type, unknown_shape(len(data.shape)))
        if len(pads) != 2 * len(axes):
            raise ValueError(f"Pad needs two numbers for each of {len(axes)} axes, not {len(pads)} numbers")
        shape = list(data.shape)
        for place, axis in enumerate(axes):
            shape[axis] = dims.total([shape[axis], pads[place], pads[place + len(axes)]])
        return Fact(data.type, tuple(shape))


@operator("Pad", since=2)
class OldPad(Padding):
    """Pad before opset 11, with pads as an attribute."""

    pads: tuple[int, ...]
    value: float = 0.0

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        parameters = {"mode": self.mode, "pads": self.pads, "value": self.value}
        return template_unless_text("pad", parameters, self.run, inputs)

    def run(self, data: Array) -> Sequence[Value]:
        return (self.padded(data, self.pads, range(data.ndim), self.value),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data = inputs[0] or UNKNOWN
        return [self.inferred(data, self.pads, None if data.rank is None else range(data.rank))]


@operator("Pad", since=11)
class Pad(Padding):
    """Pads along all axes, or from opset 18 along those that the fourth input names."""

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return template_unless_text("pad", {"mode": self.mode}, self.run, inputs)

    def run(self, data: Array, pads: Array, value: Array | None = None, axes: Array | None = None) -> Sequence[Value]:
        places = range(data.ndim) if axes is None else axes_of(axes.ravel().tolist(), data.ndim)
        empty: Any = "" if data.dtype == object else 0
        filling = empty if value is None or value.size == 0 else value.reshape(-1)[0]
        return (self.padded(data, pads.ravel().tolist(), places, filling),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data, pads = inputs[0] or UNKNOWN, inputs[1] or UNKNOWN
        places: Sequence[int] | None = None if data.rank is None else range(data.rank)
        if len(inputs) > 3 and inputs[3] is not None and data.rank is not None:
            given = inputs[3].integers()
            places = None if given is None else axes_of(given, data.rank)
        return [self.inferred(data, pads.elements, places)]

"""What an interpolation at a real place reads along one axis: positions, their weights, and which of them exist.

The meaning is that of `sardonyx.ops.grid_sample.axis_taps`; here it is vector code, for one place or as many as a
register holds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Literal

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.mathematics.elements import absolute
from sardonyx.compiler.llvm.mathematics.rounding import floor, rint
from sardonyx.compiler.llvm.types import I32
from sardonyx.light_dataclass import dataclass

Neighbours = Literal["nearest", "linear", "cubic"]
Padding = Literal["zeros", "border", "reflection"]

# Positions this far outside read nothing, whatever the mode.
_FAR = 4.0
# The coefficient of Keys' cubic kernel.
_KEYS = -0.75


@dataclass(frozen=True)
class TapsSpec:
    """Which neighbours of a place are read, and what there is outside of the axis.

    With `aligned`, reflections are around the centres of the edge elements, else around their outer edges.
    """

    mode: Neighbours
    padding: Padding
    aligned: bool

    @property
    def count(self) -> int:
        """Neighbours of a place."""
        return {"nearest": 1, "linear": 2, "cubic": 4}[self.mode]


@dataclass(frozen=True)
class Tap:
    """One neighbour: its position (I32), its weight, and whether there is an element (None: there always is)."""

    position: Value
    weight: Value
    inside: Value | None


def axis_taps(k: Function, spec: TapsSpec, place: Value, length: Value) -> list[Tap]:
    """The neighbours of a real `place` (F32 or F64, any number of lanes) along an axis of `length` (I64) elements.

    Positions are those of elements, even where there is none.
    """
    size = length.to(place.type.scalar)
    last = size - 1.0
    low, high = (k.constant(size.type, 0.0), last) if spec.aligned else (k.constant(size.type, -0.5), size - 0.5)
    if spec.mode == "nearest":
        place = rint(k, place)
    beyond = (place < low) | (place > high)
    if spec.padding == "border" and spec.mode != "cubic":
        place = k.select(beyond, k.smaller(k.larger(place, k.constant(place.type, 0.0)), last), place)
    elif spec.padding == "reflection":
        place = k.select(beyond, _reflected(k, place, low, high), place)
    place = k.select(place.differs(place), k.constant(place.type, -_FAR), place)
    place = k.faster_smaller(k.faster_larger(place, -_FAR), size + _FAR)
    below = floor(k, place)
    first = -1 if spec.mode == "cubic" else 0
    weights = _weights(k, spec.mode, place - below)
    return [
        _tap(k, spec, below + float(first + index), weight, last, (low, high)) for index, weight in enumerate(weights)
    ]


def _tap(k: Function, spec: TapsSpec, at: Value, weight: Value, last: Value, ends: tuple[Value, Value]) -> Tap:
    inside = (at >= 0.0) & (at <= last)
    if spec.padding == "reflection":
        at = k.select(inside, at, _reflected(k, at, *ends))
        at = k.select(at.differs(at), k.constant(at.type, 0.0), at)
    position = k.faster_smaller(k.faster_larger(at, 0.0), k.splat(last, at.type.lanes)).to(I32)
    return Tap(position, weight, inside if spec.padding == "zeros" else None)


def _reflected(k: Function, place: Value, low: Value, high: Value) -> Value:
    """Places mirrored at both ends, as often as it takes; in an axis without extent, its only place."""
    extent = high - low
    period = extent * 2.0
    distance = absolute(k, place - low)
    distance = distance - floor(k, distance / period) * period
    found = k.select(distance > extent, period - distance, distance) + low
    return k.select(k.splat(extent > 0.0, place.type.lanes), found, k.splat(low, place.type.lanes))


def _weights(k: Function, mode: Neighbours, fraction: Value) -> list[Value]:
    """Those of the neighbours, of which the one below is `fraction` away."""
    if mode == "nearest":
        return [k.constant(fraction.type, 1.0)]
    if mode == "linear":
        return [1.0 - fraction, fraction]
    a = _KEYS

    def inner(x: Value) -> Value:
        return ((a + 2) * x - (a + 3)) * x * x + 1.0

    def outer(x: Value) -> Value:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [outer(fraction + 1.0), inner(fraction), inner(1.0 - fraction), outer(2.0 - fraction)]


def interpolated(
    k: Function, axes: Sequence[Sequence[Tap]], strides: Sequence[Value], read: Callable[[Value], Value]
) -> Value:
    """The sum over all combinations of the axes' taps of what `read` gives for an offset, times its weights.

    Offsets (I32) are sums of position times stride. Where there is no element, the term is 0, whatever is read.
    """
    *outer, inner = (
        [(tap, tap.position * stride.to(I32)) for tap in taps] for taps, stride in zip(axes, strides, strict=True)
    )
    total: Value | None = None
    for chosen in itertools.product(*outer):
        line: Value | None = None
        for tap, offset in inner:
            value = read(sum((at for _, at in chosen), start=offset))
            for one in (*(other for other, _ in chosen), tap):
                if one.inside is not None:
                    value = k.select(one.inside, value, k.constant(value.type, 0.0))
            weight = k.splat(tap.weight, value.type.lanes)
            line = value * weight if line is None else k.fma(value, weight, line)
        assert line is not None
        for tap, _ in chosen:
            line = line * k.splat(tap.weight, line.type.lanes)
        total = line if total is None else total + line
    assert total is not None
    return total

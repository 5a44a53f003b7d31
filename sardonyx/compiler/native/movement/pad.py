"""Pad and CenterCropPad: the data copied into a frame, and the frame filled from a value or from the data."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.native.movement.copy import copy_into
from sardonyx.compiler.native.movement.slices import inside, part_of, spread, stored_order, transposed
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.pad import frame_of
from sardonyx.ops.rearrange import centred
from sardonyx.ops.shape import axes_of


@dataclass(frozen=True)
class Frame:
    """What is cut from each axis of the data, and how much room is added: before and after."""

    cut: tuple[tuple[int, int], ...]
    added: tuple[tuple[int, int], ...]


def framed(binder: Binder, data: Tensor, frame: Frame, mode: str, value: Tensor | None) -> Tensor:
    """The data without what is cut, with what is added around it; itself where nothing is added."""
    ranges = [(before, size - before - after) for size, (before, after) in zip(data.shape, frame.cut, strict=True)]
    inner = inside(data, ranges)
    if not any(itertools.chain(*frame.added)):
        return inner
    places = [(before, size) for size, (before, _) in zip(inner.shape, frame.added, strict=True)]
    result = binder.new(data.dtype, [size + sum(added) for size, added in zip(inner.shape, frame.added, strict=True)])
    if mode == "constant":
        surround(binder, inner, places, result, value)
    else:
        copy_into(binder, inner, inside(result, places))
        for axis in range(len(places)):
            _grown(binder, result, places, axis, mode)
    return result


def _framed_as_stored(binder: Binder, data: Tensor, frame: Frame, mode: str, value: Tensor | None) -> Tensor:
    """The same, in memory in the order in which the data lies there: channels-last stays channels-last."""
    order = stored_order(data)
    cut, added = ([widths[axis] for axis in order] for widths in (frame.cut, frame.added))
    result = framed(binder, transposed(data, order), Frame(tuple(cut), tuple(added)), mode, value)
    return transposed(result, [order.index(axis) for axis in range(len(order))])


def surround(
    binder: Binder, inner: Tensor, places: Sequence[tuple[int, int]], result: Tensor, value: Tensor | None
) -> None:
    """The data into the ranges `places` (first, size) of the result, and one value, or zero, around it.

    The slabs before and behind the data on each axis are all disjoint.
    """
    if value is None:
        value = binder.constant(np.zeros((), result.dtype))
    with binder.together():
        copy_into(binder, inner, inside(result, places))
        for axis, (first, size) in enumerate(places):
            core = inside(result, [*places[:axis], *((0, whole) for whole in result.shape[axis:])])
            behind = first + size
            for start, count in ((0, first), (behind, result.shape[axis] - behind)):
                room = part_of(core, axis, start, count)
                copy_into(binder, spread(value, room.shape), room)


def _grown(binder: Binder, result: Tensor, places: Sequence[tuple[int, int]], axis: int, mode: str) -> None:
    """The slabs of one axis from what is there already: full on the axes before it, the data on those behind."""
    first, size = places[axis]
    core = inside(result, [*((0, whole) for whole in result.shape[: axis + 1]), *places[axis + 1 :]])
    behind = result.shape[axis] - first - size
    last = first + size - 1
    with binder.together():
        if mode == "edge":
            for at, start, count in ((first, 0, first), (last, last + 1, behind)):
                copy_into(binder, part_of(core, axis, at, count, 0), part_of(core, axis, start, count))
        elif mode == "reflect":
            copy_into(binder, part_of(core, axis, 2 * first, first, -1), part_of(core, axis, 0, first))
            copy_into(binder, part_of(core, axis, last - 1, behind, -1), part_of(core, axis, last + 1, behind))
        else:
            # Whole periods and the rest of one; all of them are read from the data itself.
            data = part_of(core, axis, first, size)
            rest, whole = first % size, first - first % size
            _repeated(binder, data, part_of(core, axis, rest, whole), axis)
            copy_into(binder, part_of(core, axis, last + 1 - rest, rest), part_of(core, axis, 0, rest))
            rest, whole = behind % size, behind - behind % size
            _repeated(binder, data, part_of(core, axis, last + 1, whole), axis)
            copy_into(binder, part_of(core, axis, first, rest), part_of(core, axis, last + 1 + whole, rest))


def _repeated(binder: Binder, data: Tensor, room: Tensor, axis: int) -> None:
    """The data copied along an axis as often as it fits the room."""
    size, step = data.shape[axis], data.strides[axis]
    before, after = data.shape[:axis], data.shape[axis + 1 :]
    shape = (*before, room.shape[axis] // size, size, *after)
    around, behind = data.strides[:axis], data.strides[axis + 1 :]
    source = data.reshaped(shape, (*around, 0, step, *behind))
    copy_into(binder, source, room.reshaped(shape, (*around, size * step, step, *behind)))


@template("pad")
class Pad(NativeKernel):
    """``mode`` says what the frame holds: constant, edge, reflect or wrap.

    Either ``pads`` and ``value`` are parameters (opsets before 11), or they are inputs: data, pads, value?, axes?.
    """

    known_inputs = (1, 3)

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        data, *others = inputs
        pads, value, axes = (*others, None, None, None)[:3]
        assert data is not None
        rank = len(data.shape)
        if pads is None:
            numbers: Sequence[int] = self.parameters["pads"]
            value = binder.constant(np.array(self.parameters["value"]).astype(data.dtype))
        else:
            numbers = _integers(pads)
        if value is not None and value.size == 0:
            value = None
        places = range(rank) if axes is None else axes_of(_integers(axes), rank)
        cut, added = frame_of(data.shape, numbers, places, self.parameters["mode"])
        return [_framed_as_stored(binder, data, Frame(cut, added), self.parameters["mode"], value)]


@template("center_crop_pad")
class CenterCropPad(NativeKernel):
    """The middle of the data with the sizes that the second input holds, zeros around it."""

    known_inputs = (1,)

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        data, sizes = inputs
        assert data is not None
        assert sizes is not None
        rank = len(data.shape)
        axes = self.parameters["axes"]
        places = axes_of(range(rank) if axes is None else axes, rank)
        cut, added = centred(data.shape, places, _integers(sizes))
        return [_framed_as_stored(binder, data, Frame(cut, added), "constant", None)]


def _integers(tensor: Tensor) -> list[int]:
    assert tensor.array is not None
    return [int(number) for number in tensor.array.ravel()]

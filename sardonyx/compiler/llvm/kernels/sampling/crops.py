"""Boxes of maps resized to one size: CropAndResize. Vectors go over the channels of a place."""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.kernels.sampling.elements import Elements, blocked_loop, working_type
from sardonyx.compiler.llvm.kernels.sampling.regions import UNROLL, Maps
from sardonyx.compiler.llvm.mathematics.elements import absolute, copy_sign, exact
from sardonyx.compiler.llvm.mathematics.rounding import floor
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F64, I64, Type
from sardonyx.compiler.llvm.walk import kernel_frame
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class CropSpec:
    """Elements of `type`, corners of `regions`, indices of `index` bits; `nearest` or linear sampling."""

    type: Type
    regions: Type
    index: int
    nearest: bool


def emit_crops(target: Target, spec: CropSpec) -> str:
    """The samples of boxes [y1, x1, y2, x2] in fractions of the way between corner pixels.

    Arguments: the words of `Maps`, the indices of the items, and what samples outside of the map are (F64). An index
    that names no item is noted as a fault, and its samples left out.
    """
    k, words = kernel_frame(target)
    known = Maps(k, words, spec.type, spec.regions)
    indices = k.pointer(words.load(15), Type("i", spec.index))
    working = working_type(spec.type)
    outside = words.load(16).bits_as(F64).to(working)
    with known.each_bin(lambda region: indices.load(region).to(I64)) as one:
        top, left, bottom, right = (known.regions.load(one.region * 4 + at) for at in range(4))
        down = _Sample(k, spec, top, bottom, one.row, known.rows, known.height)
        across = _Sample(k, spec, left, right, one.column, known.columns, known.width)
        inside = down.is_inside & across.is_inside
        with k.when(inside):
            _sample(k, spec, known, down, across, one.map, one.to)
        with k.otherwise(inside):
            _fill(k, known, outside, one.to)
    return k.finish()


class _Sample:
    """A sample's place along one axis: the pixels at and behind it, and how far it is on the way.

    Places are computed in the type of the boxes (float32 at least), and no operation is left out between two roundings:
    whether the last one of a box is still inside of the map hangs on the last bit.
    """

    def __init__(
        self, k: Function, spec: CropSpec, first: Value, last: Value, number: Value, count: Value, length: Value
    ) -> None:
        type_ = working_type(spec.regions)
        first, last, end = first.to(type_), last.to(type_), (length - 1).to(type_)
        step = (last - first) * end / k.larger(count - 1, 1).to(type_)
        place = exact(k, "add", exact(k, "mul", first, end), exact(k, "mul", number.to(type_), step))
        place = k.select(count.equals(1), 0.5 * (first + last) * end, place)
        # A place that is no number is not inside; what is computed for it is not used, but must be in range.
        self.is_inside = (place >= 0.0) & (place <= end)
        place = k.select(self.is_inside, place, k.constant(type_, 0.0))
        if spec.nearest:
            place = copy_sign(k, floor(k, absolute(k, place) + 0.5), place)
        self.at = k.smaller(place.to(I64), length - 1)
        self.fraction = place - self.at.to(type_)
        self.behind = k.smaller(self.at + (self.fraction > 0.0).to(I64), length - 1)


def _sample(
    k: Function, spec: CropSpec, known: Maps, down: _Sample, across: _Sample, map_: Elements, to: Elements
) -> None:
    working = working_type(spec.type)
    far, right = down.fraction.to(working), across.fraction.to(working)
    above, below = map_.offset(down.at * known.row_step), map_.offset(down.behind * known.row_step)
    corners = [line.offset(x * known.column_step) for line in (above, below) for x in (across.at, across.behind)]

    def body(at: Value, vectors: int, lanes: int, mask: Value | None) -> None:
        for index in range(vectors):
            place = at + index * lanes
            if spec.nearest:
                to.store(corners[0].load(place, lanes, mask), place, mask)
                continue
            values = [corner.load(place, lanes, mask) for corner in corners]
            lines = [one * (1.0 - right) + other * right for one, other in (values[:2], values[2:])]
            to.store(lines[0] * (1.0 - far) + lines[1] * far, place, mask)

    blocked_loop(k, known.channels, k.target.lanes(working), UNROLL, body)


def _fill(k: Function, known: Maps, number: Value, to: Elements) -> None:
    def body(at: Value, vectors: int, lanes: int, mask: Value | None) -> None:
        for index in range(vectors):
            to.store(k.splat(number, lanes), at + index * lanes, mask)

    blocked_loop(k, known.channels, k.target.lanes(number.type), UNROLL, body)

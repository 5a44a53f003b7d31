"""CropAndResize over maps whose channels lie together: a copy of them where they do not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from sardonyx.compiler.arguments import Float, Read, kernel
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.sampling.regions import UNROLL, Maps, RegionArguments, RegionKernel, type_named
from sardonyx.compiler.kernels.template import template
from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.kernels.sampling.elements import Elements, blocked_loop, working_type
from sardonyx.compiler.llvm.mathematics.elements import absolute, copy_sign, exact
from sardonyx.compiler.llvm.mathematics.rounding import floor
from sardonyx.compiler.llvm.types import I64, Type
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.slices import transposed
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Fact

_INDICES = (ir.DataType.INT32, ir.DataType.INT64)


@dataclass(frozen=True)
class CropSpec:
    """Elements of `type`, corners of `regions`, indices of `index` bits; `nearest` or linear sampling."""

    type: Type
    regions: Type
    index: int
    nearest: bool


class Arguments(RegionArguments):
    indices = Read(lambda spec: Type("i", spec.index))  # of the items
    outside = Float()  # what samples outside of the map are


@kernel(Arguments)
def emit_crops(k: Function, a: Arguments, spec: CropSpec) -> None:
    """The samples of boxes [y1, x1, y2, x2] in fractions of the way between corner pixels.

    An index that names no item is noted as an error, and its samples left out.
    """
    known = Maps(k, a, spec.type, spec.regions)
    indices = a.indices
    working = working_type(spec.type)
    outside = a.outside.to(working)
    with known.each_bin(lambda region: indices.load(region).to(I64)) as one:
        top, left, bottom, right = (known.regions.load(one.region * 4 + at) for at in range(4))
        down = _Sample(k, spec, top, bottom, one.row, known.rows, known.height)
        across = _Sample(k, spec, left, right, one.column, known.columns, known.width)
        inside = down.is_inside & across.is_inside
        with k.when(inside):
            _sample(k, spec, known, down, across, one.map, one.to)
        with k.otherwise(inside):
            _fill(k, known, outside, one.to)


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


@template("crop_and_resize")
class CropAndResizeKernel(RegionKernel):
    """Boxes of maps, sampled on a grid whose size is the last input. Parameters: ``nearest``, ``outside``."""

    known_inputs = (3,)

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        indices = inputs[2]
        if indices is None or indices.dtype not in _INDICES:
            return "indices of items are int32 or int64"
        return super().declines(inputs, outputs)

    def bind(self, binder: Binder, x: Tensor, regions: Tensor, indices: Tensor, size: Tensor) -> Sequence[Tensor]:
        assert size.array is not None
        if len(x.shape) != 4 or regions.shape[1:] != (4,) or indices.shape != regions.shape[:1] or size.size != 2:
            raise ValueError(
                f"'X' {x.shape}, 'rois' {regions.shape}, 'batch_indices' {indices.shape} and 'crop_size' {size.shape} "
                f"must be NCHW, (n, 4), (n) and (2)"
            )
        rows, columns = (int(count) for count in size.array.reshape(-1))
        if rows <= 0 or columns <= 0:
            raise ValueError(f"'crop_size' must be positive, not {rows} x {columns}")
        regions, indices = contiguous(binder, regions), contiguous(binder, indices)
        last, made, given, chunks = self.bins_of(binder, x, regions, 1, (rows, columns))
        if made.size and not math.prod(last.shape):
            raise ValueError(f"maps of the shape {x.shape} have no elements to sample")
        if made.size:
            spec = CropSpec(
                type_named(x), type_named(regions), indices.dtype.itemsize * 8, bool(self.parameters["nearest"])
            )
            binder.step(
                emit_crops,
                spec,
                Arguments(**given, indices=indices, outside=self.parameters["outside"]),
                chunks=chunks,
                flops=8.0 * made.size,
                detail=f"{made.shape[0]} boxes, {made.shape[-1]} channels",
            )
        return [transposed(made, (0, 3, 1, 2))]

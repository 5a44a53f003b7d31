"""MaxRoiPool: the maxima of the bins of regions."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.compiler.arguments import Float, kernel
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.sampling.regions import UNROLL, Maps, RegionArguments, RegionKernel, type_named
from sardonyx.compiler.kernels.template import template
from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.kernels.sampling.elements import Elements, blocked_loop, working_type
from sardonyx.compiler.llvm.mathematics.elements import absolute, copy_sign
from sardonyx.compiler.llvm.mathematics.rounding import ceil, floor
from sardonyx.compiler.llvm.types import F64, I64, Type
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.slices import transposed
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class RegionMaximumSpec:
    """Elements of `type`; regions (item, left, top, right, bottom) are of that type, too."""

    type: Type


class Arguments(RegionArguments):
    scale = Float()  # of regions


@kernel(Arguments)
def emit_region_maximum(k: Function, a: Arguments, spec: RegionMaximumSpec) -> None:
    """The maximum of each bin of each region, [regions, rows, columns, channels]; 0 where a bin is empty.

    An item that there is not is noted as an error.
    """
    known = Maps(k, a, spec.type, spec.type)
    scale = a.scale
    working = working_type(spec.type)
    with known.each_bin(lambda region: known.regions.load(region * 5).to(I64)) as one:
        corners = known.regions.offset(one.region * 5)
        left, top, right, bottom = (_rounded(k, corners.load(at) * scale) for at in range(1, 5))
        rows = _bounds(k, top, bottom, one.row, known.rows, known.height)
        columns = _bounds(k, left, right, one.column, known.columns, known.width)
        is_empty = (rows[0] >= rows[1]) | (columns[0] >= columns[1])
        start = k.select(is_empty, k.constant(working, 0.0), k.constant(working, float("-inf")))

        def body(
            at: Value,
            vectors: int,
            lanes: int,
            mask: Value | None,
            map_: Elements = one.map,
            to: Elements = one.to,
            rows: tuple[Value, Value] = rows,
            columns: tuple[Value, Value] = columns,
            start: Value = start,
        ) -> None:
            best = [k.variable(working.vector(lanes), k.splat(start, lanes)) for _ in range(vectors)]
            with k.loop(*rows) as y, k.loop(*columns) as x:
                place = map_.offset(y * known.row_step + x * known.column_step + at)
                for index, value in enumerate(best):
                    value.set(k.larger(value.get(), place.load(index * lanes, lanes, mask)))
            for index, value in enumerate(best):
                to.store(value.get(), at + index * lanes, mask)

        blocked_loop(k, known.channels, k.target.lanes(working), UNROLL, body)


def _rounded(k: Function, x: Value) -> Value:
    """The nearest whole number, halves away from zero."""
    return copy_sign(k, floor(k, absolute(k, x) + 0.5), x)


def _bounds(k: Function, start: Value, end: Value, place: Value, bins: Value, length: Value) -> tuple[Value, Value]:
    """The first and the last position (excluded) of a bin along one axis."""
    size = k.larger(end - start + 1.0, 1.0) / bins.to(F64)
    first = (floor(k, place.to(F64) * size) + start).to(I64)
    last = (ceil(k, (place + 1).to(F64) * size) + start).to(I64)
    return k.smaller(k.larger(first, 0), length), k.smaller(k.larger(last, 0), length)


@template("max_roi_pool")
class MaxRoiPoolKernel(RegionKernel):
    """The maximum of each bin of each region."""

    def bind(self, binder: Binder, x: Tensor, regions: Tensor) -> Sequence[Tensor]:
        if len(x.shape) != 4 or regions.shape[1:] != (5,):
            raise ValueError(f"shapes {x.shape} and {regions.shape} are not (N, C, H, W) and (R, 5)")
        regions = contiguous(binder, regions)
        last, made, given, chunks = self.bins_of(binder, x, regions, 1)
        if made.size:
            binder.step(
                emit_region_maximum,
                RegionMaximumSpec(type_named(x)),
                Arguments(**given, scale=self.parameters["scale"]),
                chunks=chunks,
                flops=float(last.size),
                detail=f"{made.shape[0]} regions, {made.shape[-1]} channels",
            )
        return [transposed(made, (0, 3, 1, 2))]

"""RoiAlign: samples in the bins of regions, averaged, or their maximum."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.compiler.arguments import Float, Read, Size, kernel
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.sampling.regions import UNROLL, Maps, RegionArguments, RegionKernel, type_named
from sardonyx.compiler.kernels.template import template
from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.kernels.sampling.elements import Elements, blocked_loop, working_type
from sardonyx.compiler.llvm.mathematics.rounding import ceil
from sardonyx.compiler.llvm.types import F64, I64, Type
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.slices import transposed
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.regions import MOST_SAMPLES


@dataclass(frozen=True)
class AlignSpec:
    """Elements of `type`, corners of `regions`, indices of `index` bits; samples are averaged, or their maximum taken.

    With `half_pixel`, coordinates are those of the centres of pixels; without, regions are at least one pixel large.
    """

    type: Type
    regions: Type
    index: int
    maximum: bool
    half_pixel: bool


class Arguments(RegionArguments):
    indices = Read(lambda spec: Type("i", spec.index))  # of the items
    samples = Size()  # along a bin; 0: as many as the bin is long
    scale = Float()  # of regions


@kernel(Arguments)
def emit_roi_align(k: Function, a: Arguments, spec: AlignSpec) -> None:
    """The bins of regions, [regions, rows, columns, channels].

    An index that names no item is noted as an error, and its bins left out.
    """
    known = Maps(k, a, spec.type, spec.regions)
    indices = a.indices
    samples, scale = a.samples, a.scale
    with known.each_bin(lambda region: indices.load(region).to(I64)) as one:
        corners = known.regions.offset(one.region * 4)
        offset = 0.5 if spec.half_pixel else 0.0
        left, top, right, bottom = (corners.load(at) * scale - offset for at in range(4))
        down = _Samples(k, spec, top, bottom, one.row, known.rows, samples, known.height)
        across = _Samples(k, spec, left, right, one.column, known.columns, samples, known.width)
        _pool(k, spec, known, (down, across), one.map, one.to)


class _Samples:
    """The samples of one bin along one axis: how many there are, and the neighbours of each."""

    def __init__(
        self,
        k: Function,
        spec: AlignSpec,
        start: Value,
        end: Value,
        place: Value,
        bins: Value,
        samples: Value,
        length: Value,
    ) -> None:
        self._k = k
        extent = end - start
        if not spec.half_pixel:
            extent = k.larger(extent, 1.0)
        self._size = extent / bins.to(F64)
        self._first = start + place.to(F64) * self._size
        long = k.select(self._size > 0.0, self._size, k.constant(F64, 0.0))  # 0 for NaN, too
        long = k.select(long < float(MOST_SAMPLES), long, k.constant(F64, float(MOST_SAMPLES)))
        self.count = k.select(samples > 0, samples, ceil(k, long).to(I64))
        self._last = length - 1

    def neighbours(self, sample: Value) -> list[tuple[Value, Value]]:
        """The positions before and behind a sample, and their weights."""
        k = self._k
        place = self._first + (sample.to(F64) + 0.5) / self.count.to(F64) * self._size
        inside = (place >= -1.0) & (place <= (self._last + 1).to(F64))
        place = k.smaller(k.faster_larger(place, 0.0), (self._last + 1).to(F64))  # regions may lie anywhere
        low = k.smaller(place.to(I64), self._last)
        fraction = k.select(low >= self._last, k.constant(F64, 0.0), place - low.to(F64))
        zero = k.constant(F64, 0.0)
        behind = k.smaller(low + 1, self._last)
        return [(low, k.select(inside, 1.0 - fraction, zero)), (behind, k.select(inside, fraction, zero))]


def _pool(
    k: Function, spec: AlignSpec, known: Maps, axes: tuple[_Samples, _Samples], map_: Elements, to: Elements
) -> None:
    """All channels of a bin; 0 where it has no samples."""
    down, across = axes
    working = working_type(spec.type)
    count = down.count * across.count
    share_of_each = k.select(count > 0, 1.0 / count.to(F64), k.constant(F64, 0.0)).to(working)

    def body(at: Value, vectors: int, lanes: int, mask: Value | None) -> None:
        wide = working.vector(lanes)
        start = k.select(count > 0, k.constant(working, float("-inf")), k.constant(working, 0.0))
        totals = [k.variable(wide, k.splat(start, lanes) if spec.maximum else 0) for _ in range(vectors)]
        with k.loop(0, down.count) as y:
            rows = down.neighbours(y)
            with k.loop(0, across.count) as x:
                for row, row_weight in rows:
                    for column, column_weight in across.neighbours(x):
                        place = map_.offset(row * known.row_step + column * known.column_step + at)
                        weight = k.splat((row_weight * column_weight).to(working), lanes)
                        for index, total in enumerate(totals):
                            value = place.load(index * lanes, lanes, mask)
                            if spec.maximum:
                                total.set(k.larger(total.get(), value * weight))
                            else:
                                total.set(k.fma(value, weight, total.get()))
        for index, total in enumerate(totals):
            value = total.get() if spec.maximum else total.get() * share_of_each
            to.store(value, at + index * lanes, mask)

    blocked_loop(k, known.channels, k.target.lanes(working), UNROLL, body)


@template("roi_align")
class RoiAlignKernel(RegionKernel):
    """Samples in each bin of each region, averaged. Parameters beside the shared ones: ``maximum`` instead of the
    average, ``half_pixel``, ``samples`` along a bin (0: as many as it is long).
    """

    def bind(self, binder: Binder, x: Tensor, regions: Tensor, indices: Tensor) -> Sequence[Tensor]:
        if len(x.shape) != 4 or regions.shape[1:] != (4,) or indices.shape != regions.shape[:1]:
            raise ValueError(f"shapes {x.shape}, {regions.shape}, {indices.shape} are not (N,C,H,W), (R,4), (R,)")
        samples = self.parameters["samples"]
        regions, indices = contiguous(binder, regions), contiguous(binder, indices)
        last, made, given, chunks = self.bins_of(binder, x, regions, max(1, samples) ** 2)
        spec = AlignSpec(
            type_named(x),
            type_named(regions),
            indices.dtype.itemsize * 8,
            self.parameters["maximum"],
            self.parameters["half_pixel"],
        )
        if made.size and last.size:
            binder.step(
                emit_roi_align,
                spec,
                Arguments(**given, indices=indices, samples=samples, scale=self.parameters["scale"]),
                chunks=chunks,
                flops=8.0 * made.size * max(1, samples) ** 2,
                detail=f"{made.shape[0]} regions, {made.shape[-1]} channels",
            )
        elif made.size:
            raise ValueError(f"maps of the shape {x.shape} have no elements to sample")
        return [transposed(made, (0, 3, 1, 2))]

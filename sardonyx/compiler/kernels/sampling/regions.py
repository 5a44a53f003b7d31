"""What kernels over regions of maps share. Maps whose channels do not lie together are copied, and vectors go over the
channels of a place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sardonyx.compiler.arguments import ErrorSlot, Read, Record, Size, Write
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import NativeKernel
from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.kernels.sampling.elements import Elements, working_type
from sardonyx.compiler.llvm.types import F64, U64, Type, type_of
from sardonyx.compiler.llvm.walk import note, share
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.slices import transposed
from sardonyx.compiler.native.rows.rows import elements_per_chunk
from sardonyx.graph.types import numpy_dtype
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.regions import no_such_item

# What a sample costs beside its channels, in elements.
_OVERHEAD = 32
# Registers of channels that are computed at once.
UNROLL = 4


@dataclass(frozen=True)
class Bin:
    """A bin: its region, its row and column there, the map of the region's item, and where its channels go."""

    region: Value
    row: Value
    column: Value
    map: Elements
    to: Elements


class RegionArguments(Record):
    """The first arguments of kernels over regions."""

    maps = Read()
    regions = Read()
    output = Write()
    error = ErrorSlot()
    bins = Size()
    per_chunk = Size()  # bins
    rows = Size()  # of the bins of a region
    columns = Size()
    items = Size()  # of the batch
    height = Size()
    width = Size()
    channels = Size()
    item_step = Size()  # elements from one item of the maps to the next
    row_step = Size()
    column_step = Size()


class Maps:
    """What kernels over regions read and write."""

    def __init__(self, k: Function, a: RegionArguments, type_: Type, regions: Type) -> None:
        self.k, working = k, working_type(type_)
        self.maps = Elements(a.maps, type_, working)
        self.regions = Elements(a.regions, regions, F64)
        self.output = Elements(a.output, type_, working)
        self.error = a.error
        self.bins, self.per_chunk, self.rows, self.columns = a.bins, a.per_chunk, a.rows, a.columns
        self.items, self.height, self.width, self.channels = a.items, a.height, a.width, a.channels
        self.item_step, self.row_step, self.column_step = a.item_step, a.row_step, a.column_step

    @contextmanager
    def each_bin(self, item_of: Callable[[Value], Value]) -> Iterator[Bin]:
        """The bins of this call's chunks, where `item_of` gives the item of a region: an index of the batch.

        One that names no item is noted as an error, and its bins are left out.
        """
        k = self.k
        with k.loop(*share(k, self.bins, self.per_chunk)) as number:
            above = number // self.columns
            region = above // self.rows
            item = item_of(region)
            good = item.to(U64) < self.items.to(U64)
            with k.otherwise(good):
                note(k, self.error, item)
            with k.when(good):
                place = region, above - region * self.rows, number - above * self.columns
                map_, to = self.maps.offset(item * self.item_step), self.output.offset(number * self.channels)
                yield Bin(*place, map_, to)


class RegionKernel(NativeKernel):
    """What both kernels share. Parameters: ``rows``, ``columns`` of bins, and ``scale`` of the regions."""

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        for fact in inputs[:2]:
            type_ = None if fact is None or fact.dtype is None else type_of(numpy_dtype(fact.dtype))
            if type_ is None or not type_.is_float:
                return "no kernel pools elements of this type"
        return None

    def _described(self, items: int) -> Callable[[int], Exception]:
        return lambda item: no_such_item(item, items)

    def bins_of(
        self, binder: Binder, x: Tensor, regions: Tensor, samples: int, size: tuple[int, int] | None = None
    ) -> tuple[Tensor, Tensor, dict[str, Any], int]:
        """The maps as they are read; the output, contiguous [regions, rows, columns, channels]; the values of
        `RegionArguments`; and how many chunks there are. A bin has so many `samples`. `size`, rows and columns, is
        that of the parameters if it is not given.
        """
        last = transposed(x, (0, 2, 3, 1))
        if last.strides[-1] != 1:
            last = contiguous(binder, last)
        batch, height, width, channels = last.shape
        rows, columns = size or (self.parameters["rows"], self.parameters["columns"])
        made = binder.new(x.dtype, (regions.shape[0], rows, columns, channels))
        bins = math.prod(made.shape[:-1])
        per_chunk = elements_per_chunk(bins, channels * x.dtype.itemsize, 8 * samples * (channels + _OVERHEAD))
        item_step, row_step, column_step = last.strides[:3]
        given = {
            "maps": last,
            "regions": regions,
            "output": made,
            "error": binder.fault(self._described(batch)),
            "bins": bins,
            "per_chunk": per_chunk,
            "rows": rows,
            "columns": columns,
            "items": batch,
            "height": height,
            "width": width,
            "channels": channels,
            "item_step": item_step,
            "row_step": row_step,
            "column_step": column_step,
        }
        return last, made, given, -(-bins // per_chunk)


def type_named(tensor: Tensor) -> Type:
    found = type_of(tensor.dtype)
    assert found is not None
    return found

"""A row for each element, with 1 at the place of its category."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.arguments import ErrorSlot, Group, Read, Record, Size, Table, Write, kernel
from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.kernels.classic.keyed_table import KeyTable, TableArguments, in_line, keyed_table
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.builder import Function, minimum
from sardonyx.compiler.llvm.kernels.movement.copy import fill_row
from sardonyx.compiler.llvm.types import F32, F64, I64, U8, Type, dtype_type
from sardonyx.compiler.llvm.walk import note
from sardonyx.compiler.native.movement.copy import CHUNK_BYTES
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.ml.encoding import NO_CATEGORY

# Elements that are looked up in a chunk.
_CHUNK = 1024
# The first float beyond the integers.
_BEYOND = 2.0**63


@dataclass(frozen=True)
class OneHotSpec:
    """`data`: the dtype of the elements; `strict`: one of no category is an error; `dense`: see `KeyTable`."""

    data: str
    strict: bool
    dense: bool

    @property
    def type(self) -> Type:
        """The type of the elements."""
        return dtype_type(self.data)


class Arguments(Record):
    elements = Read(lambda spec: spec.type)
    rows = Write(F32)
    count = Size()
    per_chunk = Size()
    step = Size()  # how far apart the elements lie
    width = Size()  # elements of a row
    error = ErrorSlot()
    categories = Table(I64)  # at the places of the table (-1: none)
    table = Group(TableArguments)


@kernel(Arguments)
def emit_one_hot(k: Function, a: Arguments, spec: OneHotSpec) -> None:
    """Rows of float32; floats are cut to integers."""
    elements, rows = a.elements, a.rows
    step, width, error = a.step, a.width, a.error
    categories, table = a.categories, KeyTable(k, a.table, dense=spec.dense)
    begin, end = k["begin"] * a.per_chunk, minimum(k, k["end"] * a.per_chunk, a.count)
    nothing = k.splat(k.constant(U8, 0), k.target.vector_bits // 8)
    with k.loop(begin, end) as place:
        element, row = elements.load(place * step), rows.offset(place * width)
        fill_row(k, row.cast(U8), nothing, width * F32.nbytes, F32.nbytes)
        (found,) = table.places([element.to(I64)])
        category = categories.load(found)
        known = category >= 0
        if spec.type.is_float:
            wide = element.to(F64)
            known = known & (wide < _BEYOND) & (wide > -_BEYOND)
        with k.when(known):
            row.store(1.0, category)
        if spec.strict:
            with k.otherwise(known):
                note(k, error, place)


@template("one_hot_rows")
class OneHotRows(NativeKernel):
    """For each element a row of 0, with 1 at its category. Parameters: `categories` (int64, the last of equal ones
    counts), and `zeros`: an element of no category is no error."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        categories: Array = parameters["categories"]
        distinct, from_end = np.unique(categories[::-1], return_index=True)
        self._table = keyed_table(distinct, len(categories) - 1 - from_end, np.array(-1))

    def bind(self, binder: Binder, data: Tensor) -> Sequence[Tensor]:
        width, strict = len(self.parameters["categories"]), not self.parameters["zeros"]
        result = binder.new(np.dtype(np.float32), (*data.shape, width))
        if not data.size:
            return [result]
        data, step = in_line(binder, data)
        per_chunk = max(1, min(_CHUNK, CHUNK_BYTES // (width * F32.nbytes)))
        error = binder.fault(lambda place: ValueError(NO_CATEGORY)) if strict else None
        binder.step(
            emit_one_hot,
            OneHotSpec(data.dtype.name, strict, self._table.dense),
            Arguments(
                elements=data,
                rows=result,
                count=data.size,
                per_chunk=per_chunk,
                step=step,
                width=width,
                error=error,
                categories=binder.constant(self._table.values),
                table=self._table.arguments(binder),
            ),
            chunks=-(-data.size // per_chunk),
            detail=f"{data.size} elements of {width} categories",
        )
        return [result]

"""Values by key, several elements side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sardonyx.compiler.arguments import Group, Read, Record, Size, Table, Write, kernel
from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.kernels.classic.keyed_table import (
    KeyedTable,
    KeyTable,
    TableArguments,
    float_key,
    float_keys,
    in_line,
    keyed_table,
)
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.builder import Function, minimum
from sardonyx.compiler.llvm.types import I64, Type, dtype_type
from sardonyx.compiler.llvm.values import Value
from sardonyx.light_dataclass import dataclass

# Elements that are looked up in a chunk, and side by side.
_CHUNK = 1024
_ABREAST = 8


@dataclass(frozen=True)
class LookUpSpec:
    """`data`: the dtype of the elements; `blob`: bytes of a value; `dense`: see `KeyTable`."""

    data: str
    blob: int
    dense: bool

    @property
    def type(self) -> Type:
        """The type of the elements."""
        return dtype_type(self.data)


class Arguments(Record):
    elements = Read(lambda spec: spec.type)
    results = Write()
    count = Size()
    per_chunk = Size()
    step = Size()  # how far apart the elements lie
    values = Table()  # at the places of the table, and behind them that of an element with no key
    table = Group(TableArguments)


@kernel(Arguments)
def emit_look_up(k: Function, a: Arguments, spec: LookUpSpec) -> None:
    """For each element the value of its key."""
    blob = Type("u", 8 * spec.blob)
    elements, results = a.elements, a.results.cast(blob)
    step, values = a.step, a.values.cast(blob)
    table = KeyTable(k, a.table, dense=spec.dense)

    def look_up(first: Value, count: int) -> None:
        given = [elements.load((first + lane) * step) for lane in range(count)]
        keys = [float_key(k, one) if spec.type.is_float else one.to(I64) for one in given]
        for lane, place in enumerate(table.places(keys)):
            results.store(values.load(place), first + lane)

    begin, end = k["begin"] * a.per_chunk, minimum(k, k["end"] * a.per_chunk, a.count)
    alone = end - (end - begin) % _ABREAST
    with k.loop(begin, alone, _ABREAST) as first:
        look_up(first, _ABREAST)
    with k.loop(alone, end) as first:
        look_up(first, 1)


@template("look_up")
class LookUp(NativeKernel):
    """Each element's value. Parameters: `keys` (distinct, int64 or float64), `values`, and the one of all `others`."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self._table: KeyedTable | None = None

    def bind(self, binder: Binder, data: Tensor) -> Sequence[Tensor]:
        get = self.parameters
        if self._table is None:
            keys: Array = get["keys"]
            keys = float_keys(keys) if keys.dtype.kind == "f" else keys
            self._table = keyed_table(keys, get["values"], get["others"])
        table, result = self._table, binder.new(get["values"].dtype, data.shape)
        if not data.size:
            return [result]
        data, step = in_line(binder, data)
        binder.step(
            emit_look_up,
            LookUpSpec(data.dtype.name, result.dtype.itemsize, table.dense),
            Arguments(
                elements=data,
                results=result,
                count=data.size,
                per_chunk=_CHUNK,
                step=step,
                values=binder.constant(table.values),
                table=table.arguments(binder),
            ),
            chunks=-(-data.size // _CHUNK),
            detail=f"{data.size} elements in {len(get['keys'])} keys",
        )
        return [result]

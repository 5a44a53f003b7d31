"""What surrounds a recurrent layer's loop: rows of units with room for whole vectors, and R in panels."""

from __future__ import annotations

from sardonyx.compiler.arguments import Read, Record, Size, Write, kernel, sizes
from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.narrow_floats import from_bits, to_bits
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BF16, F16, F32, F64, I64, U16, Type
from sardonyx.light_dataclass import dataclass

# Vectors of units that a block of the loop computes at once.
BLOCK_VECTORS = 2


def block_units(target: Target, working: Type) -> int:
    """The units of a block: their gates fill as many registers as hide the time of a multiply-add."""
    return BLOCK_VECTORS * target.lanes(working)


def read_units(from_: Pointer, index: Value, lanes: int, wanted: Type) -> Value:
    """Numbers of a pointer's type as `wanted`; those of 16 bits are read as bits, for which every target has code."""
    if from_.scalar in (F16, BF16):
        return from_bits(from_.cast(U16).load(index, lanes), from_.scalar).to(wanted)
    return from_.load(index, lanes).to(wanted)


def write_units(to: Pointer, value: Value, index: Value | int = 0, mask: Value | None = None) -> None:
    """Store numbers as those of a pointer's type, rounded once."""
    if to.scalar in (F16, BF16):
        to.cast(U16).store(to_bits(to.function, value, to.scalar), index, mask)
    else:
        to.store(value.to(to.scalar), index, mask)


@dataclass(frozen=True)
class RowsSpec:
    """Rows of `source` numbers become rows of `target` numbers; of zeros where there is no source."""

    source: Type | None
    target: Type


class RowsArguments(Record):
    source = Read(lambda spec: spec.source)
    to = Write(lambda spec: spec.target)
    inner = Size()  # rows on the inner axis
    count = Size()  # elements of a row
    room = Size()  # elements of a row of the target
    read_outer, read_inner, write_outer, write_inner = sizes(4)


@kernel(RowsArguments)
def emit_unit_rows(k: Function, a: RowsArguments, spec: RowsSpec) -> None:
    """Rows on two axes, converted; behind each the target has room that is filled with zeros.

    A chunk is a place on the outer axis.
    """
    inner, count, room, read_outer, read_inner = a.inner, a.count, a.room, a.read_outer, a.read_inner
    write_outer, write_inner, to = a.write_outer, a.write_inner, a.to
    lanes = k.target.lanes(spec.target if spec.target in (F64, I64) else F32)
    whole = count & -lanes
    with k.loop(k["begin"], k["end"]) as outer, k.loop(0, inner) as row:
        written = to.offset(outer * write_outer + row * write_inner)
        filled = k.constant(I64, 0)
        if spec.source is not None:
            read = a.source.offset(outer * read_outer + row * read_inner)
            for first, last, width in ((0, whole, lanes), (whole, count, 1)):
                with k.loop(first, last, width) as at:
                    write_units(written, read_units(read, at, width, _working(spec)), at)
            filled = count
        with k.loop(filled, room) as at:
            written.store(0, at)


def _working(spec: RowsSpec) -> Type:
    return F64 if F64 in (spec.source, spec.target) else F32


@dataclass(frozen=True)
class PanelsSpec:
    """R of `storage` numbers into panels of `working` ones, or of bfloat16 (`halves`)."""

    storage: Type
    working: Type
    halves: bool = False


class PanelsArguments(Record):
    source = Read(lambda spec: spec.storage)  # R [directions, gates, hidden, hidden]
    panels = Write(lambda spec: BF16 if spec.halves else spec.working)
    blocks = Size()  # of units
    hidden, gates, first_gate = sizes(3)
    taken = Size()  # gates from the first one on
    panel = Size()  # elements of a panel


@kernel(PanelsArguments)
def emit_recurrent_panels(k: Function, a: PanelsArguments, spec: PanelsSpec) -> None:
    """Some gates of R, so that the rows of a block's units lie beside each other for every hidden unit they multiply.

    The panels are [directions, blocks, hidden, gates taken, units of a block]; units behind the last are zeros. Of
    bfloat16, the units of a block's two vectors take turns: a word of 32 bits has one of each (`half_of`). A chunk is a
    panel.
    """
    source, panels = a.source, a.panels
    blocks, hidden, gates, first_gate, taken, panel = a.blocks, a.hidden, a.gates, a.first_gate, a.taken, a.panel
    lanes, units = k.target.lanes(spec.working), block_units(k.target, spec.working)
    with k.loop(k["begin"], k["end"]) as chunk:
        direction = chunk // blocks
        first = (chunk - direction * blocks) * units
        to = panels.offset(chunk * panel)
        step = taken * units
        # In stretches of a cache line of R, whose places in the panel stay in the first cache.
        stretch = 64 // spec.storage.nbytes
        with k.loop(0, hidden, stretch) as begin:
            end = k.smaller(begin + stretch, hidden)
            with k.loop(0, taken) as gate, k.loop(0, units) as unit:
                row = (direction * gates + first_gate + gate) * hidden + first + unit
                place = unit % lanes * BLOCK_VECTORS + unit // lanes if spec.halves else unit
                column = to.offset(gate * units + place)
                there = first + unit < hidden
                with k.when(there):
                    read = source.offset(row * hidden)
                    with k.loop(begin, end) as at:
                        write_units(column, read_units(read, at, 1, spec.working), at * step)
                with k.otherwise(there), k.loop(begin, end) as at:
                    write_units(column, k.constant(spec.working, 0), at * step)


def half_of(word: Value, which: int) -> Value:
    """The F32 values of the first or second half of words, each two numbers of bfloat16."""
    return (word & 0xFFFF0000 if which else word << 16).bits_as(F32)

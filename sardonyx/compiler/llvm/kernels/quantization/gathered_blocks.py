"""Rows of a table of few bits by index, made real: (q - zero point) * scale, a pair for each block of elements.

A row is `before` x `length` x `after` elements, blocks lie along its middle dimension. With one element after it the
elements of a block share a scale; else neighbours have scales of their own, which lie as they do.
"""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.rows.row_access import as_loaded, as_stored, memory_type
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32, I32, I64, U8, U64, Type, type_of
from sardonyx.compiler.llvm.walk import kernel_frame, share
from sardonyx.light_dataclass import dataclass

# What the words of the kernel's arguments are, in order.
#
# data, indices, scales, zeros, output    addresses; the zeros only with `has_zeros`
# items, per_chunk                        outer places times indices; those of a chunk
# rows                                    indices
# size                                    of the axis that they address; a negative index counts from its end
# before, length, after                   dimensions of a row
# block, blocks                           elements along the middle one that share parameters, and how many blocks
# data_outer, data_row                    bytes of the table from one outer place to the next, and from row to row
# scale_outer, scale_row                  elements of scales likewise, by the places below
# zero_outer, zero_row                    bytes of zero points likewise
# zero_bytes                              bytes of the zero points of one place before the middle dimension
# row_block                               rows of the table that share a row of parameters
# inside, along, outer_block, outer_blocks
#                                         an outer place is (place, along, inside): its parameters are those of
#                                         (place, along / outer_block, inside), outer_blocks along the middle
ARGUMENTS = (
    *(
        "data",
        "indices",
        "scales",
        "zeros",
        "output",
        "items",
        "per_chunk",
        "rows",
        "size",
        "before",
        "length",
        "after",
    ),
    *("block", "blocks", "data_outer", "data_row", "scale_outer", "scale_row", "zero_outer", "zero_row", "zero_bytes"),
    *("row_block", "inside", "along", "outer_block", "outer_blocks"),
)


@dataclass(frozen=True)
class GatheredBlocksSpec:
    """Codes of the dtype called `stored`, `bits` of them (8: one in each byte) in whole bytes along a row, or one to an
    element; `real` is the dtype of scales and results, `index` the bits of an index.

    Without `has_zeros` the zero point is `middle`. `alone` says that there is one element after the middle dimension.
    """

    stored: str
    bits: int
    real: str
    index: int
    has_zeros: bool
    middle: int
    alone: bool


def emit_gathered_blocks(target: Target, spec: GatheredBlocksSpec) -> str:
    """The kernel of `spec`; its arguments are `ARGUMENTS`. A place whose index is out of bounds becomes zeros."""
    k, words = kernel_frame(target)
    given = {name: words.load(place) for place, name in enumerate(ARGUMENTS)}
    rows = _Rows(k, spec, given)
    begin, end = share(k, given["items"], given["per_chunk"])
    with k.loop(begin, end) as item:
        outer = item // given["rows"]
        index = rows.indices.load(item - outer * given["rows"]).to(I64)
        place = index + k.select(index < 0, given["size"], 0)
        is_there = place.to(U64) < given["size"].to(U64)
        with k.when(is_there):
            rows.write(item, outer, place)
        with k.otherwise(is_there):
            rows.clear(item)
    return k.finish()


class _Rows:
    """The tables and the result, and what is done for one row."""

    def __init__(self, k: Function, spec: GatheredBlocksSpec, given: dict[str, Value]) -> None:
        self.k, self.spec, self.given = k, spec, given
        stored, real = type_of_name(spec.stored), type_of_name(spec.real)
        self.stored, self.real = stored, real
        self.lanes = k.target.lanes(F32)
        self.indices = k.pointer(given["indices"], Type("i", spec.index))
        self.data, self.zeros = k.pointer(given["data"], U8), k.pointer(given["zeros"], U8)
        self.scales, self.output = (
            k.pointer(given["scales"], memory_type(real)),
            k.pointer(given["output"], memory_type(real)),
        )
        self.count = given["before"] * given["length"] * given["after"]

    def clear(self, item: Value) -> None:
        row = self.output.offset(item * self.count)
        whole = self.count - self.count % self.lanes
        nothing = self.k.constant(F32, 0.0)
        with self.k.loop(0, whole, self.lanes) as at:
            self._store(row, at, self.k.splat(nothing, self.lanes))
        with self.k.loop(whole, self.count) as at:
            self._store(row, at, nothing)

    def write(self, item: Value, outer: Value, place: Value) -> None:
        k, given = self.k, self.given
        data = self.data.offset(outer * given["data_outer"] + place * given["data_row"])
        beyond = outer // given["inside"]
        part = beyond // given["along"]
        middle = part * given["outer_blocks"] + (beyond - part * given["along"]) // given["outer_block"]
        of_outer = middle * given["inside"] + (outer - beyond * given["inside"])
        of_row = place // given["row_block"]
        scales = self.scales.offset(of_outer * given["scale_outer"] + of_row * given["scale_row"])
        zeros = self.zeros.offset(of_outer * given["zero_outer"] + of_row * given["zero_row"])
        output = self.output.offset(item * self.count)
        with k.loop(0, given["before"]) as before:
            if self.spec.alone:
                self._blocks(before, data, scales, zeros, output)
            else:
                self._lines(before, data, scales, zeros, output)

    def _blocks(self, before: Value, data: Pointer, scales: Pointer, zeros: Pointer, output: Pointer) -> None:
        """The blocks of a place before the middle dimension, each with one scale."""
        k, given, lanes = self.k, self.given, self.lanes
        first = before * given["length"]
        with k.loop(0, given["blocks"]) as block:
            scale = self._scale(scales, before * given["blocks"] + block, 1)
            zero = self._zero_of(zeros.offset(before * given["zero_bytes"]), block)
            begin = block * given["block"]
            end = k.smaller(begin + given["block"], given["length"])
            whole = end - (end - begin) % lanes
            with k.loop(begin, whole, lanes) as at:
                codes = self._codes(data, first + at)
                self._store(output, first + at, (codes - k.splat(zero, lanes)) * k.splat(scale, lanes))
            with k.loop(whole, end) as at:
                self._store(output, first + at, (self._code(data, first + at) - zero) * scale)

    def _lines(self, before: Value, data: Pointer, scales: Pointer, zeros: Pointer, output: Pointer) -> None:
        """The same where elements behind the middle dimension have parameters of their own."""
        k, given, lanes = self.k, self.given, self.lanes
        after = given["after"]
        whole = after - after % lanes
        with k.loop(0, given["length"]) as middle:
            line = (before * given["length"] + middle) * after
            own = (before * given["blocks"] + middle // given["block"]) * after
            for begin, end, width in ((0, whole, lanes), (whole, after, 1)):
                with k.loop(begin, end, width) as at:
                    zero = self._numbers(zeros, own + at, width) if self.spec.has_zeros else float(self.spec.middle)
                    codes = self._numbers(data, line + at, width) - zero
                    self._store(output, line + at, codes * self._scale(scales, own + at, width))

    def _scale(self, scales: Pointer, at: Value, lanes: int) -> Value:
        return as_loaded_as(scales.load(at, lanes), self.real)

    def _numbers(self, place: Pointer, at: Value, lanes: int) -> Value:
        """Elements that take a byte each, in float32."""
        return as_loaded_as(place.cast(memory_type(self.stored)).load(at, lanes), self.stored)

    def _zero_of(self, zeros: Pointer, block: Value) -> Value:
        """The zero point of a block, which may share a byte with others."""
        if not self.spec.has_zeros:
            return self.k.constant(F32, float(self.spec.middle))
        return self._code(zeros, block)

    def _code(self, place: Pointer, at: Value) -> Value:
        """One number of a row."""
        bits = self.spec.bits
        if bits == 8:
            return self._numbers(place, at, 1)
        per_byte = 8 // bits
        byte = place.load(at // per_byte).to(I32)
        shift = ((at % per_byte) * bits).to(I32)
        return ((byte >> shift) & ((1 << bits) - 1)).to(F32)

    def _codes(self, place: Pointer, at: Value) -> Value:
        """A vector of numbers of a row from one on that begins a byte."""
        bits, lanes = self.spec.bits, self.lanes
        if bits == 8:
            return self._numbers(place, at, lanes)
        per_byte = 8 // bits
        bytes_ = place.load(at // per_byte, lanes // per_byte)
        parts = [(bytes_ >> (bits * number)) & ((1 << bits) - 1) for number in range(per_byte)]
        while len(parts) > 1:  # the first half of the parts with the second, so that numbers end up in order
            half = len(parts) // 2
            parts = [self._zipped(one, other) for one, other in zip(parts[:half], parts[half:], strict=True)]
        return parts[0].to(I32).to(F32)

    def _zipped(self, one: Value, other: Value) -> Value:
        count = one.type.lanes
        if count == 1:
            empty = self.k.undefined(one.type.vector(2))
            return self.k.insert(self.k.insert(empty, one, 0), other, 1)
        return self.k.shuffle(one, other, [place + side * count for place in range(count) for side in (0, 1)])

    def _store(self, output: Pointer, at: Value, value: Value) -> None:
        rounded = value if self.real == F32 else as_stored(self.k, value, self.real)
        output.store(rounded, at)


def type_of_name(name: str) -> Type:
    """The type of elements of a dtype, by its name."""
    found = type_of(name)  # type: ignore[arg-type]
    assert found is not None
    return found


def as_loaded_as(value: Value, scalar: Type) -> Value:
    """What was read of a type, in float32."""
    loaded = as_loaded(value, scalar)
    if loaded.type.scalar == F32:
        return loaded
    return loaded.to(I32).to(F32)

"""Convolution of an input with few channels, line by line: what a first layer does.

A window's part of one line of the input are `taps` neighbouring elements. A chunk copies the lines that a piece of one
line of the output needs, with zeros for padding, and then multiplies tiles of neighbouring places: the elements of the
next place lie `stride` further on, so that a tile reads every line where it lies, at distances known when the code is
written. Lines of an input in ONNX's order are those of one channel; where the channels lie together, a line holds all
of them, `taps` and `stride` count elements, and nothing else changes.

Windows of one line of the output overlap those of the next: chunks that a thread does one after the other keep the
lines that they share. The taps of a column of the kernel turn around in as many places, and only what is new is copied,
over what is needed no more.

Products of pairs read neighbouring elements of a line as a word, wherever it begins: lines lie in scratch as elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from sardonyx.compiler.llvm.builder import Carried, Function, Pointer, Value, minimum
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import (
    EpilogueWriter,
    Place,
    TileEpilogue,
    fits_registers,
)
from sardonyx.compiler.llvm.kernels.products.gemm_packing import converted
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.narrow_floats import word_of
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BOOL, I64, PTR, Type
from sardonyx.light_dataclass import dataclass

# Spatial dimensions of the output outside of its lines.
OUTER = 2
# Words of the table for each line: where it starts, and its place in each outer dimension.
_LINE = 1 + OUTER


@dataclass(frozen=True)
class LinesSpec:
    """The structure of a kernel: taps of a line, from place to place `stride` elements, from tap to tap `dilation`.

    The code is written out for `taps` of them, and goes over these `parts` times.

    A tile has up to `rows` places of `vectors` vectors of filters; words of `product` are one element, or two at
    a `dilation` of 1. `flushes`: results in bfloat16 lose denormal numbers. `narrow`: of the last panel of filters no
    more than one vector exists.
    """

    product: str
    taps: int
    stride: int
    dilation: int
    rows: int
    vectors: int
    epilogue: TileEpilogue = field(default_factory=TileEpilogue)
    flushes: bool = False
    parts: int = 1
    narrow: bool = False

    @property
    def reach(self) -> int:
        """Elements that a place needs of a line."""
        return (self.taps * self.parts - 1) * self.dilation + 1

    @property
    def word_taps(self) -> tuple[int, ...]:
        """The first tap of each word. The last pair of an odd number begins with the one before, which has no weight
        there: what lies beside a window is not touched."""
        depth = PRODUCTS[self.product].depth
        return tuple(min(tap, self.taps - depth) for tap in range(0, self.taps, depth))


def argument_names(spec: LinesSpec) -> tuple[str, ...]:
    """What the words of the kernel's arguments are, in order; strides and offsets count elements.

    x, b                          addresses; b holds panels of filters
    filters, lines                of the result; of the input for one line of the result
    width, span, segments         places of a line, of a piece of it, and pieces of a line
    item_step                     from one item of the batch to the next
    outer*                        lines of the result along the outer dimensions; for each of them
    step*, first*, stride*, size* from one to the next in the input, and the same in places: where the first begins
                                  (negative in padding), how far apart they are, how many the input has
    line_first, line_size         where the first place of a line begins, and elements of a line of the input
    around, shared                taps along the last outer dimension, and how many of them read what others read for
                                  the line of the result before: 0 where chunks do not follow each other so
    line_words                    elements from line to line in scratch
    order_scratch, tile_scratch   where the lines' places and the tile lie there, in bytes

    The table of lines lies behind all arguments.
    """
    names = ["x", "b", "filters", "lines", "width", "span", "segments", "item_step"]
    for dim in range(OUTER):
        names += [f"outer{dim}", f"step{dim}", f"first{dim}", f"stride{dim}", f"size{dim}"]
    names += ["line_first", "line_size", "around", "shared", "line_words", "order_scratch", "tile_scratch"]
    return (*names, *spec.epilogue.argument_names())


def emit_lines(target: Target, spec: LinesSpec) -> str:
    """The kernel of `spec`; a chunk is a piece of a line of the result, pieces fastest, then lines, then items."""
    return _Lines(target, spec).text()


class _Lines:
    def __init__(self, target: Target, spec: LinesSpec) -> None:
        self.spec, self.product = spec, PRODUCTS[spec.product]
        k = self.k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
        k.flushes = spec.flushes
        words = k.pointer("arguments", I64)
        names = argument_names(spec)
        self.given = {name: words.load(index) for index, name in enumerate(names)}
        self.table = words.offset(len(names))
        self.lanes = target.lanes(self.product.word)
        self.panel = self.lanes * spec.vectors
        self.stored = self.product.word if self.product.depth == 1 else word_of(self.product.packed_a)
        self.scratch = k.pointer("scratch", self.stored)
        # Of each line the elements before it in scratch.
        self.order = k.pointer(k.advance(k["scratch"], self.given["order_scratch"], 1), I64)

    def text(self) -> str:
        k, given = self.k, self.given
        turned = k.variable(I64, 0)
        with k.loop(k["begin"], k["end"]) as chunk:
            column = chunk % given["segments"] * given["span"]
            line = chunk // given["segments"]
            at = [line // given["outer1"] % given["outer0"], line % given["outer1"]]
            item = line // given["outer1"] // given["outer0"]
            places = minimum(k, given["width"] - column, given["span"])
            follows = (chunk > k["begin"]) & (at[-1] > 0)
            there = k.select(follows, given["shared"], 0)
            turned.set(k.select(there > 0, self._turned(turned.get() + given["around"] - there), 0))
            self._copy_lines(item, at, column, places, there, turned.get())
            row = line % (given["outer0"] * given["outer1"]) * given["width"] + column
            with k.loop(0, given["filters"], self.panel) as filters:
                self._tiles(item, row, places, filters)
        return k.finish()

    def _turned(self, tap: Value) -> Value:
        """The place of a tap that is counted on from another one's: those behind the last begin anew."""
        around = self.given["around"]
        return tap - self.k.select(tap >= around, around, 0)

    def _copy_lines(
        self, item: Value, at: list[Value], column: Value, places: Value, there: Value, turned: Value
    ) -> None:
        """The part of each line that `places` places from `column` on need, to scratch.

        Those of the first `there` taps are there; the first tap's place is `turned`.
        """
        k, given, spec = self.k, self.given, self.spec
        start = item * given["item_step"]
        for dim, place in enumerate(at):
            start = start + place * given[f"step{dim}"]
        first = given["line_first"] + column * spec.stride
        length = (places - 1) * spec.stride + spec.reach
        source = k.pointer(given["x"], self.product.stored_a).offset(start + first)
        low = minimum(k, k.larger(-first, 0), length)
        high = k.larger(minimum(k, given["line_size"] - first, length), low)
        with k.loop(0, given["lines"], given["around"]) as group, k.loop(0, given["around"]) as tap:
            words = (group + self._turned(tap + turned)) * given["line_words"]
            self.order.store(words, group + tap)
            with k.when(tap >= there):
                entry = self.table.offset((group + tap) * _LINE)
                exists = k.constant(BOOL, True)
                for dim, place in enumerate(at):
                    position = place * given[f"stride{dim}"] + given[f"first{dim}"] + entry.load(1 + dim)
                    exists = exists & (position >= 0) & (position < given[f"size{dim}"])
                end = k.select(exists, high, low)
                self._copy_line(source.offset(entry.load()), self.scratch.offset(words), low, end, length)

    def _copy_line(self, source: Pointer, target: Pointer, low: Value, high: Value, length: Value) -> None:
        """Elements [low, high) of a line, and zeros up to `length`; up to a vector more is overwritten."""
        k, lanes = self.k, self.lanes
        zeros = k.constant(self.stored.vector(lanes), 0)
        with k.loop(0, low, lanes) as place:
            target.store(zeros, place)
        whole = low + (high - low) // lanes * lanes
        with k.loop(low, whole, lanes) as place:
            target.store(self._converted(source.load(place, lanes)), place)
        with k.when(whole < high):
            rest = source.load(whole, lanes, k.lanes_below(high - whole, lanes))
            target.store(self._converted(rest), whole)
        with k.loop(high, length, lanes) as place:
            target.store(zeros, place)

    def _converted(self, values: Value) -> Value:
        """Elements of the input as they lie in scratch."""
        found = converted(self.k, values, self.product.packed_a)
        return found if self.product.depth == 1 else found.bits_as(self.stored)

    def _tiles(self, item: Value, row: Value, places: Value, filters: Value) -> None:
        """One panel of filters at all places, in tiles of nearly equal height."""
        k, spec = self.k, self.spec
        count = (places + (spec.rows - 1)) // spec.rows
        least, more = places // count, places % count
        left = self.given["filters"] - filters
        panel = k.pointer(self.given["b"], self.product.word).offset(
            filters * (self.given["lines"] * (len(spec.word_taps) * spec.parts))
        )
        room = k.pointer(k.advance(k["scratch"], self.given["tile_scratch"], 1), self.product.accumulator)
        in_registers = k.constant(BOOL, fits_registers(spec.epilogue))
        finished = in_registers & ((left >= self.panel) | left.equals(self.lanes))
        at = k.variable(I64, 0)
        with k.loop(0, count) as number:
            here = at.get()
            rows = least + k.select(number < more, k.constant(I64, 1), 0)
            at.set(here + rows)
            selector = k.select(left <= self.lanes, rows + spec.rows, rows) if spec.narrow else rows
            cases = range(1, (2 if spec.narrow else 1) * spec.rows + 1)
            for case in k.choose(selector, cases):
                height, vectors = (case, spec.vectors) if case <= spec.rows else (case - spec.rows, 1)
                tile = self._multiplied(self.scratch.offset(here * spec.stride), panel, height, vectors)
                if fits_registers(spec.epilogue):
                    with k.when(finished):
                        self._writer(item, filters, [None] * vectors).over_registers(tile, row + here)
                    with k.otherwise(finished):
                        self._keep(room, tile)
                else:
                    self._keep(room, tile)
            with k.otherwise(finished):
                self._finish(room, item, row + here, rows, filters)

    def _multiplied(self, line: Pointer, panel: Pointer, rows: int, vectors: int) -> list[list[Value]]:
        """The sums of `rows` neighbouring places, the first of which begins at `line` in a first line, in registers."""
        k, spec, lanes = self.k, self.spec, self.lanes
        wide = self.product.accumulator.vector(lanes)
        sums = [[Carried(k.constant(wide, 0)) for _ in range(vectors)] for _ in range(rows)]
        weights = Carried(panel.address)
        carried = [*(total for row in sums for total in row), weights]
        with k.loop(0, self.given["lines"], 1, carried) as number:
            here = line.offset(self.order.load(number))
            if spec.parts == 1:
                self._add_taps(sums, here, weights)
            else:
                with k.loop(0, spec.parts, 1, carried) as part:
                    self._add_taps(sums, here.offset(part * (spec.taps * spec.dilation)), weights)
        return [[total.get() for total in row] for row in sums]

    def _add_taps(self, sums: list[list[Carried]], here: Pointer, weights: Carried) -> None:
        """Add the products of neighbouring places with the next weights."""
        k, spec, lanes = self.k, self.spec, self.lanes
        filters = k.pointer(weights.get(), self.product.word)
        for number, tap in enumerate(spec.word_taps):
            k.keep_order()  # neighbouring places read the same elements at other taps: none of these shall wait
            factors = [filters.load(number * self.panel + vector * lanes, lanes) for vector in range(len(sums[0]))]
            for row, totals in enumerate(sums):
                place = here.offset(row * spec.stride + tap * spec.dilation)
                word = place.cast(self.product.word).load(align=self.stored.nbytes)
                for total, factor in zip(totals, factors, strict=True):
                    total.set(self.product.multiply(k, word, factor, total.get()))
        weights.set(filters.offset(len(spec.word_taps) * self.panel).address)

    def _keep(self, room: Pointer, tile: list[list[Value]]) -> None:
        for number, line in enumerate(tile):
            for vector, value in enumerate(line):
                room.store(value, number * self.panel + vector * self.lanes)

    def _finish(self, room: Pointer, item: Value, row: Value, rows: Value, filters: Value) -> None:
        """The epilogue of a tile in scratch whose first place is row `row` of the item's result."""
        k, lanes = self.k, self.lanes
        stride, left = k.constant(I64, self.panel), self.given["filters"] - filters
        whole = left >= self.panel
        with k.when(whole):
            self._writer(item, filters, [None] * self.spec.vectors).over_rows(room, stride, row, rows)
        with k.otherwise(whole), k.loop(0, left, lanes) as column:
            mask = k.lanes_below(left - column, lanes)
            self._writer(item, filters + column, [mask]).over_rows(room.offset(column), stride, row, rows)

    def _writer(self, item: Value, filters: Value, masks: Sequence[Value | None]) -> EpilogueWriter:
        k, epilogue = self.k, self.spec.epilogue

        def place(name: str, scalar: Type) -> Place:
            start = k.pointer(self.given[name], scalar).offset(item * self.given[f"{name}_batch0"])
            return Place(start, self.given[f"{name}_stride"])

        operands = [place(f"operand{index}", operand.type) for index, operand in enumerate(epilogue.operands)]
        outputs = [
            place(f"output{index}", epilogue.output_type(index, self.product.accumulator))
            for index in range(max(1, len(epilogue.outputs)))
        ]
        return EpilogueWriter(k, epilogue, operands, outputs, filters, masks)

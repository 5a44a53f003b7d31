"""Convolution of bytes: exact sums of windows of an image whose channels lie together, and an epilogue.

A window is read where it lies, in runs of bytes that are contiguous in the image: those of all channels along the last
dimension of the window, or those of one tap. A tile is some neighbouring places of a line of the output by a panel of
filters, with the sums in registers; its rows of A are a fixed step apart, so that nothing is copied.

Where weights are bounded words (`bounded_words`), a panel is one vector of filters, and a tile as high as there are
registers: all panels of a chunk meet the windows of a tile, which stay in the nearest cache, before those of the next.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import field

from sardonyx.compiler.llvm.builder import Carried, Function, Pointer, Value, Variable, minimum
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import TileEpilogue
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS, multiply_bytes
from sardonyx.compiler.llvm.kernels.quantization.byte_panels import Panel, each_panel
from sardonyx.compiler.llvm.kernels.quantization.tile_writer import TileWriter
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I32, I64, PTR, U8, U32
from sardonyx.light_dataclass import dataclass

WORD = 4  # bytes that one lane of a dot product takes

# Dimensions over which lines are counted.
LINE_DIMS = 3

# Rows that are addressed from one pointer: at 0, 1 and 2 steps from it.
_ROWS_OF_A_POINTER = 3


@dataclass(frozen=True)
class ByteConvolutionSpec:
    """Tiles of `rows` places by `vectors` vector registers of filters; the epilogue starts from sums in int32."""

    product: str
    rows: int
    vectors: int
    epilogue: TileEpilogue = field(default_factory=TileEpilogue)


def argument_names(spec: ByteConvolutionSpec) -> tuple[str, ...]:
    """What the words of the kernel's arguments are, in order. Steps in the image count bytes.

    image, weights, init         addresses: bytes; panels [group][taps * words][panel] of words; what sums start from,
                                 [group][panels * panel] in int32
    offsets, taps, words         where each run of a window lies, how many runs, words of a run
    filters, groups              filters of a group, and groups
    group_step, weights_step     bytes between groups in the image, words between groups of panels
    width, step                  places of a line, and the step between them
    size1, size2                 sizes of the two inner dimensions that lines are counted over
    line_step*                   steps along all three
    piece, pieces                places of a piece of a line, and pieces of a line
    tile                         places of a tile, at most `rows`
    items, block, blocks         pieces of all lines; pieces of a chunk; how many such chunks there are
    panels, panel_groups         panels of a chunk; how many such chunks there are

    Of bounded words, `words` are those of a panel, and where they begin in their run and how many there are up to the
    end of each run follows: begins, [panels][words] in int32, and ends, [panels][taps] in int32.
    """
    names = ["image", "weights", "init", "offsets", "taps", "words", "filters", "groups", "group_step", "weights_step"]
    names += ["width", "step", "size1", "size2", *(f"line_step{axis}" for axis in range(LINE_DIMS))]
    names += ["piece", "pieces", "tile", "items", "block", "blocks", "panels", "panel_groups"]
    names += ["begins", "ends"] if PRODUCTS[spec.product].is_bounded else []
    return (*names, *spec.epilogue.argument_names())


def emit_byte_convolution(target: Target, spec: ByteConvolutionSpec) -> str:
    """The kernel of `spec`; chunks count blocks of pieces fastest, then groups of panels, then groups of channels."""
    return _ByteConvolution(target, spec).text()


@dataclass(frozen=True)
class _Tile:
    """A tile of places: where its first window begins in the image, in bytes, its first place, and how many it has."""

    start: Value
    place: Value
    rows: Value


class _ByteConvolution:
    """The kernel while it is written."""

    def __init__(self, target: Target, spec: ByteConvolutionSpec) -> None:
        self.spec, self.product = spec, PRODUCTS[spec.product]
        k = self.k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
        words = k.pointer("arguments", I64)
        given = self.given = {name: words.load(index) for index, name in enumerate(argument_names(spec))}
        self.lanes = target.lanes(I32)
        self.panel = self.lanes * spec.vectors
        self.offsets = k.pointer(given["offsets"], I64)
        self.writer = TileWriter(
            k, spec.epilogue, given, I32, spec.vectors, spec.rows, k.pointer("scratch", I32), at_once=True
        )

    def text(self) -> str:
        k, given = self.k, self.given
        with k.loop(k["begin"], k["end"]) as chunk:
            first_item = chunk % given["blocks"] * given["block"]
            last_item = minimum(k, given["items"], first_item + given["block"])
            number = chunk // given["blocks"]
            items = k.loop(first_item, last_item)
            if self.product.is_bounded:
                panels = each_panel(k, given, number, self.panel, given["words"])
                with items as item, self._tiles(item) as tile, panels as panel:
                    self._tile(panel, tile)
            else:
                with each_panel(k, given, number, self.panel) as panel, items as item, self._tiles(item) as tile:
                    self._tile(panel, tile)
        return k.finish()

    @contextlib.contextmanager
    def _tiles(self, item: Value) -> Iterator[_Tile]:
        """Emit a loop over the tiles of a piece of a line."""
        k, given = self.k, self.given
        line = item // given["pieces"]
        begin = (item - line * given["pieces"]) * given["piece"]
        end = minimum(k, given["width"], begin + given["piece"])
        outer = line // given["size2"]
        places = (outer // given["size1"], outer % given["size1"], line % given["size2"])
        start = k.constant(I64, 0)
        for axis, place in enumerate(places):
            start = start + place * given[f"line_step{axis}"]
        with k.loop(begin, end, given["tile"]) as place:
            rows = minimum(k, end - place, given["tile"])
            yield _Tile(start + place * given["step"], line * given["width"] + place, rows)

    def _tile(self, panel: Panel, tile: _Tile) -> None:
        """A tile's places for a panel of filters."""
        here, sums = panel.image.offset(tile.start), self._bounded_sums if self.product.is_bounded else self._sums
        self.writer.write(panel.column, panel.left, tile.place, tile.rows, lambda height: sums(here, panel, height))

    def _bounded_sums(self, start: Pointer, panel: Panel, height: int) -> dict[tuple[int, int], Value]:
        """The sums of `height` places for a panel of bounded words, by place and vector."""
        k, given, lanes = self.k, self.given, self.lanes
        begin = panel.init.load(0, lanes)
        sums = [Carried(begin) for _ in range(height)]
        steps = [k.opaque(given["step"] * at) if at else 0 for at in range(min(height, _ROWS_OF_A_POINTER))]
        starts = [start.offset(given["step"] * at) for at in range(0, height, _ROWS_OF_A_POINTER)]
        weights = Carried(panel.words.address)
        begins = Carried(k.pointer(given["begins"], U32).offset(panel.number * given["words"]).address)
        ends = k.pointer(given["ends"], I32).offset(panel.number * given["taps"])
        done, ones = Carried(k.constant(I64, 0)), self.product.ones(k)
        with k.loop(0, given["taps"], carried=[*sums, weights, begins, done]) as tap:
            offset, last = self.offsets.load(tap), ends.load(tap).to(I64)
            pointers = [one.offset(offset) for one in starts]
            with k.loop(done.get(), last, carried=[*sums, weights, begins]):
                value = k.pointer(weights.get(), I32).load(0, lanes)
                first = k.pointer(begins.get(), U32).load().to(I64)
                moved = [pointer.offset(first) for pointer in pointers]
                for at, total in enumerate(sums):
                    source = moved[at // _ROWS_OF_A_POINTER].offset(steps[at % _ROWS_OF_A_POINTER])
                    word = source.cast(I32).load(align=1)
                    total.set(self.product.multiply(k, word, value, total.get(), ones))
                    k.keep_order([total.get()])  # LLVM would load the words of all places first, and spill them
                weights.set(k.advance(weights.get(), k.constant(I64, lanes), I32.nbytes))
                begins.set(k.advance(begins.get(), k.constant(I64, 1), U32.nbytes))
            done.set(last)
        return {(at, 0): total.get() for at, total in enumerate(sums)}

    def _sums(self, start: Pointer, panel: Panel, height: int) -> dict[tuple[int, int], Value]:
        """The sums of `height` places for a panel of filters, by place and vector."""
        k, given, lanes, vectors = self.k, self.given, self.lanes, range(self.spec.vectors)
        begin = [panel.init.load(vector * lanes, lanes) for vector in vectors]
        sums = {
            (at, vector): k.variable(I32.vector(lanes), begin[vector]) for at in range(height) for vector in vectors
        }
        # LLVM would chain the sums of steps, and then keep words of several turns because of the chains.
        steps = [k.opaque(given["step"] * at) if at else 0 for at in range(min(height, _ROWS_OF_A_POINTER))]
        starts = [start.offset(given["step"] * at) for at in range(0, height, _ROWS_OF_A_POINTER)]
        pointers = [k.variable(PTR, one.address) for one in starts]
        weights = k.variable(PTR, panel.words.address)
        with k.loop(0, given["taps"]) as tap:
            offset = self.offsets.load(tap)
            for pointer, one in zip(pointers, starts, strict=True):
                pointer.set(one.offset(offset).address)
            with k.loop(0, given["words"]):
                self._word(pointers, steps, weights, sums)
        return {place: variable.get() for place, variable in sums.items()}

    def _word(
        self,
        pointers: Sequence[Variable],
        steps: Sequence[Value | int],
        weights: Variable,
        sums: dict[tuple[int, int], Variable],
    ) -> None:
        """One word of every place."""
        k, lanes, vectors = self.k, self.lanes, range(self.spec.vectors)
        line = k.pointer(weights.get(), I32)
        loaded = [line.load(vector * lanes, lanes) for vector in vectors]
        for at in range(len(sums) // len(vectors)):
            source = k.pointer(pointers[at // _ROWS_OF_A_POINTER].get(), U8)
            word = source.offset(steps[at % _ROWS_OF_A_POINTER]).cast(I32).load(align=1)
            for vector, value in enumerate(loaded):
                total = sums[at, vector]
                total.set(multiply_bytes(k, k.splat(word, lanes), value, total.get()))
        weights.set(line.offset(self.panel).address)
        for pointer in pointers:
            pointer.set(k.advance(pointer.get(), WORD, 1))

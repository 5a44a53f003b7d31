"""Convolution 3x3 of bytes by minimal filtering in whole numbers: the same sums as of all products, to the last bit.

The output is cut into tiles of 4x4, whose inputs, 6x6 bytes of each channel, become numbers of 16 bits at 36 points
(`filtering_transforms`). At each point they are multiplied with the filters transformed likewise, two channels in one
instruction, and the products become the outputs: 36 products for 144. Transformed filters take eight times the bytes of
their taps, more than caches hold. So the taps lie in memory, and a panel's filters are transformed when its turn comes:

    transform the block's tiles to scratch               unless this thread did it for the chunk before
    for a panel of filters of the group:
        for a block of channels, for a part of the points:
            transform the filters to scratch             in the second cache
            for a point, for some rows of tiles:         the micro-kernel of matrix products; sums to scratch
        outputs of the sums, and the epilogue of these   in the second cache

What sums start from is added at one point. All is modulo 2^32; what an output may be is less than that.
"""

from __future__ import annotations

from dataclasses import field, replace

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, minimum
from sardonyx.compiler.llvm.kernels.convolution.tile_results import Sums, TileResults, place_of, products_of_tile
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import TileEpilogue
from sardonyx.compiler.llvm.kernels.products.gemm_micro import Panels, Rows, Tile, multiply_tile, store_tile
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.kernels.quantization.filtering_transforms import (
    INVERSE,
    LINES_OF_PART,
    OUTPUTS,
    PARTS,
    POINT_OF_ONES,
    POINTS,
    POINTS_OF_PART,
    SHIFTS,
    SIZE,
    TAPS,
    along_both,
    of_inputs,
    of_outputs,
    of_taps,
    part_of_taps,
)
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I8, I16, I32, I64, PTR, U8, Type
from sardonyx.light_dataclass import dataclass

PRODUCT = "s16"
# Words in a turn of the micro-kernel's loop.
_UNROLLED = 2
# Bytes of a cache line.
_LINE = 64


@dataclass(frozen=True)
class ByteFilteringSpec:
    """Tiles of the micro-kernel have `rows` tiles by `vectors` vector registers of filters; the epilogue starts from
    sums in int32."""

    rows: int
    vectors: int
    epilogue: TileEpilogue = field(default_factory=TileEpilogue)


def argument_names(spec: ByteFilteringSpec) -> tuple[str, ...]:
    """What the words of the kernel's arguments are, in order. A word is two channels; strides of the image are bytes.

    image, taps, init, stamp      addresses: bytes, with so much padding that all tiles are whole and vectors of the
                                  last channels may be read; signed bytes [panels][words][TAPS * TAPS][panel][2]; what
                                  sums start from, `OF_ONES` times, [panels * panel] in int32; a word that no other step
                                  of this run nor any run before has (`emit_stamp`)
    x_batch, x_row, x_column      strides of the image
    channels, words, filters      channels and their words, and how many filters there are
    out_height, out_width         sizes of the result
    all_tiles, tiles, tiles_across    tiles of all images, of an image, of a line
    tile_block, group, groups     tiles and panels of a chunk, and how many groups there are
    tile_rows, k_block            tiles and words that the micro-kernel takes at once
    v_stride, v_apart             words between transformed tiles, and between those of a point and of the next
    b_apart                       words between the filters of a point and of the next
    o_apart, run                  elements between two lines of outputs, and tiles of a line whose outputs are made at
                                  once
    v_scratch, b_scratch, m_scratch, o_scratch, mark_scratch
                                  byte offsets in scratch of transformed tiles and filters, of sums, of outputs and of
                                  two words
    """
    names = ["image", "taps", "init", "stamp", "x_batch", "x_row", "x_column", "channels", "words", "filters"]
    names += ["out_height", "out_width", "all_tiles", "tiles", "tiles_across", "tile_block", "group", "groups"]
    names += ["tile_rows", "k_block", "v_stride", "v_apart", "b_apart", "o_apart", "run"]
    names += ["v_scratch", "b_scratch", "m_scratch", "o_scratch", "mark_scratch"]
    return (*names, *spec.epilogue.argument_names())


def emit_byte_filtering(target: Target, spec: ByteFilteringSpec) -> str:
    """The kernel of `spec`; its arguments are `argument_names`. Chunks count groups of panels fastest.

    Operands and outputs of the epilogue are matrices of all places of an image by filters; axis 0 of their batch
    strides is that of the images.
    """
    return _ByteFiltering(target, spec).text()


class _ByteFiltering:
    """The kernel while it is written, loop by loop from the outside."""

    def __init__(self, target: Target, spec: ByteFilteringSpec) -> None:
        self.spec, self.product = spec, PRODUCTS[PRODUCT]
        k = self.k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
        words = k.pointer("arguments", I64)
        self.given = given = {name: words.load(index) for index, name in enumerate(argument_names(spec))}
        self.lanes = target.lanes(I32)
        self.panel = self.lanes * spec.vectors
        self.of_tile = products_of_tile(POINTS, self.panel)
        self.image, self.taps = k.pointer(given["image"], U8), k.pointer(given["taps"], I8)
        self.tiles = self._scratch("v_scratch", I16)
        self.filters = self._scratch("b_scratch", I16)
        self.sums = self._scratch("m_scratch", I32)
        self.outputs = self._scratch("o_scratch", I32)
        self.mark = self._scratch("mark_scratch", I64)
        self.results = TileResults(k, OUTPUTS, given, spec.epilogue, I32)

    def _scratch(self, name: str, scalar: Type) -> Pointer:
        return self.k.pointer(self.k.advance(self.k["scratch"], self.given[name], 1), scalar)

    def text(self) -> str:
        k, given = self.k, self.given
        panels = (given["filters"] + (self.panel - 1)) // self.panel
        with k.loop(k["begin"], k["end"]) as number:
            block, first_panel = number // given["groups"], number % given["groups"] * given["group"]
            first_tile = block * given["tile_block"]
            tiles = minimum(k, given["all_tiles"] - first_tile, given["tile_block"])
            self._transform_tiles(block, first_tile, tiles)
            with k.loop(first_panel, minimum(k, first_panel + given["group"], panels)) as panel:
                self._multiply(panel, tiles)
                column = panel * self.panel
                sums = Sums(
                    self.sums, self.of_tile, self.outputs, given["o_apart"], self.panel, first_tile, tiles, column
                )
                self.results.write(sums, self._make_outputs)
        return k.finish()

    def _transform_tiles(self, block: Value, first_tile: Value, tiles: Value) -> None:
        """Transform the block's tiles, unless that was done for the chunk before."""
        k, given = self.k, self.given
        stamp = k.pointer(given["stamp"], I64).load()
        with k.when(self.mark.load(0).differs(stamp) | self.mark.load(1).differs(block)):
            with k.loop(0, tiles) as number:
                tile = place_of(OUTPUTS, given, first_tile + number)
                corner = self.image.offset(tile.image * given["x_batch"])
                corner = corner.offset(tile.y * given["x_row"]).offset(tile.x * given["x_column"])
                self._transform_tile(corner, self.tiles.offset(number * given["v_stride"] * 2))
            self.mark.store(stamp, 0)
            self.mark.store(block, 1)

    def _transform_tile(self, corner: Pointer, target: Pointer) -> None:
        """A tile at all points. What is behind the last channel meets weights of zero."""
        k, given, lanes = self.k, self.given, self.k.target.lanes(I16)
        lines = [corner.offset(given["x_row"] * i) for i in range(SIZE)]
        with k.loop(0, given["channels"], lanes) as channel:
            square = [
                [line.offset(given["x_column"] * j).load(channel, lanes).to(I16) for line in lines] for j in range(SIZE)
            ]
            place = target.offset(channel)
            for value in along_both(of_inputs, square):
                place.store(value)
                place = place.offset(given["v_apart"] * 2)

    def _multiply(self, panel: Value, tiles: Value) -> None:
        """The sums of the block's tiles with a panel of filters, at every point."""
        k, given = self.k, self.given
        taps = self.taps.offset(panel * given["words"] * (TAPS * TAPS * self.panel * 2))
        init = k.pointer(given["init"], I32).offset(panel * self.panel)
        with k.loop(0, given["words"], given["k_block"]) as word:
            words = minimum(k, given["words"] - word, given["k_block"])
            with k.loop(0, PARTS) as part:
                for case in k.choose(part, range(PARTS)):
                    self._transform_filters(case, taps, word, words)
                with k.loop(0, POINTS_OF_PART) as place:
                    point = part * POINTS_OF_PART + place
                    self._ask(taps, word, words, point)
                    start = k.select(point.equals(POINT_OF_ONES), init.address, k.zeros(I32, self.panel).address)
                    filters = self.filters.cast(I32).offset(place * given["b_apart"])
                    self._multiply_point(point, filters, word, words, tiles, k.pointer(start, I32))

    def _transform_filters(self, part: int, taps: Pointer, first: Value, words: Value) -> None:
        """The filters of some words at a part of the points, [points][words][panel]."""
        k, lanes = self.k, self.k.target.lanes(I16)
        wide = self.panel * 2
        with k.loop(0, words) as word, k.loop(0, wide, lanes) as column:
            line = taps.offset((first + word) * (TAPS * TAPS * wide)).offset(column)
            square = [[line.load((i * TAPS + j) * wide, lanes).to(I16) for i in range(TAPS)] for j in range(TAPS)]
            columns = [part_of_taps(part, each) for each in square]
            place = self.filters.offset(word * wide).offset(column)
            for i in range(LINES_OF_PART):
                for value in of_taps([each[i] for each in columns]):
                    place.store(value)
                    place = place.offset(self.given["b_apart"] * 2)

    def _ask(self, taps: Pointer, first: Value, words: Value, point: Value) -> None:
        """Ask for a part of the taps of the same words in the next panel: nothing is multiplied while they are read."""
        of_word = TAPS * TAPS * self.panel * 2
        of_point = of_word // POINTS
        ahead = taps.offset((self.given["words"] + first) * of_word + words * of_point * point)
        with self.k.loop(0, words * of_point, _LINE) as place:
            ahead.offset(place).prefetch(level=2)

    def _multiply_point(
        self, point: Value, filters: Pointer, first: Value, words: Value, tiles: Value, start: Pointer
    ) -> None:
        """The sums of the tiles with the filters of some words at a point, which begin with those at `start`."""
        k, given = self.k, self.given
        apart = k.constant(I64, self.of_tile)
        transformed = self.tiles.cast(I32).offset(point * given["v_apart"] + first)
        sums = self.sums.offset(point * self.panel)
        shared = Rows(transformed, given["v_stride"], True).sharing(k)
        b = Panels((filters,), self.spec.vectors, (None,) * self.spec.vectors, self.panel)
        is_first = first.equals(0)
        with k.loop(0, tiles, given["tile_rows"]) as row:
            a = replace(shared, start=transformed.offset(row * given["v_stride"]))
            place = Tile(sums.offset(row * apart), apart, self.panel)
            begin = k.select(is_first, start.address, place.start.address)
            before = Tile(k.pointer(begin, I32), k.select(is_first, k.constant(I64, 0), apart), self.panel)
            height = minimum(k, tiles - row, given["tile_rows"])
            for case in k.choose(height, range(1, self.spec.rows + 1)):
                store_tile(place, multiply_tile(k, self.product, a, b, case, words, _UNROLLED, before))

    def _make_outputs(self, run: Sums) -> None:
        """The outputs of the tiles of a run, in int32."""
        k, lanes = self.k, self.lanes
        with k.loop(0, run.tiles) as tile, k.loop(0, run.panel, lanes) as column:
            start = run.products.offset(tile * run.tile_products + column)
            square = [[start.load((i * SIZE + j) * run.panel, lanes) for i in range(SIZE)] for j in range(SIZE)]
            line = self.results.place(run, tile, column)
            for number, value in enumerate(along_both(of_outputs, square)):
                i, j = divmod(number, OUTPUTS)
                output = (value * INVERSE) >> (SHIFTS[i] + SHIFTS[j])
                line.offset(run.outputs_apart * i).store(output, j * run.panel)

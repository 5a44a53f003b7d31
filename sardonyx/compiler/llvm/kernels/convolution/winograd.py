"""Convolution 3x3 of stride 1 or 2 by Winograd's minimal filtering, with an epilogue; the image lies channels-last.

The output is cut into tiles of m x m, m = 4 or 2. A tile of the input, overlapping its neighbours, becomes a number of
vectors over the channels, one at each point of the transform; at each point the tiles are the rows of a matrix product
with the filters transformed likewise, and the products become the m^2 outputs of the tile (A. Lavin, S. Gray, "Fast
algorithms for convolutional neural networks", 2015; the transforms: `winograd_transforms`). For m = 4 there are 36
products for 144 with stride 1, 81 with stride 2; for m = 2 there are 16 or 25 for 36.

The three stages are fused, so that nothing but input, filters and results goes through memory. A chunk is a block of
tiles and a group of panels of filters:

    transform the block's tiles to scratch               unless this thread did it for the chunk before
    for a panel of filters of the group:
        for a point, for a block of channels:            the panel's filters are one stream through all points
            for some rows of tiles:                      the micro-kernel of matrix products; sums to scratch
        outputs of the sums, and the epilogue of these   in the second cache

That the tiles are there already is told by the stamp of the run beside them. The sum over channels has one order
whatever the blocks, so that results have the same bits for every cut into chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, minimum
from sardonyx.compiler.llvm.kernels.convolution.tile_results import Sums, place_of, products_of_tile
from sardonyx.compiler.llvm.kernels.convolution.winograd_ahead import Requests
from sardonyx.compiler.llvm.kernels.convolution.winograd_input import Pixels
from sardonyx.compiler.llvm.kernels.convolution.winograd_output import OutputWriter
from sardonyx.compiler.llvm.kernels.convolution.winograd_parts import TilesOfParts
from sardonyx.compiler.llvm.kernels.convolution.winograd_taps import TapProducts
from sardonyx.compiler.llvm.kernels.convolution.winograd_transforms import SCHEMES
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import TileEpilogue
from sardonyx.compiler.llvm.kernels.products.gemm_micro import Panels, Request, Rows, Tile, multiply_tile, store_tile
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.kernels.products.gemm_tiles import configure, release
from sardonyx.compiler.llvm.library import KERNEL
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32, I32, I64, PTR, Type
from sardonyx.light_dataclass import dataclass

# Elements of the filters between those in use and those that are asked for, at least.
_LEAST_AHEAD = 4096
# Bytes of a cache line.
_LINE = 64


@dataclass(frozen=True)
class WinogradSpec:
    """The structure of a kernel; its ``repr`` identifies the compiled code.

    `stride` is the distance of windows along both dimensions, 1 or 2, and tiles have `outputs` x `outputs` outputs: a
    scheme of `winograd_transforms.SCHEMES`. `stored` names the product whose types image and filters have in memory;
    all is computed in float32, and multiplied by vectors unless that product is in tiles (`winograd_parts`). The
    micro-kernel has `rows` x `vectors` registers. With `shares_requests` it takes several turns for the tiles of a
    block, which share in asking for filters ahead of time. With `from_taps` filters come as they are, and up to
    `TILES_AT_ONCE` tiles of a block are multiplied by `winograd_taps`. With `asks_for_tiles` the place of a transformed
    tile is asked for while the one before it is written. `flushes`: what is rounded to bfloat16 may lose denormal
    numbers. `is_ragged`: channels are no multiple of `CHANNELS`.
    """

    stride: int = 1
    outputs: int = 4
    stored: str = "f32"
    rows: int = 12
    vectors: int = 2
    shares_requests: bool = True
    from_taps: bool = False
    asks_for_tiles: bool = False
    flushes: bool = False
    is_ragged: bool = True
    epilogue: TileEpilogue = field(default_factory=TileEpilogue)


def argument_names(spec: WinogradSpec) -> tuple[str, ...]:
    """What the words of the kernel's arguments are, in order; strides and sizes count elements.

    x, packed, weights, stamp     addresses of the image, of the transformed filters (`emit_winograd_filters`), of the
                                  filters themselves, and of a word that no other step of this run nor any run before
                                  has (`emit_stamp`)
    x_batch, x_row, x_column      strides of the image
    channels, filters             how many there are
    height, width, top, left      sizes of the image, and zeros above and left of it
    out_height, out_width         sizes of the result
    all_tiles, tiles, tiles_across    tiles of all images, of an image, of a line
    tile_block, group, groups     tiles and panels of a chunk, and how many groups there are
    tile_rows, k_block            tiles and channels that the micro-kernel takes at once
    v_stride, v_apart             elements between transformed tiles, and between those of a point and of the next; in
                                  tiles of AMX these are words, and sixteen tiles come together
    o_apart, run                  elements between two lines of outputs, and tiles of a line whose outputs are made at
                                  once
    v_scratch, m_scratch, o_scratch, mark_scratch
                                  byte offsets in scratch of these and of two words; a pixel of zeros lies at 0
    x_ahead, y_ahead              rows of tiles that are asked for at each point: of the image for the next block, and
                                  of what the epilogue reads and writes; 0 where caches hold them
    """
    names = ["x", "packed", "weights", "stamp", "x_batch", "x_row", "x_column", "channels", "filters"]
    names += ["height", "width", "top", "left", "out_height", "out_width", "all_tiles", "tiles", "tiles_across"]
    names += ["tile_block", "group", "groups", "tile_rows", "k_block", "v_stride", "v_apart", "o_apart", "run"]
    names += ["v_scratch", "m_scratch", "o_scratch", "mark_scratch", "x_ahead", "y_ahead"]
    return (*names, *spec.epilogue.argument_names())


def emit_winograd(target: Target, spec: WinogradSpec) -> str:
    """The kernel of `spec`; its arguments are `argument_names`. Chunks count groups of panels fastest.

    Operands and outputs of the epilogue are matrices of all places of an image by filters; axis 0 of their batch
    strides is that of the images.
    """
    return _Winograd(target, spec).text()


class _Winograd:
    """The kernel while it is written, loop by loop from the outside."""

    def __init__(self, target: Target, spec: WinogradSpec) -> None:
        self.spec = spec
        self.scheme = SCHEMES[spec.stride, spec.outputs]
        k = self.k = Function(KERNEL, target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
        k.flushes = spec.flushes
        self.panel = target.lanes(F32) * spec.vectors
        self.tile_products = products_of_tile(self.scheme.points, self.panel)
        self.in_tiles = PRODUCTS[spec.stored].in_tiles
        words = k.pointer("arguments", I64)
        self.given = given = {name: words.load(index) for index, name in enumerate(argument_names(spec))}
        stored = PRODUCTS[spec.stored].stored_a
        zeros = k.pointer("scratch", stored)
        self.pixels = Pixels(
            k, self.scheme, given, stored, zeros, asks_for_tiles=spec.asks_for_tiles, is_ragged=spec.is_ragged
        )
        self.writer = OutputWriter(k, self.scheme, given, spec.epilogue, self.pixels)
        self.filter_numbers = k.table(I64, self.scheme.filter_numbers)
        self.transformed = self._scratch("v_scratch", F32)
        self.parts = TilesOfParts(k, given, self._scratch("v_scratch", I32))
        self.products = self._scratch("m_scratch", F32)
        self.outputs = self._scratch("o_scratch", F32)
        self.mark = self._scratch("mark_scratch", I64)

    def _scratch(self, name: str, scalar: Type) -> Pointer:
        return self.k.pointer(self.k.advance(self.k["scratch"], self.given[name], 1), scalar)

    def text(self) -> str:
        k, given, spec = self.k, self.given, self.spec
        panels = (given["filters"] + (self.panel - 1)) // self.panel
        if self.in_tiles:
            configure(k)
        from_taps = TapProducts(k, given, self.transformed, self.products, self.tile_products, self.panel)
        with k.loop(k["begin"], k["end"]) as number:
            block, first_panel = number // given["groups"], number % given["groups"] * given["group"]
            first_tile = block * given["tile_block"]
            tiles = minimum(k, given["all_tiles"] - first_tile, given["tile_block"])
            self._transform_tiles(block, first_tile, tiles)
            end = first_tile + tiles
            last_of_block = first_panel + given["group"] >= panels
            following = k.select(last_of_block, minimum(k, given["all_tiles"] - end, given["tile_block"]), 0)
            inputs = Requests(k, self.pixels.squares(), end, end + following)
            with k.loop(first_panel, minimum(k, first_panel + given["group"], panels)) as panel:
                results = [
                    Requests(k, squares, first_tile, end)
                    for squares in self.writer.squares(panel * self.panel, self.panel)
                ]
                if spec.from_taps:
                    from_taps.multiply(panel)
                else:
                    self._multiply(panel, tiles, inputs, results)
                self.writer.write(
                    Sums(
                        self.products,
                        self.tile_products,
                        self.outputs,
                        given["o_apart"],
                        self.panel,
                        first_tile,
                        tiles,
                        panel * self.panel,
                    )
                )
        if self.in_tiles:
            release(k)
        return k.finish()

    def _transform_tiles(self, block: Value, first_tile: Value, tiles: Value) -> None:
        """Transform the block's tiles, unless that was done for the chunk before."""
        k, given = self.k, self.given
        stamp = k.pointer(given["stamp"], I64).load()
        with k.when(self.mark.load(0).differs(stamp) | self.mark.load(1).differs(block)):
            self.pixels.clear_zeros()
            with k.loop(0, tiles) as tile:
                self.pixels.enter(place_of(self.scheme.outputs, given, first_tile + tile))
                if self.in_tiles:
                    self.pixels.transform_to_parts(self.parts, tile)
                else:
                    self.pixels.transform(self.transformed.offset(tile * given["v_stride"]), given["v_apart"])
            self.mark.store(stamp, 0)
            self.mark.store(block, 1)

    def _multiply(self, panel: Value, tiles: Value, inputs: Requests, results: Sequence[Requests]) -> None:
        """The products of the block's tiles with a panel of filters, at every point; meanwhile some requests."""
        k, given = self.k, self.given
        channels, scheme = given["channels"], self.scheme
        product = PRODUCTS["f32 tiles" if self.in_tiles else "f32"]
        of_filter = product.words_before(product.padded(channels)) * self.panel
        stream = k.pointer(given["packed"], product.word).offset(panel * of_filter * scheme.filters)
        with k.loop(0, scheme.points) as point:
            inputs.ask(given["x_ahead"])
            for requests in results:
                requests.ask(given["y_ahead"])
            number = point if scheme.filters == scheme.points else self.filter_numbers.load(point)
            filters = stream.offset(number * of_filter)
            products = self.products.offset(point * self.panel)
            if self.in_tiles:
                self.parts.multiply(point, filters, tiles, products, self.tile_products, self.panel)
            else:
                self._multiply_point(point, filters, tiles, products)

    def _multiply_point(self, point: Value, filters: Pointer, tiles: Value, products: Pointer) -> None:
        """The products of the tiles with a panel of filters at a point, by vectors."""
        k, given = self.k, self.given
        channels, apart = given["channels"], k.constant(I64, self.tile_products)
        rows = self.transformed.offset(point * given["v_apart"])
        with k.loop(0, channels, given["k_block"]) as channel:
            elements = minimum(k, channels - channel, given["k_block"])
            b = filters.offset(channel * self.panel)
            shared = Rows(rows.offset(channel), given["v_stride"], True).sharing(k)
            with k.loop(0, tiles, given["tile_rows"]) as row:
                a = replace(shared, start=shared.start.offset(row * given["v_stride"]))
                ahead = (self._request(b, elements, row, tiles),)
                panels = Panels((b,), self.spec.vectors, (None,) * self.spec.vectors, self.panel, requests=ahead)
                place = Tile(products.offset(row * apart), apart, self.panel)
                before = place.unless(k, channel.equals(0))
                height = minimum(k, tiles - row, given["tile_rows"])
                for case in k.choose(height, range(1, self.spec.rows + 1)):
                    values = multiply_tile(k, PRODUCTS["f32"], a, panels, case, elements, 1, before)
                    store_tile(place, values)

    def _request(self, b: Pointer, elements: Value, row: Value, tiles: Value) -> Request:
        """What is asked for while the tiles from `row` on are multiplied: the filters behind those in use.

        A core waits for few lines at once, and asks in vain for more: turns share in it evenly. Of several turns each
        step asks for less than a line, for most lines more than once.
        """
        k, step_bytes = self.k, self.panel * F32.nbytes
        ahead = b.offset(k.larger(elements * self.panel, _LEAST_AHEAD))
        if not self.spec.shares_requests:
            return Request(ahead, max(1, step_bytes // _LINE))
        tile_rows = self.given["tile_rows"]
        turns = (tiles + (tile_rows - 1)) // tile_rows
        apart = (turns + (step_bytes - 1)) // turns
        start = k.advance(ahead.address, row // tile_rows * elements * apart, 1)
        return Request(k.pointer(start, F32), 1, apart)

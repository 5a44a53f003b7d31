"""Products of few tiles with filters that are transformed while they are multiplied: tiles of 4x4 outputs, stride 1.

Transformed filters are four times as many bytes as their taps. Where few tiles share them, a core waits for memory
longer than it takes to transform the taps of a vector of filters, channel by channel, in registers: for a column of the
points, three combinations of the taps' columns; for each point of the column, one of these; and that is multiplied with
all tiles.
"""

from __future__ import annotations

from collections.abc import Mapping

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, Variable, minimum
from sardonyx.compiler.llvm.kernels.convolution.winograd_transforms import SCHEMES, TAPS
from sardonyx.compiler.llvm.types import F32, PTR

# Tiles that are multiplied at once: with the points of a column, as many sums as 32 registers hold beside the rest.
TILES_AT_ONCE = 4

# The scheme of which all this is.
TAPS_SCHEME = SCHEMES[1, 4]

_SQUARE = TAPS * TAPS
# Elements of a cache line.
_LINE = 64 // F32.nbytes


class TapProducts:
    """The products of `TILES_AT_ONCE` tiles, which lie in `tiles` as `winograd.argument_names` says.

    `taps` are filters as they are: [vectors of filters][channels][taps][lanes] (`emit_winograd_filters`). The products
    go to `products`, those of two tiles `tile_products` elements apart, those of two points `panel` elements.
    """

    def __init__(
        self,
        k: Function,
        given: Mapping[str, Value],
        tiles: Pointer,
        products: Pointer,
        tile_products: int,
        panel: int,
    ) -> None:
        self.k, self.given, self.tiles, self.products = k, given, tiles, products
        self.tile_products, self.panel = tile_products, panel
        self.along = TAPS_SCHEME.along[0]
        self.lanes = k.target.lanes(F32)
        self.taps = k.pointer(given["packed"], F32)

    def multiply(self, panel: Value) -> None:
        """The products with a panel of filters, at every point."""
        k, given, lanes = self.k, self.given, self.lanes
        channels, most = given["channels"], given["k_block"]
        with k.loop(0, self.panel, lanes) as column:
            stream = self.taps.offset((panel * self.panel + column) * channels * _SQUARE)
            with k.loop(0, channels, most) as channel:
                steps = minimum(k, channels - channel, most)
                # Each of the columns of points asks for a part of the next channels' taps.
                ahead = k.variable(PTR, stream.offset((channel + steps) * (_SQUARE * lanes)).address)
                for points in range(TAPS_SCHEME.size):
                    self._column(points, stream.offset(channel * (_SQUARE * lanes)), channel, steps, column, ahead)

    def _column(
        self, points: int, stream: Pointer, channel: Value, steps: Value, column: Value, ahead: Variable
    ) -> None:
        """The products at the points of a column, of `steps` channels from `channel` on."""
        k, given, size = self.k, self.given, TAPS_SCHEME.size
        places = [
            [
                self.products.offset(tile * self.tile_products + (row * size + points) * self.panel).offset(column)
                for tile in range(TILES_AT_ONCE)
            ]
            for row in range(size)
        ]
        sums = [[k.variable(F32.vector(self.lanes), 0) for _ in line] for line in places]
        with k.when(channel > 0):
            for line, totals in zip(places, sums, strict=True):
                for place, total in zip(line, totals, strict=True):
                    total.set(place.load(0, self.lanes))
        first = self.tiles.offset(given["v_apart"] * points + channel)
        pixels = [k.variable(PTR, first.offset(given["v_stride"] * tile).address) for tile in range(TILES_AT_ONCE)]
        rows = [k.opaque(given["v_apart"] * (size * row)) if row else 0 for row in range(size)]
        taps = k.variable(PTR, stream.address)
        with k.loop(0, steps):
            self._request(points, ahead)
            filters = self._transformed(points, k.pointer(taps.get(), F32))
            for row, (value, totals) in enumerate(zip(filters, sums, strict=True)):
                for pixel, total in zip(pixels, totals, strict=True):
                    word = k.pointer(pixel.get(), F32).offset(rows[row]).load(0)
                    total.set(k.fma(k.splat(word, self.lanes), value, total.get()))
            for pointer, elements in ((taps, _SQUARE * self.lanes), *((pixel, 1) for pixel in pixels)):
                pointer.set(k.pointer(pointer.get(), F32).offset(elements).address)
        is_last = (channel + steps).equals(given["channels"])
        for row, (line, totals) in enumerate(zip(places, sums, strict=True)):
            scale = float(self.along.scale(row) * self.along.scale(points))
            factor = k.splat(k.select(is_last, k.constant(F32, scale), k.constant(F32, 1.0)), self.lanes)
            for place, total in zip(line, totals, strict=True):
                place.store(total.get() * factor)

    def _request(self, points: int, ahead: Variable) -> None:
        """Ask for a part of a channel's taps: more of them where the points, zero and infinity, take few taps."""
        k, size = self.k, TAPS_SCHEME.size
        place = k.pointer(ahead.get(), F32)
        elements = (_SQUARE * self.lanes - (size - 2) * _LINE) // 2 if points in (0, size - 1) else _LINE
        for line in range(0, elements, _LINE):
            place.offset(line).prefetch(level=2)
        ahead.set(place.offset(elements).address)

    def _transformed(self, points: int, taps: Pointer) -> list[Value]:
        """The filters at the points of a column, from a channel's taps, but for their scales."""
        k, along = self.k, self.along
        lines = [
            along.tap_at(k, [taps.offset((i * TAPS + j) * self.lanes).load(0, self.lanes) for j in range(TAPS)], points)
            for i in range(TAPS)
        ]
        return along.taps_at_all(k, lines)

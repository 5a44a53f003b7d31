"""Tiles of the input of a convolution by Winograd's algorithm: where their pixels lie, and their transform."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sardonyx.compiler.llvm.builder import Carried, Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.convolution.tile_results import TilePlace, place_of
from sardonyx.compiler.llvm.kernels.convolution.winograd_ahead import Squares
from sardonyx.compiler.llvm.kernels.convolution.winograd_parts import CHANNELS, TilesOfParts
from sardonyx.compiler.llvm.kernels.convolution.winograd_transforms import Scheme
from sardonyx.compiler.llvm.narrow_floats import widened
from sardonyx.compiler.llvm.types import F32, I64, Type


class Pixels:
    """The addresses of the pixels of one tile of the input, in rows; those of the padding lie in a row of zeros."""

    def __init__(
        self,
        k: Function,
        scheme: Scheme,
        given: Mapping[str, Value],
        stored: Type,
        zeros: Pointer,
        *,
        asks_for_tiles: bool = False,
        is_ragged: bool = True,
    ) -> None:
        """`is_ragged`: the channels may end within a vector, or within those of a row of a tile of AMX."""
        self.is_ragged = is_ragged
        self.k, self.scheme, self.given, self.stored, self.zeros = k, scheme, given, stored, zeros
        self.asks_for_tiles = asks_for_tiles
        self.table = k.stack(I64, scheme.points)
        self.across = scheme.outputs * scheme.stride  # columns from a tile to the next one of the line

    def clear_zeros(self) -> None:
        """Write the row of zeros, as long as a pixel."""
        lanes = self.k.target.lanes(F32)
        with self.k.loop(0, self.given["channels"], lanes) as channel:
            self.zeros.store(self.k.constant(self.stored.vector(lanes), 0), channel)

    def enter(self, tile: TilePlace) -> None:
        """Let the table be that of a tile."""
        k, given, scheme = self.k, self.given, self.scheme
        y, x = self._first(tile)
        start = self._corner(tile, y, x)
        inside = (y >= 0) & (y + scheme.size <= given["height"]) & (x >= 0) & (x + scheme.size <= given["width"])
        with k.when(inside):
            self._enter(start, None, ())
        with k.otherwise(inside):
            columns = [(x + j >= 0) & (x + j < given["width"]) for j in range(scheme.size)]
            self._enter(start, y, columns)

    def squares(self) -> Squares:
        """What is asked for ahead of time: the pixels of tiles, without those of the next tile of the line."""
        given, scheme = self.given, self.scheme

        def corner(number: Value) -> Pointer:
            tile = place_of(scheme.outputs, given, number)
            return self._corner(tile, *self._first(tile))

        nbytes = given["channels"] * self.stored.nbytes
        return Squares(corner, self.stored, scheme.size, self.across, given["x_row"], given["x_column"], nbytes)

    def _first(self, tile: TilePlace) -> tuple[Value, Value]:
        """The line and the column of the image in which a tile begins: before the first ones where there is padding."""
        stride = self.scheme.stride
        return tile.y * stride - self.given["top"], tile.x * stride - self.given["left"]

    def _corner(self, tile: TilePlace, y: Value, x: Value) -> Pointer:
        given = self.given
        start = self.k.pointer(given["x"], self.stored).offset(tile.image * given["x_batch"])
        return start.offset(y * given["x_row"]).offset(x * given["x_column"])

    def _enter(self, start: Pointer, first: Value | None, columns: Sequence[Value]) -> None:
        """Write the addresses of the pixels from `start` on; where the `first` row is given, those of the zeros for
        rows that are not in the image and `columns` that are not there."""
        k, given, size = self.k, self.given, self.scheme.size
        zeros, line = _word(k, self.zeros), Carried(start.address)
        with k.loop(0, size, 1, [line]) as i:
            place, table = k.pointer(line.get(), self.stored), self.table.offset(i * size)
            line.set(place.offset(given["x_row"]).address)
            is_there = None if first is None else (first + i >= 0) & (first + i < given["height"])
            for j in range(size):
                address = _word(k, place)
                if is_there is not None:
                    address = k.select(is_there & columns[j], address, zeros)
                table.store(address, j)
                place = place.offset(given["x_column"])

    def pixel(self, number: Value | int) -> Pointer:
        """The first channel of a pixel, by its number in the tile."""
        return self.k.pointer(self.table.load(number), self.stored)

    def transform(self, target: Pointer, apart: Value) -> None:
        """Write the tile at every point, in the order of the products: all channels, `apart` elements behind the last.

        The row of a point is written in whole vectors, with zeros behind the last channel. Meanwhile the next tile of
        the line is asked for; with `asks_for_tiles` also where that will be written.
        """
        k, channels, lanes = self.k, self.given["channels"], self.k.target.lanes(F32)

        def write(channel: Value, mask: Value | None) -> None:
            place = target.offset(channel)
            for value in self._transformed(channel, mask):
                place.store(value)
                if self.asks_for_tiles:
                    place.prefetch(self.given["v_stride"])
                place = place.offset(apart)

        whole = channels - channels % lanes
        with k.loop(0, whole, lanes) as channel:
            write(channel, None)
        if self.is_ragged:
            with k.when(whole < channels):
                write(whole, k.lanes_below(channels - whole, lanes))

    def transform_to_parts(self, tiles: TilesOfParts, number: Value) -> None:
        """The same for the tile of this number in tiles of AMX, with zeros up to the last one's end."""
        k, channels, lanes = self.k, self.given["channels"], self.k.target.lanes(F32)
        row = tiles.row(number)

        def write(channel: Value, *, masked: bool) -> None:
            place, vectors = tiles.place(row, channel), []
            for first in range(0, CHANNELS, lanes):
                mask = k.lanes_below(channels - channel - first, lanes) if masked else None
                vectors.append(self._transformed(channel + first, mask))
            for values in zip(*vectors, strict=True):
                tiles.store(place, values)
                place = place.offset(self.given["v_apart"])

        whole = channels - channels % CHANNELS
        with k.loop(0, whole, CHANNELS) as channel:
            write(channel, masked=False)
        if self.is_ragged:
            with k.when(whole < channels):
                write(whole, masked=True)

    def _transformed(self, channel: Value, mask: Value | None) -> Iterator[Value]:
        """A vector of channels at the points; asks for the next tile's."""
        size, lanes = self.scheme.size, self.k.target.lanes(F32)
        following = channel + self.given["x_column"] * self.across

        def pixel(i: int, j: int) -> Value:
            place = self.pixel(i * size + j)
            if j >= size - self.across:  # those before are pixels of both tiles
                place.prefetch(following)
            return widened(place.load(channel, lanes, mask), F32)

        return self.scheme.of_inputs(self.k, pixel)


def _word(k: Function, pointer: Pointer) -> Value:
    """An address as an integer."""
    return k.emit(I64, f"ptrtoint ptr {pointer.address.name} to i64")

"""Tiles of the input of a convolution by Winograd's algorithm: where their pixels lie, and their transform."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.convolution.winograd_transforms import Transforms, along_both
from sardonyx.compiler.llvm.narrow_floats import widened
from sardonyx.compiler.llvm.types import F32, I64, Type


@dataclass(frozen=True)
class TilePlace:
    """A tile: its image, its number within the line of tiles, and its first line and column of the output."""

    image: Value
    across: Value
    y: Value
    x: Value


def place_of(transforms: Transforms, given: Mapping[str, Value], number: Value) -> TilePlace:
    """The tile of this number; tiles count those of a line fastest, then lines, then images."""
    image, rest = number // given["tiles"], number % given["tiles"]
    line, across = rest // given["tiles_across"], rest % given["tiles_across"]
    return TilePlace(image, across, line * transforms.outputs, across * transforms.outputs)


class Pixels:
    """The addresses of the pixels of one tile of the input, in rows; those of the padding lie in a row of zeros."""

    def __init__(
        self, k: Function, transforms: Transforms, given: Mapping[str, Value], stored: Type, zeros: Pointer
    ) -> None:
        self.k, self.transforms, self.given, self.stored, self.zeros = k, transforms, given, stored, zeros
        self.table = k.stack(I64, transforms.size**2)

    def clear_zeros(self) -> None:
        """Write the row of zeros, as long as a pixel."""
        lanes = self.k.target.lanes(F32)
        with self.k.loop(0, self.given["channels"], lanes) as channel:
            self.zeros.store(self.k.constant(self.stored.vector(lanes), 0), channel)

    def enter(self, tile: TilePlace) -> None:
        """Let the table be that of a tile."""
        k, given, size = self.k, self.given, self.transforms.size
        image = k.pointer(given["x"], self.stored).offset(tile.image * given["x_batch"])
        zeros = _word(k, self.zeros)
        first_x = tile.x - given["left"]
        columns = []
        for j in range(size):
            x = first_x + j
            columns.append((x * given["x_column"], (x >= 0) & (x < given["width"])))
        for i in range(size):
            y = tile.y - given["top"] + i
            row, row_there = image.offset(y * given["x_row"]), (y >= 0) & (y < given["height"])
            for j, (step, column_there) in enumerate(columns):
                address = k.select(row_there & column_there, _word(k, row.offset(step)), zeros)
                self.table.store(address, i * size + j)

    def pixel(self, number: Value | int) -> Pointer:
        """The first channel of a pixel, by its number in the tile."""
        return self.k.pointer(self.table.load(number), self.stored)

    def transform(self, target: Pointer, apart: Value) -> None:
        """Write the transform of the tile, all channels of one point after `apart` elements of the point before.

        The row of a point is written in whole vectors, with zeros behind the last channel.
        """
        k, channels, lanes = self.k, self.given["channels"], self.k.target.lanes(F32)
        whole = channels - channels % lanes
        with k.loop(0, whole, lanes) as channel:
            self._transform_vector(channel, None, target, apart)
        with k.when(whole < channels):
            self._transform_vector(whole, k.lanes_below(channels - whole, lanes), target, apart)

    def _transform_vector(self, channel: Value, mask: Value | None, target: Pointer, apart: Value) -> None:
        k, size, lanes = self.k, self.transforms.size, self.k.target.lanes(F32)
        pixels = [
            [widened(self.pixel(i * size + j).load(channel, lanes, mask), F32) for j in range(size)]
            for i in range(size)
        ]
        place = target.offset(channel)
        for row in along_both(lambda line: self.transforms.of_inputs(k, line), pixels):
            for value in row:
                place.store(value)
                place = place.offset(apart)


def _word(k: Function, pointer: Pointer) -> Value:
    """An address as an integer."""
    return k.emit(I64, f"ptrtoint ptr {pointer.address.name} to i64")

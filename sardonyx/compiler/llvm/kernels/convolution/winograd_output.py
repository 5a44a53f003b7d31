"""From products at the points to the results of a convolution by Winograd's algorithm.

The transforms would carry a number that is not finite to other pixels, and turn infinity into NaN: tiles in whose
outputs such a number turns up are computed again, directly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.convolution.tile_results import Sums, TileResults, place_of
from sardonyx.compiler.llvm.kernels.convolution.winograd_ahead import Squares
from sardonyx.compiler.llvm.kernels.convolution.winograd_input import Pixels
from sardonyx.compiler.llvm.kernels.convolution.winograd_transforms import TAPS, Scheme
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import TileEpilogue
from sardonyx.compiler.llvm.narrow_floats import widened
from sardonyx.compiler.llvm.types import F32, I64, Type


class OutputWriter:
    """Writes the results of blocks of tiles."""

    def __init__(
        self, k: Function, scheme: Scheme, given: Mapping[str, Value], epilogue: TileEpilogue, pixels: Pixels
    ) -> None:
        self.k, self.scheme, self.given, self.epilogue, self.pixels = k, scheme, given, epilogue, pixels
        self.results = TileResults(k, scheme.outputs, given, epilogue, F32)
        self.lanes = self.results.lanes

    def write(self, sums: Sums) -> None:
        """The outputs of a block, and the epilogue of them."""

        def make(run: Sums) -> None:
            strange = self._outputs(run)
            with self.k.when(strange):
                self._again(run)

        self.results.write(sums, make)

    def squares(self, first_filter: Value, panel: int) -> Iterator[Squares]:
        """What is asked for ahead of time: the places of tiles in the outputs, and in operands as large."""
        k, given, epilogue = self.k, self.given, self.epilogue
        types = {f"operand{i}": one.type for i, one in enumerate(epilogue.operands) if one.addressing == "full"}
        types |= {f"output{i}": epilogue.output_type(i, F32) for i in range(max(1, len(epilogue.outputs)))}
        for name, scalar in types.items():
            step, outputs = given[f"{name}_stride"], self.scheme.outputs

            def corner(number: Value, name: str = name, step: Value = step, scalar: Type = scalar) -> Pointer:
                tile = place_of(self.scheme.outputs, given, number)
                start = k.pointer(given[name], scalar).offset(tile.image * given[f"{name}_batch0"])
                return start.offset((tile.y * given["out_width"] + tile.x) * step).offset(first_filter)

            nbytes = k.constant(I64, panel * scalar.nbytes)
            yield Squares(corner, scalar, outputs, outputs, given["out_width"] * step, step, nbytes)

    def _outputs(self, sums: Sums) -> Value:
        """Interpolate the outputs of all tiles; whether one of them is not finite."""
        k = self.k
        zeros = k.constant(F32.vector(self.lanes), 0)
        seen = k.variable(zeros.type, 0)
        with k.loop(0, sums.tiles) as tile, k.loop(0, sums.panel, self.lanes) as column:
            start = sums.products.offset(tile * sums.tile_products + column)
            total: Value | None = None
            line = self.results.place(sums, tile, column)
            for row in self.scheme.of_outputs(k, self._products(start, sums.panel)):
                for x, value in enumerate(row):
                    line.store(value, x * sums.panel)
                    total = value if total is None else total + value
                line = line.offset(sums.outputs_apart)
            assert total is not None
            seen.set(k.fma(total, zeros, seen.get()))
        found = k.horizontal("add", seen.get())
        return found.differs(found)

    def _products(self, start: Pointer, panel: int) -> Iterator[Value]:
        """A vector of the products of a tile, loaded one by one."""
        for point in range(self.scheme.points):
            yield start.load(point * panel, self.lanes)

    def _again(self, sums: Sums) -> None:
        """The outputs as sums of products with the filters themselves, read where they lie: [filters, channels, 3, 3].

        One vector of filters serves the outputs of a line of a tile.
        """
        k, outputs, channels, stride = self.k, self.scheme.outputs, self.given["channels"], self.scheme.stride
        one_filter = channels * (TAPS * TAPS)
        places = k.iota(I64, self.lanes) * one_filter
        weights = k.pointer(self.given["weights"], self.pixels.stored)
        totals = [k.variable(F32.vector(self.lanes)) for _ in range(outputs)]
        with k.loop(0, sums.tiles) as tile:
            self.pixels.enter(place_of(self.scheme.outputs, self.given, sums.first_tile + tile))
            with k.loop(0, sums.panel, self.lanes) as column, k.loop(0, outputs) as y:
                first = sums.first_filter + column
                mask = k.lanes_below(self.given["filters"] - first, self.lanes)
                for total in totals:
                    total.set(0.0)
                with k.loop(0, TAPS) as tap_y, k.loop(0, TAPS) as tap_x:
                    corner, tap = (tap_y + y * stride) * self.scheme.size + tap_x, tap_y * TAPS + tap_x
                    pixels = [self.pixels.pixel(corner + x * stride) for x in range(outputs)]
                    with k.loop(0, channels) as channel:
                        start = weights.offset(first * one_filter + channel * (TAPS * TAPS) + tap)
                        taps = widened(start.gather(places, mask), F32)
                        for pixel, total in zip(pixels, totals, strict=True):
                            value = k.splat(widened(pixel.load(channel), F32), self.lanes)
                            total.set(k.fma(taps, value, total.get()))
                line = self.results.place(sums, tile, column).offset(sums.outputs_apart * y)
                for x, total in enumerate(totals):
                    line.store(total.get(), x * sums.panel)

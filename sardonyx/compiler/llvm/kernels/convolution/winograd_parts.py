"""Winograd's products in tiles of AMX: transformed pixels and filters are three parts of bfloat16 each.

Sixteen transformed tiles of the image are the rows of tiles of AMX, which lie one after the other for each point: those
of 32 channels' parts, then those of the next channels. So each is read from one kilobyte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, minimum
from sardonyx.compiler.llvm.kernels.products.gemm_micro import Rows, Tile
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.kernels.products.gemm_tiles import SIDE, multiply_in_tiles
from sardonyx.compiler.llvm.types import F32, I32, I64, U16, U32

PRODUCT = PRODUCTS["f32 tiles"]
# Channels of a tile of AMX, and words of the tiles of their parts.
CHANNELS = PRODUCT.unit * PRODUCT.depth
WORDS = PRODUCT.parts * PRODUCT.unit * SIDE

_UPPER_HALF, _HALF = 0xFFFF0000, 0x8000


class TilesOfParts:
    """Transformed tiles at `words`, as they are written and multiplied.

    `given` are the kernel's arguments; `v_stride` is from sixteen tiles to the next ones, in words as `v_apart`.
    """

    def __init__(self, k: Function, given: Mapping[str, Value], words: Pointer) -> None:
        self.k, self.given, self.words = k, given, words

    def row(self, tile: Value) -> Pointer:
        """Where a tile's words at the first point begin."""
        return self.words.offset(tile // SIDE * self.given["v_stride"] + tile % SIDE * PRODUCT.unit)

    def place(self, row: Pointer, channel: Value) -> Pointer:
        """Where the words of `CHANNELS` channels lie, from this one on, in the tile of first parts."""
        return row.offset(channel // CHANNELS * WORDS)

    def store(self, place: Pointer, values: Sequence[Value]) -> None:
        """Write the vectors of `CHANNELS` channels, part by part."""
        parts = zip(*(self._parts(vector) for vector in values), strict=True)
        for number, part in enumerate(parts):
            first, second = (vector.bits_as(U16) for vector in part)
            uppers = range(1, 2 * first.type.lanes, 2)
            place.offset(number * PRODUCT.unit * SIDE).store(self.k.shuffle(first, second, uppers).bits_as(I32))

    def _parts(self, values: Value) -> list[Value]:
        """Numbers whose upper halves are the parts. Of what is not finite they are so, too, which is enough."""
        upper = (values.bits_as(U32) & _UPPER_HALF).bits_as(F32)
        rest = values - upper
        middle = (rest.bits_as(U32) + _HALF) & _UPPER_HALF
        return [upper, middle.bits_as(F32), rest - middle.bits_as(F32)]

    def multiply(
        self, point: Value, filters: Pointer, tiles: Value, products: Pointer, tile_products: int, panel: int
    ) -> None:
        """The products of so many tiles with a panel of filters at a point, which go to `products`: those of two tiles
        lie `tile_products` elements apart."""
        k, given = self.k, self.given
        apart = k.constant(I64, tile_products)
        first = self.words.offset(point * given["v_apart"])
        with k.loop(0, given["channels"], given["k_block"]) as channel:
            elements = minimum(k, given["channels"] - channel, given["k_block"])
            words = PRODUCT.words_before(PRODUCT.padded(elements))
            b = filters.offset(PRODUCT.words_before(channel) * panel)
            with k.loop(0, tiles, SIDE) as row:
                start = first.offset(row // SIDE * given["v_stride"] + channel // CHANNELS * WORDS)
                multiply_in_tiles(
                    k,
                    PRODUCT,
                    Rows(start, k.constant(I64, SIDE), True, SIDE),
                    b,
                    words,
                    Tile(products.offset(row * apart), apart, panel),
                    channel.equals(0),
                )

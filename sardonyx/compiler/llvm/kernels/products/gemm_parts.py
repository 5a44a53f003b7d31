"""Products of float32 in tiles of AMX: each number is three of bfloat16, which hold all of its bits between them.

Of the nine products of parts the three smallest are below the last bit of float32 and left out; what is left are six
products of tiles for one, each several times as fast as vectors are (G. Henry, P. T. P. Tang, A. Heinecke, "Leveraging
the bfloat16 artificial intelligence datatype for higher-precision computations", ARITH 2019). A part times infinity
may be NaN, or infinity of the other sign: rows of sums that are not finite are computed again by vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, minimum
from sardonyx.compiler.llvm.kernels.products.gemm_micro import Rows, Tile
from sardonyx.compiler.llvm.kernels.products.gemm_product import Product
from sardonyx.compiler.llvm.types import F32, I32, U32

# Visits the units of words along K of one row: words from A's start of the row, and words of B's panel before them.
Walk = Callable[[Callable[[Value, Value], None]], None]

_UPPER_HALF = 0xFFFF0000
_HALF_OF_LAST = 0x8000


def kept_products(parts: int) -> list[tuple[int, int]]:
    """Which parts of A and of B are multiplied: those whose product reaches the bits of the result."""
    return [(left, right) for left in range(parts) for right in range(parts - left)]


def paired_parts(k: Function, first: Value, second: Value, is_finite: bool) -> list[Value]:
    """Words of each part of two vectors of float32, lane by lane: those of `first` in the lower halves.

    They are `parts_of`, but rounded half up; `is_finite` says that no number is infinite.
    """

    def without_upper(number: Value, upper: Value) -> Value:
        rest = number - upper
        return rest if is_finite else k.select(number.equals(upper), 0.0, rest)

    def upper_half(bits: Value) -> Value:
        return (bits & _UPPER_HALF).bits_as(F32)

    def joined(one: Value, other: Value) -> Value:
        return ((one >> 16) | (other & _UPPER_HALF)).bits_as(I32)

    numbers = (first, second)
    bits = [number.bits_as(U32) for number in numbers]
    rests = [without_upper(number, upper_half(its)) for number, its in zip(numbers, bits, strict=True)]
    rounded = [rest.bits_as(U32) + _HALF_OF_LAST for rest in rests]
    last = [(rest - upper_half(its)).bits_as(U32) for rest, its in zip(rests, rounded, strict=True)]
    return [joined(*bits), joined(*rounded), joined(*last)]


# Gives the elements of the word `along` and `word` words further on, of a row.
Left = Callable[[Value, Value, Value], list[Value]]


def words_of_a(product: Product, a: Rows) -> Left:
    """Those of rows of words."""

    def left(row: Value, along: Value, word: Value) -> list[Value]:
        start = a.start.offset(row * a.stride).offset(along * a.spread + word)
        return _halves(product, start, product.unit * a.spread, 1)

    return left


def elements_of_a(k: Function, product: Product, a: Rows, count: Value) -> Left:
    """Those of rows of so many float32."""

    def left(row: Value, along: Value, word: Value) -> list[Value]:
        line, first = a.start.offset(row * a.stride), along // product.parts * product.depth + word * product.depth
        found = []
        for element in range(product.depth):
            place = minimum(k, first + element, count - 1)
            found.append(k.select(first + element < count, line.load(place), 0.0))
        return found

    return left


# Gives the vectors of the elements of the word `along` and `word` words further on, of the columns from `at` on.
Right = Callable[[Value, Value, int], list[Value]]


def words_of_b(k: Function, product: Product, b: Pointer, across: int) -> Right:
    """Those of a panel of words of so many columns."""

    def right(along: Value, word: Value, at: int) -> list[Value]:
        start = b.offset((along + word) * across + at)
        return _halves(product, start, product.unit * across, k.target.lanes(F32))

    return right


def elements_of_b(k: Function, product: Product, starts: Sequence[Pointer], width: Value, count: Value) -> Right:
    """Those of columns of so many float32, `width` of which lie beside each other; a vector of them begins at each
    start."""
    lanes = k.target.lanes(F32)

    def right(along: Value, word: Value, at: int) -> list[Value]:
        first = along // product.parts * product.depth + word * product.depth
        found = []
        for element in range(product.depth):
            place = minimum(k, first + element, count - 1)
            values = starts[at // lanes].offset(place * width).load(0, lanes)
            found.append(k.select(k.splat(first + element < count, lanes), values, 0.0))
        return found

    return right


def mend_rows(
    k: Function, product: Product, left: Left, right: Right, tile: Tile, rows: Value, across: int, walk: Walk
) -> None:
    """Those of the first `rows` rows of a tile whose sums are not finite again, by vectors.

    The tile has `across` columns; `walk` goes along all of K.
    """
    lanes = k.target.lanes(F32)
    vectors = range(across // lanes)
    with k.loop(0, rows) as row:
        place = tile.start.offset(row * tile.stride)
        zero = place.load(0, lanes) * 0.0
        for vector in vectors[1:]:
            zero = k.fma(place.load(vector * lanes, lanes), k.constant(zero.type, 0.0), zero)
        with k.when(k.any_lane(zero.differs(zero))):
            _row_by_vectors(k, product, left, row, right, place, across, walk, True)


def multiply_by_vectors(
    k: Function, product: Product, a: Rows, b: Pointer, words: Value, tile: Tile, across: int, is_fresh: bool
) -> None:
    """As `multiply_in_tiles` with the same words, in float32: for numbers whose products of parts may not be finite."""

    def walk(step: Callable[[Value, Value], None]) -> None:
        with k.loop(0, words, product.unit * product.parts) as word:
            step(word, word)

    left, right = words_of_a(product, a), words_of_b(k, product, b, across)
    with k.loop(0, product.unit) as row:
        _row_by_vectors(k, product, left, row, right, tile.start.offset(row * tile.stride), across, walk, is_fresh)


def _row_by_vectors(
    k: Function,
    product: Product,
    left: Left,
    row: Value,
    right: Right,
    place: Pointer,
    across: int,
    walk: Walk,
    is_fresh: bool,
) -> None:
    """One row of a tile at `place`: its sums, or what is there and these."""
    lanes = k.target.lanes(F32)
    places = range(0, across, lanes)
    sums = [k.variable(F32.vector(lanes), 0.0 if is_fresh else place.load(at, lanes)) for at in places]

    def add(along_a: Value, along_b: Value) -> None:
        with k.loop(0, product.unit) as word:
            lefts = left(row, along_a, word)
            for at, total in zip(places, sums, strict=True):
                for one, other in zip(lefts, right(along_b, word, at), strict=True):
                    total.set(k.fma(k.splat(one, lanes), other, total.get()))

    walk(add)
    for at, total in zip(places, sums, strict=True):
        place.store(total.get(), at)


def _halves(product: Product, start: Pointer, apart: int, lanes: int) -> list[Value]:
    """The two float32 of each word, whose parts lie so many words apart."""
    words = [start.load(part * apart, lanes).bits_as(U32) for part in range(product.parts)]
    found = []
    for shift in (16, 0):
        first, *others = [((word << shift) & _UPPER_HALF).bits_as(F32) for word in words]
        for other in others:
            first = first + other
        found.append(first)
    return found

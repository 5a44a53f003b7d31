"""Copies of the operands of a matrix multiplication in the order in which the micro-kernel reads them.

A panel of B is `[words of K][panel]`, padded with zeros where the columns end; constants are packed once by
`emit_pack`, B of the run is packed panel by panel into scratch. See `gemm_product` for what a word is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, minimum
from sardonyx.compiler.llvm.kernels.products.gemm_parts import paired_parts
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS, Product
from sardonyx.compiler.llvm.narrow_floats import narrowed, rounded_quickly, widened
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BF16, F32, F64, I8, I16, I64, PTR, U8, U16, U32, Type
from sardonyx.light_dataclass import dataclass


def converted(k: Function, values: Value, packed: Type) -> Value:
    """Elements as a tensor holds them as those of a word."""
    if packed in (U8, I16) and values.type.scalar == I8:
        values = values.bits_as(U8) ^ 0x80
    if packed == BF16 and k.target.has_bf16_dot and values.type.scalar == F32:
        return rounded_quickly(k, values).bits_as(BF16)
    return widened(values, packed) if packed in (F32, F64) else narrowed(k, values, packed)


def parts_of(k: Function, product: Product, packed: Type, values: Value) -> list[Value]:
    """Elements as a tensor holds them as those of words, one vector for each of the product's parts.

    Three parts of bfloat16 are a float32: its upper half, what is missing then, rounded, and what is missing still,
    which has no more bits. Infinities are in the first part alone, as differences from them would be NaN.
    """
    if product.parts == 1:
        return [converted(k, values, packed)]
    upper = (values.bits_as(U32) & _UPPER_HALF).bits_as(F32)
    rest = k.select(values.equals(upper), 0.0, values - upper)
    middle = converted(k, rest, packed)
    return [
        (values.bits_as(U32) >> 16).to(U16).bits_as(packed),
        middle,
        converted(k, rest - widened(middle, F32), packed),
    ]


_UPPER_HALF = 0xFFFF0000


def words_along(
    k: Function, product: Product, packed: Type, source: Pointer, count: Value | None, lanes: int
) -> list[Value]:
    """`lanes` words, of every part, whose elements follow one another in memory; only the first `count` of these
    exist (None: all). Of those whose elements are widened to pairs, there are twice as many."""
    elements = lanes * product.depth
    values = source.load(0, elements, None if count is None else k.lanes_below(count, elements))
    parts = parts_of(k, product, packed, values)
    return parts if product.depth == 1 else [part.bits_as(product.word) for part in parts]


def words_across(
    k: Function, product: Product, packed: Type, source: Pointer, stride: Value, count: Value, mask: Value
) -> list[Value]:
    """A vector of words, of every part, whose elements lie `stride` apart, `count` of them there; lanes outside `mask`
    are zero. Those that are widened to pairs take two words of every lane, the second one a vector of its own."""
    lanes = mask.type.lanes
    if product.depth == 1:
        return parts_of(k, product, packed, source.load(0, lanes, mask))
    bits = packed.bits
    narrow, zeros = Type("u", bits), k.constant(U32.vector(lanes), 0)
    words: list[Value] = []
    for step in range(product.depth):
        there = k.splat(count > step, lanes) & mask
        parts = parts_of(k, product, packed, source.offset(stride * step).load(0, lanes, there))
        place = bits * step % U32.bits
        if place == 0:
            words += [zeros] * product.parts
        for part, elements in enumerate(parts):
            words[part - len(parts)] = words[part - len(parts)] | (elements.bits_as(narrow).to(U32) << place)
    return [word.bits_as(product.word) for word in words]


def copy_rows(
    k: Function,
    product: Product,
    source: Pointer,
    stride: Value,
    rows: Value,
    elements: Value,
    target: Pointer,
    target_stride: Value,
) -> None:
    """Copy `rows` rows of `elements` along K to rows of words; each has room for whole vectors."""
    lanes = k.target.lanes(product.word)
    together = lanes * product.depth
    with k.loop(0, rows) as row:
        line = source.offset(row * stride)
        place = target.offset(row * target_stride)

        def copy(column: Value, count: Value | None, line: Pointer = line, place: Pointer = place) -> None:
            words = words_along(k, product, product.packed_a, line.offset(column), count, lanes)
            for part, vector in enumerate(words):
                place.store(vector, product.words_before(column) * product.left_words + part * lanes)

        whole = k.constant(I64, 0)
        if not k.target.has_masks:  # a mask costs a branch for each element there
            whole = elements - elements % together
            with k.loop(0, whole, together) as column:
                copy(column, None)
        with k.loop(whole, elements, together) as column:
            copy(column, elements - column)


def copy_tiles(
    k: Function,
    product: Product,
    source: Pointer,
    stride: Value,
    rows: Value,
    elements: Value,
    target: Pointer,
    target_stride: Value,
) -> None:
    """Copy `rows` rows of `elements` along K to tiles of AMX: sixteen rows of a unit of words of each part, one unit
    after the other, zeros where there are no rows. A tile's rows take sixteen times `target_stride` words."""
    unit = product.unit
    with k.loop(0, rows, unit) as first, k.loop(0, elements, unit * product.depth) as element:
        place = target.offset(first * target_stride + product.words_before(element) * unit)
        with k.loop(0, unit) as row:
            line = source.offset((first + row) * stride).offset(element)
            count = k.select(first + row < rows, elements - element, 0)
            for part, vector in enumerate(words_along(k, product, product.packed_a, line, count, unit)):
                place.offset(row * unit).store(vector, part * unit * unit)


def copy_columns(
    k: Function,
    product: Product,
    source: Pointer,
    stride: Value,
    elements: Value,
    columns: Value,
    target: Pointer,
    target_stride: Value,
) -> None:
    """Copy `elements` of K, each a line of `columns`, to lines of words; each has room for whole vectors."""
    lanes = k.target.lanes(product.word)
    with k.loop(0, elements, product.depth) as step:
        line = source.offset(step * stride)
        place = target.offset(product.place(step) * (target_stride * product.left_words))
        with k.loop(0, columns, lanes) as column:
            mask = k.lanes_below(columns - column, lanes)
            words = words_across(k, product, product.packed_a, line.offset(column), stride, elements - step, mask)
            for part, vector in enumerate(words):
                place.offset(part * product.unit * target_stride).store(vector, column)


def pack_rows(
    k: Function,
    product: Product,
    source: Pointer,
    stride: Value,
    elements: Value,
    masks: Sequence[Value],
    target: Pointer,
) -> None:
    """Pack one panel of a B whose rows are contiguous; one mask for each vector of the panel's columns."""
    lanes = masks[0].type.lanes
    with k.loop(0, product.padded(elements), product.depth) as step:
        line = source.offset(step * stride)
        panel = len(masks) * lanes
        place = target.offset(product.place(step) * panel)
        for number, mask in enumerate(masks):
            words = words_across(
                k, product, product.packed_b, line.offset(number * lanes), stride, elements - step, mask
            )
            for part, vector in enumerate(words):
                place.store(product.arranged(k, vector), part * product.unit * panel + number * lanes)


def pack_numbers(
    k: Function, product: Product, starts: Sequence[Pointer], width: Value, elements: Value, target: Pointer
) -> None:
    """Pack one panel of a B that lies in panels of float32: a vector of each line from each start on, the lines `width`
    apart. Infinities become NaN."""
    lanes = k.target.lanes(product.word)
    panel, unit = len(starts) * lanes, product.unit * product.depth
    with k.loop(0, elements, unit) as first:
        place = target.offset(product.words_before(first) * panel)
        whole = minimum(k, (elements - first) // 2, k.constant(I64, product.unit))

        def store(pair: Value, number: int, upper: Value, lower: Value) -> None:
            for part, vector in enumerate(paired_parts(k, upper, lower, True)):
                place.offset(pair * panel).store(vector, part * product.unit * panel + number * lanes)

        with k.loop(0, whole) as pair:
            line = (first + pair * 2) * width
            for number, start in enumerate(starts):
                source = start.offset(line)
                store(pair, number, source.load(0, lanes), source.offset(width).load(0, lanes))
        with k.loop(whole, product.unit) as pair:  # the last element of an odd number, and zeros
            there = k.splat(first + pair * 2 < elements, lanes)
            line = minimum(k, first + pair * 2, elements - 1) * width
            for number, start in enumerate(starts):
                last = k.select(there, start.offset(line).load(0, lanes), 0.0)
                store(pair, number, last, k.constant(last.type, 0.0))


def pack_columns(
    k: Function,
    product: Product,
    source: Pointer,
    stride: Value,
    elements: Value,
    columns: Value,
    vectors: int,
    target: Pointer,
) -> None:
    """Pack one panel of a B whose columns are contiguous, by transposing squares of words.

    `columns` of the panel exist. The last square may write beyond the words of K: up to a vector's lanes of lines
    more than there are, for which the target needs room unless it is cut to `elements` by `limit`.
    """
    lanes = k.target.lanes(product.word)
    panel = lanes * vectors
    padded = product.padded(elements)
    words = padded // product.depth if product.depth > 1 else padded
    with k.loop(0, words, lanes) as word:
        element = word * product.depth
        for number in range(vectors):
            squares: list[list[Value]] = [[] for _ in range(product.parts)]
            for lane in range(lanes):
                column = number * lanes + lane
                there = k.select(columns > column, elements - element, 0)
                line = source.offset(stride * column).offset(element)
                found = words_along(k, product, product.packed_b, line, there, lanes)
                for square, vector in zip(squares, found, strict=True):
                    square.append(vector)
            for part, square in enumerate(squares):
                place = target.offset((word * product.parts + part * lanes) * panel)
                lines = [product.arranged(k, vector) for vector in transpose(k, square)]
                _store_lines(k, lines, place, panel, number * lanes, words - word)


def _store_lines(k: Function, lines: Sequence[Value], target: Pointer, stride: int, first: int, count: Value) -> None:
    """Store the first `count` of these vectors as lines `stride` apart, `first` words behind where each begins."""
    whole = count >= len(lines)
    with k.when(whole):
        for line, vector in enumerate(lines):
            target.store(vector, line * stride + first)
    with k.otherwise(whole):
        for line, vector in enumerate(lines):
            with k.when(count > line):
                target.store(vector, line * stride + first)


def transpose(k: Function, square: Sequence[Value]) -> list[Value]:
    """The transpose of a square of vectors, in log2(lanes) rounds of exchanges between pairs of vectors."""
    vectors = list(square)
    lanes = len(vectors)
    distance = 1
    while distance < lanes:
        low = [lane if lane & distance == 0 else lanes + lane - distance for lane in range(lanes)]
        high = [lane + distance if lane & distance == 0 else lanes + lane for lane in range(lanes)]
        for index in range(lanes):
            if index & distance == 0:
                first, second = vectors[index], vectors[index + distance]
                vectors[index] = k.shuffle(first, second, low)
                vectors[index + distance] = k.shuffle(first, second, high)
        distance *= 2
    return vectors


@dataclass(frozen=True)
class PackSpec:
    """A kernel that packs a whole B, "rows" (stride 1 along N) or "columns" (stride 1 along K)."""

    product: str = "f32"
    b: Literal["rows", "columns"] = "rows"
    vectors: int = 2

    ARGUMENTS = ("source", "stride", "k", "n", "target", "k_block", "group", "k_blocks", "source_batch", "target_batch")


def emit_pack(target: Target, spec: PackSpec) -> str:
    """The kernel of `spec`. A chunk is `k_block` elements of K (a multiple of the depth) of `group` panels.

    Chunks count blocks of K fastest, then groups of panels, then batches.
    """
    product = PRODUCTS[spec.product]
    k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
    words = k.pointer("arguments", I64)
    given = {name: words.load(index) for index, name in enumerate(spec.ARGUMENTS)}
    source, packed = k.pointer(given["source"], product.stored_b), k.pointer(given["target"], product.word)
    lanes = target.lanes(product.word)
    panel = lanes * spec.vectors
    panels = (given["n"] + (panel - 1)) // panel
    groups = (panels + given["group"] - 1) // given["group"]
    depth_words = product.words_before(product.padded(given["k"]))
    with k.loop(k["begin"], k["end"]) as chunk:
        k_start = (chunk % given["k_blocks"]) * given["k_block"]
        rest = chunk // given["k_blocks"]
        first = (rest % groups) * given["group"]
        batch = rest // groups
        elements = minimum(k, given["k"] - k_start, given["k_block"])
        from_here = source.offset(batch * given["source_batch"])
        to_here = packed.offset(batch * given["target_batch"] + product.words_before(k_start) * panel)
        last = minimum(k, first + given["group"], panels)
        if spec.b == "rows":
            _pack_lines(
                k, product, spec.vectors, given, from_here, to_here, k_start, elements, first, last, depth_words
            )
        else:
            with k.loop(first, last) as number:
                columns = given["n"] - number * panel
                begin = from_here.offset(number * panel * given["stride"]).offset(k_start)
                place = to_here.offset(number * panel * depth_words)
                pack_columns(k, product, begin, given["stride"], elements, columns, spec.vectors, place)
    return k.finish()


def _pack_lines(
    k: Function,
    product: Product,
    vectors: int,
    given: dict[str, Value],
    source: Pointer,
    target: Pointer,
    k_start: Value,
    elements: Value,
    first: Value,
    last: Value,
    depth_words: Value,
) -> None:
    """A chunk of rows: each is read through all panels of the group before the next, as it lies in memory."""
    lanes = k.target.lanes(product.word)
    panel = lanes * vectors
    with k.loop(0, product.padded(elements), product.depth) as step:
        line = source.offset((k_start + step) * given["stride"])
        place = target.offset(product.place(step) * panel)
        with k.loop(first, last) as number:
            column = number * panel
            for vector in range(vectors):
                mask = k.lanes_below(given["n"] - column - vector * lanes, lanes)
                words = words_across(
                    k,
                    product,
                    product.packed_b,
                    line.offset(column + vector * lanes),
                    given["stride"],
                    elements - step,
                    mask,
                )
                for part, found in enumerate(words):
                    line_of_part = place.offset(number * panel * depth_words + part * product.unit * panel)
                    line_of_part.store(product.arranged(k, found), vector * lanes)


@dataclass(frozen=True)
class WordsSpec:
    """A kernel that writes rows of elements, which may be `rounded` to the words' already, as rows of words."""

    product: str
    rounded: bool = False

    ARGUMENTS = ("source", "stride", "rows", "k", "target", "target_stride", "block")


def emit_words(target: Target, spec: WordsSpec) -> str:
    """The kernel of `spec`: a chunk is `block` rows; a row has room for whole vectors, with zeros at its end."""
    product = PRODUCTS[spec.product]
    k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
    words = k.pointer("arguments", I64)
    given = {name: words.load(index) for index, name in enumerate(spec.ARGUMENTS)}
    with k.loop(k["begin"], k["end"]) as chunk:
        first = chunk * given["block"]
        stored = product.packed_a if spec.rounded else product.stored_a
        source = k.pointer(given["source"], stored).offset(first * given["stride"])
        place = k.pointer(given["target"], product.word).offset(first * given["target_stride"])
        rows = minimum(k, given["rows"] - first, given["block"])
        copy_rows(k, product, source, given["stride"], rows, given["k"], place, given["target_stride"])
    return k.finish()


@dataclass(frozen=True)
class WordsInTilesSpec:
    """A kernel that writes rows of elements as tiles of AMX: sixteen rows of sixteen words, one unit of K of all parts
    after the other."""

    product: str

    ARGUMENTS = ("source", "stride", "rows", "k", "target", "target_stride", "tiles", "batch_stride")


def emit_words_in_tiles(target: Target, spec: WordsInTilesSpec) -> str:
    """The kernel of `spec`: a chunk is sixteen rows of one of the matrices, which have so many `tiles` each, with zeros
    where there are no rows. A row has `target_stride` words."""
    product = PRODUCTS[spec.product]
    k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
    words = k.pointer("arguments", I64)
    given = {name: words.load(index) for index, name in enumerate(spec.ARGUMENTS)}
    source, tiles = k.pointer(given["source"], product.stored_a), k.pointer(given["target"], product.word)
    with k.loop(k["begin"], k["end"]) as chunk:
        first = chunk % given["tiles"] * product.unit
        line = source.offset(chunk // given["tiles"] * given["batch_stride"] + first * given["stride"])
        rows = minimum(k, given["rows"] - first, k.constant(I64, product.unit))
        place = tiles.offset(chunk * product.unit * given["target_stride"])
        copy_tiles(k, product, line, given["stride"], rows, given["k"], place, given["target_stride"])
    return k.finish()

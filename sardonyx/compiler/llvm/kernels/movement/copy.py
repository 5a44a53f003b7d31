"""Copies between strided layouts. Elements are blobs of 1 to 64 bytes, whatever they mean; strides count bytes.

Four kernels share the work: `emit_pieces` (long contiguous rows), `emit_rows` (short ones), `emit_fill` (one element
repeated) and `emit_blocks` (everything else, transposes in registers included).
"""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.movement.transpose import transpose_tile
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import U8, Type
from sardonyx.compiler.llvm.walk import Row, blocks, copy_blob, kernel_frame, places, runs, share
from sardonyx.light_dataclass import dataclass


def emit_pieces(target: Target, spec: tuple[()]) -> str:
    """Rows of contiguous bytes, each copied in pieces; nothing where the destination is the source.

    Arguments: source, destination, items (rows times pieces), items per chunk, pieces of a row, bytes of a piece,
    bytes of a row, rank and rows (size, source stride, destination stride) of the dimensions over rows.
    """
    k, words = kernel_frame(target)
    source, destination = k.pointer(words.load(0), U8), k.pointer(words.load(1), U8)
    pieces, piece, row = words.load(4), words.load(5), words.load(6)
    begin, end = share(k, words.load(2), words.load(3))
    end = k.select(words.load(0).equals(words.load(1)), begin, end)
    with k.loop(begin, end) as item:
        place = item // pieces
        first = (item - place * pieces) * piece
        read, written = places(k, place, words.offset(8), words.load(7), 2)
        count = k.smaller(piece, row - first)
        k.copy(destination.offset(written + first), source.offset(read + first), count)
    return k.finish()


def emit_rows(target: Target, spec: tuple[()]) -> str:
    """Short rows of contiguous bytes.

    Arguments: source, destination, rows, rows per chunk, bytes of a row; size, source stride and destination stride
    of the fastest dimension over rows; rank and table of the slower ones.
    """
    k, words = kernel_frame(target)
    source, destination = k.pointer(words.load(0), U8), k.pointer(words.load(1), U8)
    row = Row(k, 0, words.load(4))
    size, read_step, written_step = words.load(5), words.load(6), words.load(7)
    begin, end = share(k, words.load(2), words.load(3))
    with runs(k, begin, end, size) as (slower, first, last):
        read, written = places(k, slower, words.offset(9), words.load(8), 2)
        outer_source, outer_destination = source.offset(read), destination.offset(written)
        with k.loop(first, last) as index:
            from_, to = outer_source.offset(index * read_step), outer_destination.offset(index * written_step)
            row.copy(from_, to)
    return k.finish()


@dataclass(frozen=True)
class FillSpec:
    """`blob` bytes are repeated."""

    blob: int


def emit_fill(target: Target, spec: FillSpec) -> str:
    """Rows in which one blob is repeated; the blob is no wider than a vector.

    Arguments: source, destination, items (rows times pieces), items per chunk, pieces of a row, bytes of a piece
    (a multiple of the vector), bytes of a row, rank and table of the dimensions over rows.
    """
    k, words = kernel_frame(target)
    source, destination = k.pointer(words.load(0), U8), k.pointer(words.load(1), U8)
    pieces, piece, row = words.load(4), words.load(5), words.load(6)
    begin, end = share(k, words.load(2), words.load(3))
    width = target.vector_bits // 8
    with k.loop(begin, end) as item:
        place = item // pieces
        first = (item - place * pieces) * piece
        read, written = places(k, place, words.offset(8), words.load(7), 2)
        blob = source.offset(read)
        pattern = _repeated(k, blob, spec.blob, width)
        to = destination.offset(written + first)
        count = k.smaller(piece, row - first)
        fill_row(k, to, pattern, count, spec.blob)
    return k.finish()


def fill_row(k: Function, to: Pointer, pattern: Value, count: Value, blob: int) -> None:
    """`count` bytes (a multiple of `blob`) of a pattern that repeats every `blob` bytes."""
    width = pattern.type.lanes
    long = count >= width
    with k.when(long):
        rest = count - width
        with k.loop(0, rest, width) as at:
            to.store(pattern, at)
        to.store(pattern, rest)
    with k.otherwise(long):
        if k.target.has_masks:
            to.store(pattern, 0, k.lanes_below(count, width))
        else:
            part = k.shuffle(pattern, None, range(blob)) if blob > 1 else k.extract(pattern, 0)
            with k.loop(0, count, blob) as at:
                to.store(part, at)


def _repeated(k: Function, blob: Pointer, nbytes: int, width: int) -> Value:
    """A vector of `width` bytes in which the blob repeats."""
    if nbytes <= 8:
        scalar = Type("u", 8 * nbytes)
        word = blob.cast(scalar).load(0, align=1)
        return k.splat(word, width // nbytes).bits_as(U8)
    part = blob.load(0, nbytes)
    return part if nbytes == width else k.shuffle(part, None, [lane % nbytes for lane in range(width)])


@dataclass(frozen=True)
class BlockSpec:
    """Elements of `blob` bytes; with `tile` > 1, squares of that many elements are transposed in registers."""

    blob: int
    tile: int = 1


def emit_blocks(target: Target, spec: BlockSpec) -> str:
    """Blocks of two dimensions a and b, b the faster one of the destination.

    Arguments: source, destination, and those of `blocks`. With tiles, elements are contiguous along a in the source
    and along b in the destination, and no size is below the tile's.
    """
    k, words = kernel_frame(target)
    source, destination = k.pointer(words.load(0), U8), k.pointer(words.load(1), U8)
    with blocks(k, words) as block:
        a, b = block.a, block.b
        from_, to = source.offset(block.read), destination.offset(block.written)
        if spec.tile == 1:
            with k.loop(block.a_first, block.a_last) as i:
                row_from, row_to = from_.offset(i * a.read_step), to.offset(i * a.written_step)
                with k.loop(block.b_first, block.b_last) as j:
                    copy_blob(row_from.offset(j * b.read_step), row_to.offset(j * b.written_step), spec.blob)
        else:
            rows, columns = (block.a_first, block.a_last, spec.tile), (block.b_first, block.b_last, spec.tile)
            with k.loop(*rows) as i, k.loop(*columns) as j:
                # The last tiles are moved back inside and copy some elements once more.
                i, j = k.smaller(i, a.size - spec.tile), k.smaller(j, b.size - spec.tile)
                corner_from = from_.offset(i * spec.blob + j * b.read_step)
                corner_to = to.offset(i * a.written_step + j * spec.blob)
                transpose_tile(k, corner_from, b.read_step, corner_to, a.written_step, spec.blob, spec.tile)
    return k.finish()

"""Elements that are taken from, or put between, a few neighbours: small steps and small inner dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64, U8, Type
from sardonyx.compiler.llvm.walk import Axis, blocks, kernel_frame, places, share
from sardonyx.light_dataclass import dataclass

# The steps between elements, and the sizes of inner dimensions, that these kernels take.
STEPS = (-1, *range(2, 9))
COUNTS = (2, 3, 4)
# How many rows that lie anywhere they take.
MOST_ROWS = 8


@dataclass(frozen=True)
class StridedSpec:
    """Elements of `blob` bytes (at most 8), every `step`-th one; the next one before it for -1."""

    blob: int
    step: int


def emit_strided(target: Target, spec: StridedSpec) -> str:
    """Rows of elements that lie a small step apart become contiguous.

    Arguments as those of `emit_blocks`; b is contiguous in the destination and has the step in the source.
    """
    k, words = kernel_frame(target)
    source, destination = k.pointer(words.load(0), U8), k.pointer(words.load(1), U8)
    scalar = Type("u", 8 * spec.blob)
    lanes = target.lanes(scalar)
    with blocks(k, words) as block:
        a, b, b_first, b_last = block.a, block.b, block.b_first, block.b_last
        from_, to = source.offset(block.read).cast(scalar), destination.offset(block.written).cast(scalar)
        # Behind the last element there may be no memory: whole vectors end before it.
        room = k.larger(k.smaller(b_last, b.size - 1) - b_first, 0)
        whole = b_first + (room & -lanes)
        with k.loop(block.a_first, block.a_last) as i:
            row_from = Pointer(k.advance(from_.address, i * a.read_step, 1), scalar)
            row_to = Pointer(k.advance(to.address, i * a.written_step, 1), scalar)
            with k.loop(b_first, whole, lanes) as j:
                row_to.store(_every(k, row_from, j, spec.step, lanes), j, align=1)
            done = k.variable(I64, whole)
            with k.when((whole < b_last) & (b_last > lanes)):
                last = b_last - lanes  # moved back: some elements are copied once more
                row_to.store(_every(k, row_from, last, spec.step, lanes, ending=True), last, align=1)
                done.set(b_last)
            with k.loop(done.get(), b_last) as j:
                row_to.store(row_from.load(j * spec.step, align=1), j, align=1)
    return k.finish()


def _every(k: Function, row: Pointer, first: Value, step: int, lanes: int, *, ending: bool = False) -> Value:
    """`lanes` elements, `step` apart, from the `first` one on.

    Up to `step` - 1 elements behind the last one are read too, or, where it is `ending`, before the first one.
    """
    if step == -1:
        backwards = row.load(-first - (lanes - 1), lanes, align=1)
        return k.shuffle(backwards, None, range(lanes - 1, -1, -1))
    ahead = step - 1 if ending else 0
    start = first * step - ahead
    found = row.load(start, lanes, align=1)
    for part in range(1, step):
        following = row.load(start + part * lanes, lanes, align=1)
        # Lanes of earlier vectors lie in their places already, except those of the very first one.
        chosen = []
        for lane in range(lanes):
            vector, at = divmod(lane * step + ahead, lanes)
            chosen.append(lanes + at if vector == part else at if part == 1 and vector == 0 else lane)
        found = k.shuffle(found, following, chosen)
    return found


@dataclass(frozen=True)
class ZipSpec:
    """Elements of `blob` bytes (at most 8) of `count` rows."""

    blob: int
    count: int


def emit_zip(target: Target, spec: ZipSpec) -> str:
    """A few contiguous rows become one in which their elements take turns.

    Arguments as those of `emit_blocks`; b counts the rows and is contiguous in the destination, where a steps over
    one element of each; a is contiguous in the source.
    """
    k, words = kernel_frame(target)
    source, destination = k.pointer(words.load(0), U8), k.pointer(words.load(1), U8)
    a, b = Axis(words, 4), Axis(words, 8)
    a_blocks = words.load(12)
    begin, end = share(k, words.load(2), words.load(3))
    scalar = Type("u", 8 * spec.blob)
    with k.loop(begin, end) as item:
        place = item // a_blocks
        first = (item - place * a_blocks) * a.block
        last = k.smaller(a.size, first + a.block)
        read, written = places(k, place, words.offset(15), words.load(14), 2)
        rows = [source.offset(read + b.read_step * row).cast(scalar) for row in range(spec.count)]
        _zip(k, rows, destination.offset(written).cast(scalar), (first, last))
    return k.finish()


def emit_weave(target: Target, spec: ZipSpec) -> str:
    """Contiguous rows, wherever they lie, become one in which their elements take turns.

    Arguments: destination, elements of a row, elements per chunk, rows.
    """
    k, words = kernel_frame(target)
    scalar = Type("u", 8 * spec.blob)
    size = words.load(1)
    rows = [k.pointer(words.load(3 + row), scalar) for row in range(spec.count)]
    _zip(k, rows, k.pointer(words.load(0), scalar), share(k, size, words.load(2)))
    return k.finish()


def _zip(k: Function, rows: Sequence[Pointer], to: Pointer, part: tuple[Value, Value]) -> None:
    """The elements of rows in turns, from the first of a part up to its last (excluded)."""
    (first, last), count, lanes = part, len(rows), k.target.lanes(to.scalar)
    whole = first + ((last - first) & -lanes)

    def turn(i: Value) -> None:
        vectors = [row.load(i, lanes, align=1) for row in rows]
        for part in range(count):
            to.store(_taken_in_turn(k, vectors, part * lanes), i * count + part * lanes, align=1)

    with k.loop(first, whole, lanes) as i:
        turn(i)
    done = k.variable(I64, whole)
    with k.when((whole < last) & (last >= lanes)):
        turn(last - lanes)  # moved back: some elements are copied once more
        done.set(last)
    with k.loop(done.get(), last) as i:
        for number, row in enumerate(rows):
            to.store(row.load(i, align=1), i * count + number, align=1)


def _taken_in_turn(k: Function, vectors: list[Value], start: int) -> Value:
    """The elements from place `start` on of the vectors' elements taken in turn."""
    count, lanes = len(vectors), vectors[0].type.lanes
    found = vectors[0]
    for number in range(1, count):
        chosen = []
        for lane in range(lanes):
            at, vector = divmod(start + lane, count)
            chosen.append(lanes + at if vector == number else at if number == 1 and vector == 0 else lane)
        found = k.shuffle(found, vectors[number], chosen)
    return found

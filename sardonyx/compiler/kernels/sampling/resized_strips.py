"""Resizing maps whose lines lie together, in strips: down the lines of the result, a few vectors wide.

A line of the source is resized across once: elements are looked up in registers, and weighted. It waits in registers
for all lines of the result that are weighted sums of it.
"""

from __future__ import annotations

import math

import numpy as np

from sardonyx.compiler.arguments import Read, Record, Rest, Size, Table, Write, kernel
from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.kernels.sampling.elements import Elements, sum_of
from sardonyx.compiler.llvm.kernels.windows.frame import divided
from sardonyx.compiler.llvm.lookup import has_lookup, lookup
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32, F64, I32, I64, Type, type_of
from sardonyx.compiler.llvm.values import Variable
from sardonyx.compiler.llvm.walk import places, share
from sardonyx.compiler.native.rows.rows import elements_per_chunk, joined_axes, table_words
from sardonyx.light_dataclass import dataclass

# Of each element of the result the places that it reads along an axis, and their weights, [places, taps] both.
Taps = tuple[Array, Array]

# Taps of an element that are written out, at most; vectors of a strip, at least and at most.
_MOST_TAPS, _FEWEST_VECTORS, _MOST_VECTORS = 4, 2, 8
# Registers that the code takes besides the lines that wait and what finds elements across.
_OTHER_REGISTERS = 6


@dataclass(frozen=True)
class ResizedStripSpec:
    """Types in memory, and how many taps an element has down and across.

    Unless they are `weighted`, there is one tap each way. A strip has `vectors`, or where they are `uneven` perhaps
    one less; the elements of each lie in so many `halves` of a register each. Lines of the source or of the result may
    be shorter than a register.
    """

    source: Type
    output: Type
    down: int
    across: int
    weighted: bool
    vectors: int
    uneven: bool
    halves: int
    short_source: bool
    short_result: bool
    rounds: bool = False  # to the nearest integer


class Arguments(Record):
    """Tables are for each line of the result, [lines, taps], or for each vector of it, [vectors, taps, lanes]."""

    x = Read()
    y = Write()
    items = Size()
    per_chunk = Size()
    lines = Size()  # of a plane of the result
    band = Size()  # lines
    bands = Size()
    strips = Size()
    whole = Size()  # strips with all their vectors
    size = Size()  # elements of a line of the source
    width = Size()  # and of the result
    read = Table(I64)  # what a line reads, in bytes from the plane's start
    weights_down = Table(F32)
    fresh = Table(I64)  # how many of these lines the one before has not read
    starts = Table(I64)  # the first element of a vector
    bases = Table(I64)  # where its halves begin
    indices = Table(I32)  # the places of its taps in these
    weights_across = Table(F32)
    outer = Rest()  # rank and table of the dimensions over planes


@kernel(Arguments)
def emit_resized_strips(k: Function, a: Arguments, spec: ResizedStripSpec) -> None:
    """Maps strip by strip."""
    a.loaded()  # most are read inside loops
    outer = a.outer
    writer = _Writer(k, a, spec)
    begin, end = share(k, a.items, a.per_chunk)
    with k.loop(begin, end) as item:
        above, strip = divided(item, a.strips)
        plane, band = divided(above, a.bands)
        (start,) = places(k, plane, outer.offset(1), outer.load(0), 1)
        first = band * a.band
        last = k.smaller(first + a.band, a.lines)
        is_whole = strip < a.whole
        with k.when(is_whole):
            writer.strip(plane, start, strip * spec.vectors, (first, last), spec.vectors)
        if spec.uneven:
            number = strip * (spec.vectors - 1) + a.whole
            with k.otherwise(is_whole):
                writer.strip(plane, start, number, (first, last), spec.vectors - 1)


@dataclass(frozen=True)
class _Vector:
    """A vector of a strip: where it and its halves begin, its taps, and the lines of it that wait, newest last."""

    start: Value
    bases: list[Value]
    indices: list[Value]
    weights: list[Value]
    kept: list[Variable]


class _Writer:
    """Writes the code of a strip."""

    def __init__(self, k: Function, a: Arguments, spec: ResizedStripSpec) -> None:
        self.k, self.a, self.spec = k, a, spec
        self.lanes = k.target.lanes(F32)
        self.there = k.lanes_below(a.size, self.lanes) if spec.short_source else None
        self.wanted = k.lanes_below(a.width, self.lanes) if spec.short_result else None

    def strip(self, plane: Value, start: Value, number: Value, lines: tuple[Value, Value], count: int) -> None:
        """So many vectors from one on, in the lines from the first up to the last (excluded)."""
        k, a, spec = self.k, self.a, self.spec
        vectors = [self._vector(number + index) for index in range(count)]
        source = a.x.offset(start)
        output = Elements(a.y, spec.output, F32, rounds=spec.rounds)
        read, fresh, weights = a.read, a.fresh, a.weights_down
        first, last = lines
        with k.loop(first, last) as line:
            entry = line * spec.down
            missing = k.select(line.equals(first), k.constant(I64, spec.down), fresh.load(line))
            for tap in range(spec.down):
                with k.when(missing >= spec.down - tap):
                    here = Elements(source.offset(read.load(entry + tap)), spec.source, F32)
                    for vector in vectors:
                        for older, newer in zip(vector.kept, vector.kept[1:], strict=False):
                            older.set(newer.get())
                        vector.kept[-1].set(self._across(vector, here))
            to = output.offset((plane * a.lines + line) * a.width)
            shares = [k.splat(weights.load(entry + tap), self.lanes) for tap in range(spec.down) if spec.weighted]
            for vector in vectors:
                found = [kept.get() for kept in vector.kept]
                (made,) = [sum_of(k, list(zip(found, shares, strict=True)))] if spec.weighted else found
                to.store(made, vector.start, self.wanted)

    def _vector(self, number: Value) -> _Vector:
        """What tables say of a vector by its number in the line."""
        k, a, spec, lanes = self.k, self.a, self.spec, self.lanes
        starts, bases = a.starts, a.bases
        indices, weights = a.indices, a.weights_across
        entries = [(number * spec.across + tap) * lanes for tap in range(spec.across)]
        return _Vector(
            starts.load(number),
            [bases.load(number * spec.halves + half) for half in range(spec.halves)],
            [indices.load(entry, lanes) for entry in entries],
            [weights.load(entry, lanes) for entry in entries if spec.weighted],
            [k.variable(F32.vector(lanes), 0) for _ in range(spec.down)],
        )

    def _across(self, vector: _Vector, line: Elements) -> Value:
        """The vector of a line of the source."""
        halves = [line.load(base, self.lanes, self.there) for base in vector.bases]
        found = [lookup(self.k, halves, indices) for indices in vector.indices]
        return sum_of(self.k, list(zip(found, vector.weights, strict=True))) if self.spec.weighted else found[0]


@dataclass(frozen=True)
class _Across:
    """The vectors of a line: where they and their halves begin, and by tap where in these the elements lie."""

    starts: Array
    bases: Array
    indices: Array
    weights: Array


def bind_resized_strips(
    binder: Binder, x: Tensor, result: Tensor, axis: int, down: Taps, across: Taps, *, rounds: bool = False
) -> bool:
    """Add the step that resizes an axis and the one behind it, which is the last one that matters; whether it fits.

    Where each element has one tap of the weight 1, elements are only moved. `rounds`: to the nearest integer.
    """
    target, source, output = binder.target, type_of(x.dtype), type_of(result.dtype)
    taps = down[0].shape[1], across[0].shape[1]
    weighted = taps != (1, 1) or any((weights != 1).any() for _, weights in (down, across))
    if not weighted and x.dtype.itemsize == F32.nbytes:
        source = output = F32
    if source is None or output is None or F64 in (source, output) or max(taps) > _MOST_TAPS:
        return False
    if not has_lookup(target) or x.strides[axis + 1] != 1 or not result.is_contiguous:
        return False
    found = _vectors(target, x.shape[axis + 1], across)
    if found is None:
        return False
    lanes, halves = target.lanes(F32), found.bases.shape[1]
    count = len(found.starts)
    strips = -(-count // _most_vectors(target, taps, weighted=weighted))
    vectors = -(-count // strips)
    whole = count - strips * (vectors - 1)
    size, width, lines = x.shape[axis + 1], len(across[0]), len(down[0])
    spec = ResizedStripSpec(
        *(source, output, *taps, weighted, vectors, whole < strips, halves),
        *(size < lanes, width < lanes),
        rounds,
    )
    item, planes = x.dtype.itemsize, math.prod(x.shape[:axis])
    operations = 2.0 * sum(taps)
    wanted = elements_per_chunk(result.size, x.nbytes / result.size + result.dtype.itemsize, operations)
    elements = vectors * lanes
    bands = -(-lines // max(1, min(lines, wanted // elements)))
    band = -(-lines // bands)
    items = planes * bands * strips
    per_chunk = max(1, wanted // (band * elements))
    tables = {
        "read": down[0] * (x.strides[axis] * item),
        "weights_down": down[1].astype(np.float32),
        "fresh": _fresh(down[0]),
        "starts": found.starts,
        "bases": found.bases,
        "indices": found.indices.astype(np.int32),
        "weights_across": found.weights.astype(np.float32),
    }
    binder.step(
        emit_resized_strips,
        spec,
        Arguments(
            x=x,
            y=result,
            items=items,
            per_chunk=per_chunk,
            lines=lines,
            band=band,
            bands=bands,
            strips=strips,
            whole=whole,
            size=size,
            width=width,
            **{name: binder.constant(np.ascontiguousarray(table)) for name, table in tables.items()},
            outer=table_words(joined_axes(x.shape[:axis], [[stride * item for stride in x.strides[:axis]]])),
        ),
        chunks=-(-items // per_chunk),
        flops=operations * result.size,
        detail=f"{planes * lines} lines of {size} to {width} elements, strips of {vectors} vectors of {lanes}",
    )
    return True


def _most_vectors(target: Target, taps: tuple[int, int], *, weighted: bool) -> int:
    """How many vectors of a strip registers hold: their lines that wait, and what finds elements across.

    Of the weights across half may come from the nearest cache each time.
    """
    twice = 2 * taps[0] + (3 if weighted else 2) * taps[1]
    return max(_FEWEST_VECTORS, min(_MOST_VECTORS, 2 * (target.registers - _OTHER_REGISTERS) // twice))


def _vectors(target: Target, size: int, across: Taps) -> _Across | None:
    """How the elements of lines of this size are looked up in registers; None where they cannot."""
    places, weights = across
    width, lanes = len(places), target.lanes(F32)
    if min(width, size) < lanes and not target.has_masks:
        return None
    starts = np.minimum(np.arange(0, width, lanes), max(0, width - lanes))
    elements = np.minimum(starts[:, None] + np.arange(lanes), width - 1)
    read = places[elements].transpose(0, 2, 1)  # [vectors, taps, lanes]
    first, last = read.min(axis=(1, 2)), read.max(axis=(1, 2))
    near = np.minimum(first, max(0, size - lanes))
    if (last - near < lanes).all():
        bases, indices = near[:, None], read - near[:, None, None]
    else:
        far = np.minimum(near + lanes, size - lanes)
        if (last - far >= lanes).any():
            return None
        bases = np.stack((near, far), axis=1)
        is_near = read < near[:, None, None] + lanes
        indices = np.where(is_near, read - near[:, None, None], read - far[:, None, None] + lanes)
    return _Across(starts, bases, indices, weights[elements].transpose(0, 2, 1))


def _fresh(places: Array) -> Array:
    """How many of the last taps of each place those of the place before do not hold, as these move on."""
    lines, taps = places.shape
    found = np.full(lines, taps)
    for moved in range(taps - 1, -1, -1):
        same = (places[1:, : taps - moved] == places[:-1, moved:]).all(axis=1)
        found[1:][same] = moved
    return found

"""Resizing maps whose lines lie together, in strips: down the lines of the result, a few vectors wide.

A line of the source is resized across once: elements are looked up in registers, and weighted. It waits in registers
for all lines of the result that are weighted sums of it.
"""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.kernels.sampling.elements import Elements, sum_of
from sardonyx.compiler.llvm.kernels.windows.frame import Arguments, divided
from sardonyx.compiler.llvm.lookup import lookup
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32, I32, I64, U8, Type
from sardonyx.compiler.llvm.values import Variable
from sardonyx.compiler.llvm.walk import kernel_frame, places, share
from sardonyx.light_dataclass import dataclass


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

    def argument_names(self) -> tuple[str, ...]:
        """The words of the kernel's arguments, before rank and table of the dimensions over planes.

        Source and result; items, items of a chunk; lines of a plane of the result, of a band, and bands; strips, and
        those of them with all their vectors; elements of a line of both. Tables for each line: what it reads (I64,
        bytes from the plane's start), weights, both [lines, taps], and how many of these lines the one before has not
        read (I64). Tables for each vector: its first element (I64), where its halves begin (I64), places of
        its taps in these (I32), and their weights, both [vectors, taps, lanes].
        """
        sizes = ("lines", "band", "bands", "strips", "whole", "size", "width")
        tables = ("read", "weights_down", "fresh", "starts", "bases", "indices", "weights_across")
        return ("x", "y", "items", "per_chunk", *sizes, *tables)


def emit_resized_strips(target: Target, spec: ResizedStripSpec) -> str:
    """The module of a kernel; its arguments are those that the specification names, and the dimensions over planes."""
    k, words = kernel_frame(target)
    names = spec.argument_names()
    a = Arguments(words, names)
    outer = words.offset(len(names))
    writer = _Writer(k, a, spec)
    begin, end = share(k, a["items"], a["per_chunk"])
    with k.loop(begin, end) as item:
        above, strip = divided(item, a["strips"])
        plane, band = divided(above, a["bands"])
        (start,) = places(k, plane, outer.offset(1), outer.load(0), 1)
        first = band * a["band"]
        last = k.smaller(first + a["band"], a["lines"])
        is_whole = strip < a["whole"]
        with k.when(is_whole):
            writer.strip(plane, start, strip * spec.vectors, (first, last), spec.vectors)
        if spec.uneven:
            number = strip * (spec.vectors - 1) + a["whole"]
            with k.otherwise(is_whole):
                writer.strip(plane, start, number, (first, last), spec.vectors - 1)
    return k.finish()


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
        self.there = k.lanes_below(a["size"], self.lanes) if spec.short_source else None
        self.wanted = k.lanes_below(a["width"], self.lanes) if spec.short_result else None

    def strip(self, plane: Value, start: Value, number: Value, lines: tuple[Value, Value], count: int) -> None:
        """So many vectors from one on, in the lines from the first up to the last (excluded)."""
        k, a, spec = self.k, self.a, self.spec
        vectors = [self._vector(number + index) for index in range(count)]
        source = k.pointer(a["x"], U8).offset(start)
        output = Elements(k.pointer(a["y"], U8), spec.output, F32, rounds=spec.rounds)
        read, fresh, weights = (
            k.pointer(a[name], scalar) for name, scalar in (("read", I64), ("fresh", I64), ("weights_down", F32))
        )
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
            to = output.offset((plane * a["lines"] + line) * a["width"])
            shares = [k.splat(weights.load(entry + tap), self.lanes) for tap in range(spec.down) if spec.weighted]
            for vector in vectors:
                found = [kept.get() for kept in vector.kept]
                (made,) = [sum_of(k, list(zip(found, shares, strict=True)))] if spec.weighted else found
                to.store(made, vector.start, self.wanted)

    def _vector(self, number: Value) -> _Vector:
        """What tables say of a vector by its number in the line."""
        k, a, spec, lanes = self.k, self.a, self.spec, self.lanes
        starts, bases = k.pointer(a["starts"], I64), k.pointer(a["bases"], I64)
        indices, weights = k.pointer(a["indices"], I32), k.pointer(a["weights_across"], F32)
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

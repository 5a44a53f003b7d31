"""Resizing by weighted sums: down the lines of a plane, then across each line.

A line of the result is, first, a weighted sum of lines of the source, which stays in the nearest cache; its elements
are then weighted sums of elements of that line. Either of the two may be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from sardonyx.compiler.arguments import Group, Read, Record, Rest, Size, Table, Write, kernel
from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.sampling.elements import (
    Elements,
    blocked_loop,
    interleaved,
    sum_of,
    vector_loop,
    working_type,
)
from sardonyx.compiler.llvm.lookup import lookup
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I32, I64, Type
from sardonyx.compiler.llvm.values import Variable
from sardonyx.compiler.llvm.walk import places, runs, share
from sardonyx.light_dataclass import dataclass

# How elements of a line are summed: not at all; runs of neighbours, each run by one weight; the same two by two, lines
# down and runs across at once, so that what is summed down stays in registers; element by element; element
# by element, found among the next two registers' worth of the line; or in phases, several of them for each element of
# the line, all alike but for the ends; the same with runs of neighbours.
Across = Literal["none", "runs", "pairs of runs", "elements", "lookup", "phases", "phases of runs"]

# Vectors of a line that are summed in one turn of a loop.
_UNROLL = 4

# More taps than this are a loop.
MOST_UNROLLED = 6

# The number of a tap.
Tap = int | Value


@dataclass(frozen=True)
class ResampleSpec:
    """Types in memory, the taps down and across (0: a number known at run time), and how lines are summed across.

    There is a power of two of phases.
    """

    source: Type
    output: Type
    down: int
    across: Across = "none"
    taps: int = 0
    phases: tuple[tuple[int, ...], ...] = ()  # of each, how far its taps are from the element
    rounds: bool = False  # to the nearest integer

    @property
    def working(self) -> Type:
        return working_type(self.output if self.source.bits < 64 else self.source)

    @property
    def reach(self) -> tuple[int, int]:
        """How far before and behind an element phases read."""
        distances = [distance for phase in self.phases for distance in phase]
        return max(0, -min(distances)), max(0, *distances)

    @property
    def together(self) -> int:
        """Lines that are summed across at once, because they share what tables say of an element."""
        return 4 if self.across in ("elements", "lookup") and self.taps else 1


def _margin(spec: ResampleSpec, run: Any) -> Any:
    """Elements before a line that phases may read."""
    return run * spec.reach[0] if spec.across == "phases of runs" else MARGIN


def _room(target: Target, spec: ResampleSpec, line: Any, run: Any) -> Any:
    """Elements of scratch for a line of `line` elements in runs of `run` (numbers, or values of them).

    A lookup reads two registers from any of them on; phases read what is before and behind the line, too.
    """
    behind = run * spec.reach[1] if spec.across == "phases of runs" else 0
    lanes = target.lanes(spec.working)
    return (line + (_margin(spec, run) + behind + 4 * lanes - 1)) // lanes * lanes


def scratch_bytes(target: Target, spec: ResampleSpec, line: int, run: int) -> int:
    """A thread's own memory for lines of `line` elements in runs of `run`."""
    room: int = _room(target, spec, line, run)
    return 0 if spec.across in ("none", "pairs of runs") else spec.together * room * spec.working.nbytes


# Elements before a line, and at least as many behind it, that phases may read.
MARGIN = 16


class DownTaps(Record):
    """[lines of a plane, taps] both."""

    count = Size()  # taps
    places = Table(I64)  # bytes from the plane's start
    weights = Table(lambda spec: spec.working)


class AcrossTaps(Record):
    """Places count elements of the line: [places, taps] for runs, else [taps, elements of the output's line]; for a
    lookup they count from the base of their vector of the output. Phases have no places but weights, [phases, taps].
    """

    count = Size()  # taps
    places = Table(I32)
    weights = Table(lambda spec: spec.working)


class Arguments(Record):
    source = Read()
    output = Write()
    items = Size()  # lines
    per_chunk = Size()
    rows = Size()  # lines of a plane
    down = Group(DownTaps)
    line = Size()  # elements of a source's line
    across = Group(AcrossTaps)
    bases = Table(I64)
    width = Size()  # elements of an output's line
    run = Size()  # elements
    rank = Size()  # of the dimensions over planes
    outer = Rest()  # size and source stride of each of these


@kernel(Arguments)
def emit_resample(k: Function, a: Arguments, spec: ResampleSpec) -> None:
    """Lines of the result; those above each other in a plane share tables."""
    source = a.source
    output = Elements(a.output, spec.output, spec.working, rounds=spec.rounds)
    rows, line, width = a.rows, a.line, a.width
    down, across = _Taps(k, a.down, spec.down), _Taps(k, a.across, spec.taps)
    begin, end = share(k, a.items, a.per_chunk)
    run, bases = a.run, a.bases
    scratch = Elements(k.pointer("scratch", spec.working).offset(_margin(spec, run)), spec.working, spec.working)
    room = _room(k.target, spec, line, run)
    with runs(k, begin, end, rows) as (plane, first, last):
        (start,) = places(k, plane, a.outer, a.rank, 1)
        from_ = source.offset(start)
        whole = first + ((last - first) & -spec.together)
        for start_row, end_row, count in ((first, whole, spec.together), (whole, last, 1)):
            with k.loop(start_row, end_row, count) as row:
                to = [output.offset((plane * rows + row + index) * width) for index in range(count)]
                lines = to if spec.across == "none" else [scratch.offset(room * index) for index in range(count)]
                if spec.across == "pairs of runs":
                    _pairs_of_runs(k, spec, (down, across), from_, row, to[0], width, run)
                    continue
                for index, blended in enumerate(lines):
                    _blend(k, spec, down, from_, row + index, line, blended)
                if spec.across == "runs":
                    _across_runs(k, spec, across, lines[0], to[0], width, run)
                elif spec.across == "phases of runs":
                    _across_phases_of_runs(k, spec, across, lines[0], to[0], line, run)
                elif spec.across == "phases":
                    _across_phases(k, spec, across, lines[0], to[0], line)
                elif spec.across != "none":
                    _across_elements(k, spec, across, list(zip(lines, to, strict=True)), width, bases)
            if spec.together == 1:
                break


class _Taps:
    """How many taps there are, the table of their places and that of their weights."""

    def __init__(self, k: Function, a: DownTaps | AcrossTaps, count: int) -> None:
        self.unrolled = count
        self.count = k.constant(I64, count) if count else a.count
        self.places, self.weights = a.places, a.weights


def _summed(k: Function, taps: _Taps, wide: Type, term: Callable[[Tap], tuple[Value, Value]]) -> Value:
    """The sum over the taps of the two factors that `term` gives for each."""
    if taps.unrolled:
        return sum_of(k, [term(number) for number in range(taps.unrolled)])
    variable = k.variable(wide, 0)
    with k.loop(0, taps.count) as tap:
        value, weight = term(tap)
        variable.set(k.fma(value, weight, variable.get()))
    return variable.get()


def _blend(k: Function, spec: ResampleSpec, taps: _Taps, plane: Pointer, row: Value, line: Value, to: Elements) -> None:
    """The weighted sum of lines of the source."""
    first = row * taps.count
    lanes = k.target.lanes(spec.working)
    fixed = [
        (
            Elements(plane.offset(taps.places.load(first + tap)), spec.source, spec.working),
            taps.weights.load(first + tap),
        )
        for tap in range(taps.unrolled)
    ]

    def body(at: Value, width: int, mask: Value | None) -> None:
        def term(tap: Tap) -> tuple[Value, Value]:
            if isinstance(tap, int):
                elements, weight = fixed[tap]
            else:
                place = taps.places.load(first + tap)
                elements = Elements(plane.offset(place), spec.source, spec.working)
                weight = taps.weights.load(first + tap)
            return elements.load(at, width, mask), k.splat(weight, width)

        summed = _summed(k, taps, spec.working.vector(width), term)
        to.store(summed, at, mask if spec.across == "none" else None)  # whole vectors are soon read in scratch memory

    vector_loop(k, line, lanes, body)


def _across_runs(
    k: Function, spec: ResampleSpec, taps: _Taps, line: Elements, to: Elements, width: Value, run: Value
) -> None:
    """Each place of the output's line is a run of elements that have the same weights."""
    lanes = k.target.lanes(spec.working)
    with k.loop(0, width // run) as place:
        first = place * taps.count
        written = to.offset(place * run)
        fixed = [
            (line.offset(taps.places.load(first + tap).to(I64)), taps.weights.load(first + tap))
            for tap in range(taps.unrolled)
        ]

        def body(
            at: Value,
            count: int,
            mask: Value | None,
            first: Value = first,
            written: Elements = written,
            fixed: list[tuple[Elements, Value]] = fixed,
        ) -> None:
            def term(tap: Tap) -> tuple[Value, Value]:
                if isinstance(tap, int):
                    elements, weight = fixed[tap]
                else:
                    elements = line.offset(taps.places.load(first + tap).to(I64))
                    weight = taps.weights.load(first + tap)
                return elements.load(at, count, mask), k.splat(weight, count)

            written.store(_summed(k, taps, spec.working.vector(count), term), at, mask)

        vector_loop(k, run, lanes, body)


def _pairs_of_runs(
    k: Function,
    spec: ResampleSpec,
    taps: tuple[_Taps, _Taps],
    plane: Pointer,
    row: Value,
    to: Elements,
    width: Value,
    run: Value,
) -> None:
    """A line of runs, each the sum of two runs of sums down, which are made anew where they change."""
    down, across = taps
    lanes, first = k.target.lanes(spec.working), row * down.count
    lines = [
        (
            Elements(plane.offset(down.places.load(first + tap)), spec.source, spec.working),
            down.weights.load(first + tap),
        )
        for tap in range(down.unrolled)
    ]

    def body(at: Value, vectors: int, count: int, mask: Value | None) -> None:
        kind = spec.working.vector(count)
        left, right = ([k.variable(kind, 0) for _ in range(vectors)] for _ in range(2))
        before = [k.variable(I64, -1) for _ in range(2)]

        def sum_down(run: Value, into: Sequence[Variable]) -> None:
            for index, variable in enumerate(into):
                here = run + at + index * count
                variable.set(sum_of(k, [(line.load(here, count, mask), k.splat(one, count)) for line, one in lines]))

        with k.loop(0, width // run) as place:
            entry = place * across.count
            runs_ = [across.places.load(entry + side).to(I64) for side in range(2)]
            with k.when(runs_[0].differs(before[0].get()) | runs_[1].differs(before[1].get())):
                follows = runs_[0].equals(before[1].get())
                for variable, newer in zip(left, right, strict=True):
                    variable.set(newer.get())
                with k.otherwise(follows):
                    sum_down(runs_[0], left)
                sum_down(runs_[1], right)
                for variable, read in zip(before, runs_, strict=True):
                    variable.set(read)
            weights = [k.splat(across.weights.load(entry + side), count) for side in range(2)]
            written = to.offset(place * run + at)
            for index, sides in enumerate(zip(left, right, strict=True)):
                factors = [(side.get(), weight) for side, weight in zip(sides, weights, strict=True)]
                written.store(sum_of(k, factors), index * count, mask)

    blocked_loop(k, run, lanes, _UNROLL, body)


def _across_elements(
    k: Function,
    spec: ResampleSpec,
    taps: _Taps,
    lines: Sequence[tuple[Elements, Elements]],
    width: Value,
    bases: Pointer,
) -> None:
    """Each element of the output's lines has weights of its own, the same in all of these lines."""
    lanes = k.target.lanes(spec.working)

    def body(at: Value, count: int, mask: Value | None) -> None:
        looks_up = spec.across == "lookup" and count > 1
        base = bases.load(at // lanes) if spec.across == "lookup" else None

        def entry(tap: Tap) -> tuple[Value, Value]:
            place = width * tap + at
            return taps.places.load(place, count, mask), taps.weights.load(place, count, mask)

        shared = [entry(tap) for tap in range(taps.unrolled)]
        for line, to in lines:
            near = line if base is None else line.offset(base)
            halves = [near.load(half * lanes, lanes) for half in (0, 1)] if looks_up else []

            def term(tap: Tap, near: Elements = near, halves: Sequence[Value] = halves) -> tuple[Value, Value]:
                indices, weight = shared[tap] if isinstance(tap, int) else entry(tap)
                found = lookup(k, halves, indices) if looks_up else near.gather(indices, mask)
                return found, weight

            to.store(_summed(k, taps, spec.working.vector(count), term), at, mask)

    vector_loop(k, width, lanes, body)


def _across_phases(k: Function, spec: ResampleSpec, taps: _Taps, line: Elements, to: Elements, size: Value) -> None:
    """Every element of the line makes one element of each phase; beyond its ends the line goes on as it ends."""
    lanes, count = k.target.lanes(spec.working), len(spec.phases)
    distances = sorted({distance for phase in spec.phases for distance in phase})
    first, last = line.load(0), line.load(size - 1)
    for distance in range(1, 1 - distances[0]):
        line.store(first, -distance)
    for distance in range(distances[-1]):
        line.store(last, size + distance)
    weights = [
        [taps.weights.load(phase * taps.unrolled + tap) for tap in range(taps.unrolled)] for phase in range(count)
    ]

    def body(at: Value, width: int, mask: Value | None) -> None:
        near = {distance: line.load(at + distance, width) for distance in distances}
        made = []
        for phase, own in zip(spec.phases, weights, strict=True):

            def term(tap: Tap, phase: tuple[int, ...] = phase, own: Sequence[Value] = own) -> tuple[Value, Value]:
                assert isinstance(tap, int)
                return near[phase[tap]], k.splat(own[tap], width)

            made.append(_summed(k, taps, spec.working.vector(width), term))
        for index, vector in enumerate(interleaved(k, made) if width > 1 else made):
            place = at * count + index * width
            to.store(vector, place, None if mask is None else k.lanes_below(size * count - place, width))

    vector_loop(k, size, lanes, body)


def _across_phases_of_runs(
    k: Function, spec: ResampleSpec, taps: _Taps, line: Elements, to: Elements, size: Value, run: Value
) -> None:
    """Every run of the line makes one run of each phase; beyond its ends the line goes on with the runs at its ends."""
    lanes, count, (before, behind) = k.target.lanes(spec.working), len(spec.phases), spec.reach

    def repeat(at: Value, width: int, mask: Value | None) -> None:
        first, last = line.load(at, width, mask), line.load(size - run + at, width, mask)
        for distance in range(1, before + 1):
            line.store(first, at - run * distance, mask)
        for distance in range(behind):
            line.store(last, size + run * distance + at, mask)

    vector_loop(k, run, lanes, repeat)
    weights = [
        [taps.weights.load(phase * taps.unrolled + tap) for tap in range(taps.unrolled)] for phase in range(count)
    ]
    distances = sorted({distance for phase in spec.phases for distance in phase})
    with k.loop(0, size, run) as place:
        read, written = line.offset(place), to.offset(place * count)

        def body(
            at: Value,
            vectors: int,
            width: int,
            mask: Value | None,
            read: Elements = read,
            written: Elements = written,
        ) -> None:
            for index in range(vectors):
                here = at + index * width
                near = {distance: read.load(run * distance + here, width, mask) for distance in distances}
                for number, (phase, own) in enumerate(zip(spec.phases, weights, strict=True)):
                    factors = [(near[distance], k.splat(one, width)) for distance, one in zip(phase, own, strict=True)]
                    written.store(sum_of(k, factors), run * number + here, mask)

        blocked_loop(k, run, lanes, _UNROLL, body)

"""NonMaxSuppression: boxes that overlap better ones are dropped, class by class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.arguments import ErrorSlot, Read, Record, Size, Write, kernel
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.selection.positions import nothing
from sardonyx.compiler.kernels.selection.ranks import Ranking, Sorter, lanes_that, lowest_bit
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.types import BOOL, F32, I64, U8, U32
from sardonyx.compiler.llvm.walk import note
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.selection import checked_boxes

_INT64 = np.dtype(np.int64)
# The order of scores: NaN comes last, so opposite numbers are compared.
SCORES = Ranking(F32, largest=False)
_SIGN = 0x80000000


@dataclass(frozen=True)
class SuppressionSpec:
    """Boxes are given by `centers` and sizes, or by two corners; `scored`: there is a least score."""

    centers: bool
    scored: bool


class Arguments(Record):
    boxes = Read(F32)
    scores = Read(F32)
    overlap = Read(F32)
    least = Read(F32)  # score, if `scored`
    error = ErrorSlot()  # for the overlap
    kept = Write(I64)  # boxes, `most` for each class
    numbers = Write(I64)  # of them
    count = Size()  # boxes of a batch
    classes = Size()
    most = Size()


@kernel(Arguments)
def emit_suppression(k: Function, a: Arguments, spec: SuppressionSpec) -> None:
    """The boxes that are kept, best first, and their number; a chunk is one class of one batch.

    Scratch: entries of all boxes, four corners and the area of the
    boxes that are kept, each a vector longer than `most`, and memory to sort the entries.
    """
    all_boxes, all_scores = a.boxes, a.scores
    overlap = a.overlap.load(0)
    kept_boxes, numbers = a.kept, a.numbers
    count, classes, most = a.count, a.classes, a.most
    fine = (overlap >= 0.0) & (overlap <= 1.0)
    with k.otherwise(fine):
        note(k, a.error, k.constant(I64, 0))
    lanes = k.target.lanes(F32)
    entries = k.pointer("scratch", SCORES.entry)
    boxes = _Kept(k, entries.offset(count + lanes).cast(F32), most + lanes, lanes, overlap)
    sorter = Sorter(k, SCORES, boxes.end.aligned(64).cast(U8))
    with k.loop(k["begin"], k["end"]) as chunk:
        batch = chunk // classes
        scores = all_scores.offset(chunk * count)
        candidates = _candidates(k, a, spec, scores, count, entries)
        sorter.sort(entries, candidates)
        result = kept_boxes.offset(chunk * most)
        number, kept = k.variable(I64, 0), k.variable(I64, 0)
        with k.loop_while(
            lambda number=number, kept=kept, last=candidates: (number.get() < last) & (kept.get() < most)
        ):
            place = SCORES.place_in(entries.load(number.get()))
            number.set(number.get() + 1)
            box = _corners(k, spec, all_boxes.offset((batch * count + place) * 4))
            with k.otherwise(boxes.suppress(box, kept.get())):
                boxes.keep(box, kept.get())
                result.store(place, kept.get())
                kept.set(kept.get() + 1)
        numbers.store(kept.get(), chunk)


def _candidates(
    k: Function, a: Arguments, spec: SuppressionSpec, scores: Pointer, count: Value, entries: Pointer
) -> Value:
    """How many boxes have a score that is high enough; their entries are collected."""
    lanes = k.target.lanes(F32)
    limit = a.least.load(0) if spec.scored else None
    found = k.variable(I64, 0)

    def add(score: Value, place: Value) -> None:
        entries.store(SCORES.entry_of(k, SCORES.of(k, score.bits_as(U32) ^ _SIGN), place), found.get())
        found.set(found.get() + 1)

    whole = count & -lanes
    with k.loop(0, whole, lanes) as first:
        vector = scores.load(first, lanes)
        good = vector > limit if limit is not None else k.constant(BOOL.vector(lanes), True)
        chosen = lanes_that(k, good)
        with k.when(chosen.differs(0)):
            left = k.variable(I64, chosen)
            with k.loop_while(lambda: left.get().differs(0)):
                lane = lowest_bit(k, left.get())
                add(vector.lane(lane), first + lane)
                left.set(left.get() & (left.get() - 1))
    with k.loop(whole, count) as place:
        score = scores.load(place)
        with k.when(score > limit if limit is not None else k.constant(BOOL, True)):
            add(score, place)
    return found.get()


def _corners(k: Function, spec: SuppressionSpec, box: Pointer) -> list[Value]:
    """Low and high end of a box on both axes, and its area."""
    one, two, three, four = (box.load(place) for place in range(4))
    if spec.centers:  # x, y, width, height
        low_y, high_y = two - four * 0.5, two + four * 0.5
        low_x, high_x = one - three * 0.5, one + three * 0.5
    else:
        low_y, high_y = k.smaller(one, three), k.larger(one, three)
        low_x, high_x = k.smaller(two, four), k.larger(two, four)
    return [low_y, low_x, high_y, high_x, (high_y - low_y) * (high_x - low_x)]


class _Kept:
    """The boxes of a class that are kept so far: a vector of each corner."""

    def __init__(self, k: Function, room: Pointer, stride: Value, lanes: int, overlap: Value) -> None:
        self._k, self._lanes, self._overlap = k, lanes, overlap
        self._columns = [room.offset(stride * column) for column in range(5)]
        self.end = room.offset(stride * 5)

    def keep(self, box: list[Value], number: Value) -> None:
        for column, value in zip(self._columns, box, strict=True):
            column.store(value, number)

    def suppress(self, box: list[Value], number: Value) -> Value:
        """Whether one of the boxes that are kept overlaps a box too much."""
        k, lanes = self._k, self._lanes
        at, found = k.variable(I64, 0), k.variable(BOOL, False)
        spread = [k.splat(value, lanes) for value in box]
        with k.loop_while(lambda: (at.get() < number) & ~found.get()):
            first = at.get()
            low_y, low_x, high_y, high_x, area = (column.load(first, lanes) for column in self._columns)
            height = k.smaller(high_y, spread[2]) - k.larger(low_y, spread[0])
            width = k.smaller(high_x, spread[3]) - k.larger(low_x, spread[1])
            shared = k.larger(height, 0.0) * k.larger(width, 0.0)
            union = area + spread[4] - shared
            bad = (union > 0.0) & (shared / union > self._overlap)
            found.set(k.any_lane(bad & k.lanes_below(number - first, lanes)))
            at.set(first + lanes)
        return found.get()


@dataclass(frozen=True)
class TriplesSpec:
    """Rows of batch, class and box."""


class TriplesArguments(Record):
    kept = Read(I64)  # boxes, `most` for each class
    numbers = Read(I64)  # of them
    rows = Write(I64)
    total = Write(I64)  # how many there are
    classes = Size()
    groups = Size()  # classes of all batches
    most = Size()


@kernel(TriplesArguments)
def emit_triples(k: Function, a: TriplesArguments, spec: TriplesSpec) -> None:
    """The boxes of all classes one after the other. One chunk."""
    kept, numbers, rows, total = a.kept, a.numbers, a.rows, a.total
    classes, groups, most = a.classes, a.groups, a.most
    to = k.variable(I64, 0)
    with k.loop(0, groups) as group:
        batch = group // classes
        with k.loop(0, numbers.load(group)) as number:
            row = rows.offset(to.get() * 3)
            row.store(batch, 0)
            row.store(group - batch * classes, 1)
            row.store(kept.load(group * most + number), 2)
            to.set(to.get() + 1)
    total.store(to.get())


@template("non_max_suppression")
class NonMaxSuppression(NativeKernel):
    """Rows (batch, class, box) of boxes that overlap no better one of their class; ``centers`` says how boxes are
    given. How many of a class are kept must be known; the thresholds are read in the run.
    """

    known_inputs = (2,)
    counted_axes = (0,)

    def bind(
        self,
        binder: Binder,
        boxes: Tensor,
        scores: Tensor,
        limit: Tensor | None = None,
        overlap: Tensor | None = None,
        least: Tensor | None = None,
    ) -> Sequence[Tensor]:
        checked_boxes(boxes.shape, scores.shape)
        batches, classes, count = scores.shape
        groups = batches * classes
        asked = 0 if limit is None or limit.array is None else int(limit.array.reshape(-1)[0])
        most = min(max(asked, 0), count)
        if most * groups == 0:
            return [binder.new(_INT64, (0, 3)), nothing(binder)]
        boxes, scores = contiguous(binder, boxes), contiguous(binder, scores)
        zero = binder.constant(np.zeros(1, np.float32))
        overlap = zero if overlap is None else overlap
        kept, numbers = binder.new(_INT64, (groups, most)), binder.new(_INT64, (groups,))
        lanes = binder.target.lanes(F32)
        room = (count + lanes) * SCORES.entry.nbytes
        error = binder.fault(lambda _: ValueError("iou_threshold must lie in [0, 1]"))
        spec = SuppressionSpec(bool(self.parameters["centers"]), least is not None)
        binder.step(
            emit_suppression,
            spec,
            Arguments(
                boxes=boxes,
                scores=scores,
                overlap=overlap,
                least=least,
                error=error,
                kept=kept,
                numbers=numbers,
                count=count,
                classes=classes,
                most=most,
            ),
            chunks=groups,
            scratch=room + 20 * (most + lanes) + 64 + SCORES.sorting_bytes(count),
            flops=float(scores.size),
            detail=f"{groups} x {count} boxes",
        )
        rows, total = binder.new(_INT64, (groups * most, 3)), binder.new(_INT64, (1,))
        binder.step(
            emit_triples,
            TriplesSpec(),
            TriplesArguments(
                kept=kept, numbers=numbers, rows=rows, total=total, classes=classes, groups=groups, most=most
            ),
            nbytes=float(numbers.nbytes),
        )
        return [rows, total]

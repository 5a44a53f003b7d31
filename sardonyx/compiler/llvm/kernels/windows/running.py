"""Combinations of the lines of windows that follow each other, while line after line passes by.

What two windows share is combined once: lines are kept as runs of 1, 2, 4… of them, so that a window of n lines takes
about log n combinations, and as many values wait in registers as a window has lines besides its newest one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.kernels.rows.reducing import combined
from sardonyx.compiler.llvm.kernels.windows.folds import Combine
from sardonyx.compiler.llvm.types import Type

Combination = Callable[[Value, Value], Value]


def combination(k: Function, fold: Combine, *, careful: bool) -> Combination:
    """What combines two vectors; unless it is `careful`, extremes need not hand NaN on."""
    if careful:
        return lambda left, right: combined(k, fold.kind, left, right)
    return k.faster_larger if fold.kind == "maximum" else k.faster_smaller


class Running:
    """A vector of places: the combination of its last `taps` lines."""

    def __init__(self, k: Function, kind: Type, taps: int, combine: Combination) -> None:
        self.taps, self.combine = taps, combine
        self.lengths, kept = _lengths(taps)
        # Of runs of each length those that ended 1, 2… lines before.
        self.before = {length: [k.variable(kind) for _ in range(kept.get(length, 0))] for length in self.lengths}

    def begin(self, neutral: Value) -> None:
        """Before any line."""
        for variables in self.before.values():
            for variable in variables:
                variable.set(neutral)

    def line(self, value: Value) -> Value:
        """Take a line, and give the combination of the window that it ends."""
        runs: dict[int, Value] = {}
        for length in self.lengths:
            if length == 1:
                runs[length] = value
            elif length % 2:
                runs[length] = self.combine(self.before[length - 1][0].get(), value)
            else:
                half = length // 2
                runs[length] = self.combine(self.before[half][half - 1].get(), runs[half])
        for length, variables in self.before.items():
            newest = runs[length]
            for variable in variables:
                older = variable.get()
                variable.set(newest)
                newest = older
        return runs[self.taps]


class RunningPairs:
    """A vector of places: the combinations of its last `taps` lines, an odd number from 3 on, for two lines at a time.

    The windows that two lines end have all but one line each in common, whole pairs of lines: they are combined once,
    so that a window of 3 lines takes 1.5 combinations instead of 2, and one of 5 takes 2 instead of 3.
    """

    def __init__(self, k: Function, kind: Type, taps: int, combine: Combination) -> None:
        pairs = taps // 2
        self.combine, self._pairs = combine, Running(k, kind, pairs, combine)
        self._common = k.variable(kind)
        # The second lines of the last pairs.
        self._seconds = [k.variable(kind) for _ in range(pairs)]

    def begin(self, neutral: Value) -> None:
        """Before any line."""
        self._pairs.begin(neutral)
        for variable in (self._common, *self._seconds):
            variable.set(neutral)

    def lines(self, first: Value, second: Value) -> tuple[Value, Value]:
        """Take two lines, and give the combinations of the windows that they end."""
        ended = self.combine(self._common.get(), first)
        common = self._pairs.line(self.combine(first, second))
        self._common.set(common)
        newest = second
        for variable in self._seconds:
            older = variable.get()
            variable.set(newest)
            newest = older
        return ended, self.combine(newest, common)


def _lengths(taps: int) -> tuple[list[int], dict[int, int]]:
    """The lengths of the runs that a window of so many lines is made of, and how many of each wait for later lines."""
    lengths, kept = [taps], dict[int, int]()
    while lengths[-1] > 1:
        length = lengths[-1]
        shorter, lines = (length - 1, 1) if length % 2 else (length // 2, length // 2)
        kept[shorter] = max(kept.get(shorter, 0), lines)
        lengths.append(shorter)
    return lengths[::-1], kept


class Neighbours:
    """Windows along vectors of places that follow each other; beyond these there is what changes no combination.

    `vectors` lie at the places from `lead` behind the first tap of the first window on.
    """

    def __init__(
        self, k: Function, vectors: Sequence[Value], neutral: Value, combine: Combination, stride: int
    ) -> None:
        self.k, self.neutral, self.combine, self.stride = k, neutral, combine, stride
        self.lanes = neutral.type.lanes
        self.parts = [self._part(vectors, offset) for offset in range(stride)]
        self._made: dict[tuple[int, int, int, int], Value | None] = {}

    def windows(self, taps: int, lead: int, index: int) -> Value:
        """The windows of `taps` places of a vector of them, by its number."""
        total: Value | None = None
        for part in range(self.stride):
            shifts = [(tap - lead) // self.stride for tap in range(taps) if (tap - lead) % self.stride == part]
            if shifts:
                total = self._both(total, self._run(part, len(shifts), shifts[0], index))
        return self.neutral if total is None else total

    def _part(self, vectors: Sequence[Value], offset: int) -> list[Value]:
        """Every element that lies `offset` behind a multiple of the stride."""
        if self.stride == 1:
            return list(vectors)
        padded = [*vectors, *[self.neutral] * (-len(vectors) % self.stride)]
        lanes = [self.stride * lane + offset for lane in range(self.lanes)]
        return [self.k.shuffle(padded[at], padded[at + 1], lanes) for at in range(0, len(padded), self.stride)]

    def _both(self, left: Value | None, right: Value | None) -> Value | None:
        if left is None or right is None:
            return left if right is None else right
        return self.combine(left, right)

    def _run(self, part: int, length: int, shift: int, index: int) -> Value | None:
        """For each place of a vector the run of so many elements that begins `shift` behind it; None: nothing."""
        if index * self.lanes + shift >= len(self.parts[part]) * self.lanes:
            return None
        key = part, length, shift, index
        if key not in self._made:
            if length == 1:
                made = self._shifted(lambda at: self._element(part, at), shift, index)
            elif length % 2:
                rest, single = (shift + 1, shift) if shift < 0 else (shift, shift + length - 1)
                made = self._both(self._run(part, length - 1, rest, index), self._run(part, 1, single, index))
            else:
                half = length // 2
                later = self._shifted(lambda at: self._run(part, half, shift, at), half, index)
                made = self._both(self._run(part, half, shift, index), later)
            self._made[key] = made
        return self._made[key]

    def _element(self, part: int, index: int) -> Value | None:
        vectors = self.parts[part]
        return vectors[index] if 0 <= index < len(vectors) else None

    def _shifted(self, vector: Callable[[int], Value | None], shift: int, index: int) -> Value | None:
        """The elements that lie `shift` behind those of a vector."""
        whole, rest = divmod(shift, self.lanes)
        low = vector(index + whole)
        if rest == 0:
            return low
        high = vector(index + whole + 1)
        if low is None and high is None:
            return None
        low, high = (self.neutral if one is None else one for one in (low, high))
        return self.k.shuffle(low, high, range(rest, rest + self.lanes))

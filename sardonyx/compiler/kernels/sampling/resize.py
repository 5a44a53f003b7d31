"""Resize and Upsample: places and weights are worked out while binding, the kernels read them from tables.

The result lies in memory in the order in which the input does, so that a channels-last value stays one. Axes are
counted in that order here, the slowest one first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.kernels.sampling.nearest import by_tables
from sardonyx.compiler.kernels.sampling.repeat import by_factors
from sardonyx.compiler.kernels.sampling.resample import (
    MARGIN,
    MOST_UNROLLED,
    Across,
    AcrossTaps,
    Arguments,
    DownTaps,
    ResampleSpec,
    emit_resample,
    scratch_bytes,
)
from sardonyx.compiler.kernels.sampling.resized_strips import bind_resized_strips
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.lookup import has_lookup
from sardonyx.compiler.llvm.types import BOOL, F32, F64, type_of
from sardonyx.compiler.native.movement.copy import contiguous, copy_into
from sardonyx.compiler.native.movement.slices import part_of, spread, stored_order, transposed
from sardonyx.compiler.native.rows.rows import elements_per_chunk, laid_out
from sardonyx.graph.types import numpy_dtype
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.resize import AxisResize, Plan, ResampleRule, check_has_elements

# Factors of enlargement for which lines are made in phases.
_PHASES = (2, 4)
# Shorter lines than this are summed faster by lookups, where there are these: the ends of a line take their time.
_LONG_LINE = 64
# Elements and lines that come no more often than this are repeated by code that is written out for the factors.
_MOST_TIMES = 4
# Elements of so many bytes are repeated in registers, several at a time.
_LONGEST_VECTOR = 8


@template("resize")
class Resize(NativeKernel):
    """Parameters: the `rule`, the `plan` of the axes from shape and other inputs, and the inputs that it reads."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.rule: ResampleRule = parameters["rule"]
        self.plan: Plan = parameters["plan"]
        self.known_inputs = tuple(parameters["known"])
        self.writes_slices = self.reads_slices = self.rule.mode == "nearest" and not self.rule.crops

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        x = inputs[0]
        if x is None or x.dtype is None:
            return "the type of the input is not known before the run"
        if self.rule.mode != "nearest" and type_of(numpy_dtype(x.dtype)) in (None, BOOL):
            return f"no kernel for weighted sums of {numpy_dtype(x.dtype)}"
        return None

    def bind(self, binder: Binder, x: Tensor, *others: Tensor | None) -> Sequence[Tensor]:
        known = [
            tensor.array if tensor is not None and index in self.known_inputs else None
            for index, tensor in enumerate(others, 1)
        ]
        plan = self.plan(x.shape, *known)
        shape = [resize.output for resize in plan]
        if all(map(self.rule.keeps, plan)):
            return [x]
        check_has_elements(x.shape, shape)
        self.rule.require_memory(plan, x.dtype.itemsize)
        order = stored_order(x)
        result = self._result(binder, x, plan, order)
        if result.size:
            ordered, axes = transposed(x, order), [plan[axis] for axis in order]
            if self.rule.mode == "nearest":
                _nearest(binder, ordered, transposed(result, order), axes, self.rule)
            else:
                _weighted(binder, ordered, transposed(result, order), axes, self.rule)
            if self.rule.crops:
                _fill_outside(binder, result, plan, self.rule)
        return [result]

    def _result(self, binder: Binder, x: Tensor, plan: Sequence[AxisResize], order: tuple[int, ...]) -> Tensor:
        """A new value in this order: perhaps a slice of a Concat's result, where channels are repeated."""
        shape, rank = [resize.output for resize in plan], len(plan)
        dense = laid_out(binder, x.dtype, shape, order)
        if not binder.slices or rank < 4 or order != (0, *range(2, rank), 1):
            return dense
        if x.strides[1] != 1 or x.shape[1] * x.dtype.itemsize <= _LONGEST_VECTOR:
            return dense
        *outer, down, across, channels = [
            1 if self.rule.keeps(plan[axis]) else _factor(x.shape[axis], self.rule.positions(plan[axis]))
            for axis in order
        ]
        repeats = 1 <= down <= _MOST_TIMES and 1 <= across <= _MOST_TIMES and not self.rule.keeps(plan[-1])
        if {*outer, channels} != {1} or not repeats:
            return dense
        last = binder.result(0, x.dtype, [shape[axis] for axis in order])
        return transposed(last, (0, rank - 1, *range(1, rank - 1)))


def _fill_outside(binder: Binder, result: Tensor, plan: Sequence[AxisResize], rule: ResampleRule) -> None:
    """Write the value of places outside of the input over what lies there: a run at each end of an axis."""
    value = binder.constant(np.array(rule.extrapolation_value).astype(result.dtype))
    for axis, resize in enumerate(plan):
        outside = rule.outside(resize)
        edges = np.flatnonzero(np.diff(outside, prepend=False, append=False))
        for first, last in edges.reshape(-1, 2).tolist():
            room = part_of(result, axis, first, last - first)
            copy_into(binder, spread(value, room.shape), room)


def _nearest(binder: Binder, x: Tensor, result: Tensor, plan: Sequence[AxisResize], rule: ResampleRule) -> None:
    """Copies of elements, or of runs of them that no axis touches."""
    positions = [
        np.arange(resize.length) if rule.keeps(resize) else rule.positions(resize) for resize in plan
    ]  # by axis, what each place of the output reads
    run, axes = 1, len(plan)
    while rule.keeps(plan[axes - 1]) and (x.strides[axes - 1] == run or plan[axes - 1].length == 1):
        run *= plan[axes - 1].length
        axes -= 1
    while axes < 2:  # a line, and lines of a plane
        x, axes = x.reshaped((1, *x.shape), (0, *x.strides)), axes + 1
        positions = [np.zeros(1, np.intp), *positions]
    *outer, down, across = [_factor(x.shape[axis], positions[axis]) for axis in range(axes)]
    adjacent = x.strides[axes - 1] == run or run * x.dtype.itemsize > _LONGEST_VECTOR
    if all(times == 1 for times in outer) and 1 <= down <= _MOST_TIMES and 1 <= across <= _MOST_TIMES and adjacent:
        by_factors(binder, x, result, axes, down, across)
        return
    if all(times == 1 for times in outer) and run == 1 and x.dtype == np.float32:
        taps = [(places[:, None], np.ones((len(places), 1))) for places in positions[axes - 2 : axes]]
        if bind_resized_strips(binder, x, result, axes - 2, *taps):
            return
    by_tables(binder, x, result, positions[:axes], run)


def _factor(length: int, positions: Array) -> int:
    """How often each element comes, where all come in order and equally often; else 0."""
    times = len(positions) // max(1, length)
    regular = times * length == len(positions) and bool((positions == np.arange(len(positions)) // times).all())
    return times if regular else 0


def _weighted(binder: Binder, x: Tensor, result: Tensor, plan: Sequence[AxisResize], rule: ResampleRule) -> None:
    """Weighted sums along one axis after the other; along the last two of them together where they are neighbours."""
    rank, left = len(plan), [axis for axis, resize in enumerate(plan) if not rule.keeps(resize)]
    working = np.dtype(np.float64 if x.dtype == np.float64 else np.float32)
    while left:
        now = left if len(left) == 2 and left[1] == left[0] + 1 else left[:1]
        left = left[len(now) :]
        shape = [plan[axis].output if axis in now else size for axis, size in enumerate(x.shape)]
        made = binder.new(working, shape) if left else result
        taps = [rule.taps(plan[axis]) for axis in now]
        dense, rounds = _dense_behind(binder, x, now[0]), rule.rounds(made.dtype)
        if now != [rank - 2, rank - 1] or not bind_resized_strips(binder, dense, made, now[0], *taps, rounds=rounds):
            _Sums(binder, dense, made, now[0], rounds=rounds).add(*taps)
        x = made


def _dense_behind(binder: Binder, x: Tensor, axis: int) -> Tensor:
    """The value, copied where the elements of a place on the axis do not lie together."""
    inner = x.reshaped(x.shape[axis + 1 :], x.strides[axis + 1 :])
    return x if inner.is_contiguous else contiguous(binder, x)


Taps = tuple[Array, Array]


class _Sums:
    """A step that sums along an axis of `x`, or along that and the next one; `x` is dense behind the axis."""

    def __init__(self, binder: Binder, x: Tensor, result: Tensor, axis: int, *, rounds: bool) -> None:
        self.binder, self.x, self.result, self.axis, self.rounds = binder, x, result, axis, rounds
        self.working = np.dtype(np.float64 if x.dtype == np.float64 else np.float32)
        self.lanes = binder.target.lanes(F64 if x.dtype == np.float64 else F32)

    def add(self, first: Taps, second: Taps | None = None) -> None:
        """Add the step for the taps of the axis, and of the next one."""
        inner = math.prod(self.x.shape[self.axis + 1 :])
        if second is not None:
            self._step(first, inner, second, inner // self.x.shape[self.axis + 1])
        elif inner >= self.lanes // 2:
            self._step(first, inner)
        else:  # lines along the axis itself, because those behind it are short
            if self.x.strides[self.axis] != inner:
                self.x = contiguous(self.binder, self.x)
            itself = np.zeros((1, 1), np.intp), np.ones((1, 1))
            self._step(itself, self.x.shape[self.axis] * inner, first, inner)

    def _step(self, down: Taps, line: int, across: Taps | None = None, run: int = 1) -> None:
        """Lines of `line` elements, summed by the taps down; then, in runs of `run` elements, by those across."""
        binder, x, result = self.binder, self.x, self.result
        item = x.dtype.itemsize
        places, weights = down
        outer = range(self.axis - 1, -1, -1)
        items = math.prod(x.shape[: self.axis]) * len(places)
        width = result.size // items
        looks_up = self.working == np.float32 and has_lookup(binder.target)
        in_phases = run >= self.lanes // 2 if run > 1 else not (looks_up and line < _LONG_LINE)
        in_pairs = run > 1 and in_phases and across is not None and across[0].shape[1] == 2
        in_pairs = in_pairs and _unrolled(places.shape[1]) > 0
        phases = _phases(across, line // run) if across is not None and in_phases and not in_pairs else None
        kind, unrolled, tables, bases = self._across(across, run, width, phases)
        kind = "pairs of runs" if in_pairs else kind
        source, output = type_of(x.dtype), type_of(result.dtype)
        assert source is not None
        assert output is not None
        spec = ResampleSpec(
            *(source, output, _unrolled(places.shape[1]), kind, unrolled, phases.distances if phases else ()),
            self.rounds,
        )
        flops = 2.0 * (line * places.shape[1] + (0 if across is None else width * across[0].shape[1]))
        per_chunk = elements_per_chunk(items, line * item + width * result.dtype.itemsize, int(flops))
        binder.step(
            emit_resample,
            spec,
            Arguments(
                source=x,
                output=result,
                items=items,
                per_chunk=per_chunk,
                rows=len(places),
                down=DownTaps(
                    count=places.shape[1],
                    places=self._table(places * x.strides[self.axis] * item, np.int64),
                    weights=self._table(weights, self.working),
                ),
                line=line,
                across=tables,
                bases=bases,
                width=width,
                run=run,
                rank=self.axis,
                outer=[number for axis in outer for number in (x.shape[axis], x.strides[axis] * item)],
            ),
            chunks=-(-items // per_chunk),
            scratch=scratch_bytes(binder.target, spec, line, run),
            flops=flops * items,
            detail=f"{items} lines of {line} to {width} elements, {kind} across",
        )

    def _across(
        self, taps: Taps | None, run: int, width: int, phases: _Phases | None
    ) -> tuple[Across, int, AcrossTaps, Tensor | None]:
        """How lines are summed across, the taps to unroll, their tables, and the bases."""
        if taps is None:
            return "none", 0, AcrossTaps(count=0, places=None, weights=None), None
        places, weights = taps
        count = places.shape[1]
        if phases is not None:
            kind: Across = "phases" if run == 1 else "phases of runs"
            of_phases = self._table(phases.weights, self.working)
            return kind, count, AcrossTaps(count=count, places=None, weights=of_phases), None
        if run >= self.lanes // 2:
            tables = AcrossTaps(
                count=count, places=self._table(places * run, np.int32), weights=self._table(weights, self.working)
            )
            return "runs", _unrolled(count), tables, None
        # Every element of a run has its own entry; by taps, so that neighbours in the output are neighbours here.
        places = (places.T[:, :, None] * run + np.arange(run)).reshape(count, width)
        weights = np.repeat(weights.T, run, axis=1)
        bases = np.minimum.reduceat(places.min(axis=0), np.arange(0, width, self.lanes))
        # What was stored a moment ago is read soonest as it was stored, in whole vectors.
        for at in (bases - bases % self.lanes, bases):
            near = places - np.repeat(at, self.lanes)[:width]
            if near.max() < 2 * self.lanes:
                bases = at
                break
        looks_up = self.working == np.float32 and has_lookup(self.binder.target) and near.max() < 2 * self.lanes
        chosen = near if looks_up else places
        tables = AcrossTaps(
            count=count, places=self._table(chosen, np.int32), weights=self._table(weights, self.working)
        )
        starts = self._table(bases, np.int64) if looks_up else None
        return "lookup" if looks_up else "elements", _unrolled(count), tables, starts

    def _table(self, numbers: Array, dtype: Any) -> Tensor:
        return self.binder.constant(np.ascontiguousarray(numbers, dtype))


@dataclass(frozen=True)
class _Phases:
    """The elements that each element of a line makes: how far away their taps are, and the weights of these."""

    distances: tuple[tuple[int, ...], ...]
    weights: Array


def _phases(taps: Taps, size: int) -> _Phases | None:
    """Those of a line of `size` elements, where all elements have the same ones; the line goes on as it ends."""
    places, weights = taps
    count, rest = divmod(len(places), size)
    if rest or count not in _PHASES or places.shape[1] > MOST_UNROLLED:
        return None
    middle = slice(size // 2 * count, (size // 2 + 1) * count)
    distances = places[middle] - size // 2
    alike = np.clip(np.tile(distances, (size, 1)) + np.repeat(np.arange(size), count)[:, None], 0, size - 1)
    if np.abs(distances).max() >= MARGIN or (alike != places).any():
        return None
    if (np.tile(weights[middle], (size, 1)) != weights).any():
        return None
    return _Phases(tuple(map(tuple, distances.tolist())), weights[middle])


def _unrolled(taps: int) -> int:
    """The number of taps that the kernel is written for; 0 for a loop over them."""
    return taps if taps <= MOST_UNROLLED else 0

"""How many items of a batch to do at a time, in each part of a segment.

The maps of one image fit into caches that those of a whole batch run out of, so that layers with large maps want few
items at a time. Layers with many constants want many: constants come anew in each round. So a segment is cut into
parts that do their rounds one after the other, with room for the batch between them. Parts and items are those of
the least sum of what moving values, constants and the batch between two parts takes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sardonyx.compiler.binding import BoundStep
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.native.convolution.algorithm import rates
from sardonyx.light_dataclass import dataclass

# Kernels read and write values line by line, far ahead of their arithmetic: they move so many times what the scattered
# copies do of which `Rates` tells. Fitted to the steps of ResNet-50, MobileNetV2 and EfficientNet-B0 with 1, 2, 4 and 8
# items at a time, on the machine that has the rates' defaults: 192, 121 and 45 bytes in a nanosecond.
_STREAMED = 3.2
# Constants that come from memory in each round are hidden behind the arithmetic only while nobody else reads it: other
# threads do, which together finish it sooner. A part of the bandwidth is counted on, for any number of threads.
_SHARERS = 2
# What a step costs besides: to be found and to begin, rows of products that fill no tile, a meeting of the threads.
_STEP_NS = 2000.0
# What rounds must save of the estimated time of a batch that is done as a whole.
_LEAST_GAIN = 0.03
# What cutting a part in two must save of the whole: one more is one more to bind, with room for the batch before it.
_LEAST_GAIN_OF_CUT = 0.003
# Steps of all rounds of a plan, at most: its tables are a few hundred bytes for each.
MOST_STEPS = 1 << 15
# Divisors of a batch are looked for up to here, and so are the others that belong to them.
_LARGEST_DIVISOR = 64


@dataclass(frozen=True, slots=True)
class Part:
    """Operations from `start` to before `end` that do `few` items at a time."""

    start: int
    end: int
    few: int


@dataclass(slots=True)
class Load:
    """What an operation touches: bytes of one item's values in each of its steps, and of constants; operations too."""

    values: list[int]
    constants: float = 0.0
    flops: float = 0.0

    def add(self, step: BoundStep) -> None:
        """Count a step for one item."""
        self.values.append(sum(tensor_bytes for kind, tensor_bytes in _touched(step) if kind != "constant"))
        self.constants += sum(tensor_bytes for kind, tensor_bytes in _touched(step) if kind == "constant")
        self.flops += step.flops


def _touched(step: BoundStep) -> list[tuple[str, int]]:
    """Kind and bytes of all that a step reads and writes."""
    return [(one.buffer.kind, min(one.nbytes, one.buffer.nbytes)) for one in (*step.reads, *step.writes)]


def choose(loads: Sequence[Load], cuts: Mapping[int, int], batch: int, target: Target) -> list[Part]:
    """The parts of a segment for a batch, in order; one part of all items where rounds do not pay.

    `loads` are those of the operations, `cuts` tells of each operation before which the segment can be cut how many
    bytes of one item are needed behind it.
    """
    cost = _Cost(target, batch, loads)
    sizes = _candidates(batch, MOST_STEPS // max(1, sum(len(load.values) for load in loads)))
    best = {few: _Way(0.0, ((0, few),)) for few in sizes}
    for index, load in enumerate(loads):
        if index in cuts:
            ways = best.values()
            best = {few: min(way.on(index, few, cuts[index], cost) for way in ways) for few in sizes}
        best = {few: _Way(way.time + cost.of(load, few), way.parts) for few, way in best.items()}
    least = min(best.values())
    if least.time >= (1 - _LEAST_GAIN) * cost.whole:
        return [Part(0, len(loads), batch)]
    ends = [*(start for start, _ in least.parts[1:]), len(loads)]
    return [Part(start, end, few) for (start, few), end in zip(least.parts, ends, strict=True)]


class _Way(NamedTuple):
    """How to do the operations so far: the time it takes, where parts begin and how many items they do."""

    time: float
    parts: tuple[tuple[int, int], ...]

    def on(self, index: int, few: int, crossing: int, cost: _Cost) -> _Way:
        """The same way with `few` items from operation `index` on, behind which so many bytes of an item are needed."""
        before = self.parts[-1][1]
        if before == few:
            return self
        return _Way(self.time + cost.between(crossing, before, few), (*self.parts, (index, few)))


def _candidates(batch: int, most_rounds: int) -> list[int]:
    """Numbers of items to consider: small ones and large ones that divide the batch, and powers of two, which leave a
    rest; those that need no more rounds than that."""
    powers = itertools.takewhile(lambda few: few < batch, (1 << bit for bit in itertools.count()))
    divisors = [few for few in range(1, min(batch, _LARGEST_DIVISOR) + 1) if batch % few == 0]
    found = {batch, *powers, *divisors, *(batch // few for few in divisors)}
    return sorted(few for few in found if few == batch or batch // few < most_rounds)


class _Cost:
    """Nanoseconds that one thread takes, roughly."""

    def __init__(self, target: Target, batch: int, loads: Sequence[Load]) -> None:
        moved = rates()
        self._caches = target.caches
        self._levels = tuple(_STREAMED * rate for rate in (moved.l2, moved.l3, moved.memory))
        self._flops = moved.flops(target)
        self._batch = batch
        constants = sum(load.constants for load in loads)
        self._constant_rate = self._rate(constants) / (1 if self._stays(constants) else _SHARERS)
        self.whole = sum(self.of(load, batch) for load in loads)

    def of(self, load: Load, few: int) -> float:
        """Of an operation, in all rounds."""
        rounds, rest = divmod(self._batch, few)
        return rounds * self._round(load, few) + (self._round(load, rest) if rest else 0.0)

    def _round(self, load: Load, count: int) -> float:
        """Of an operation for so many items. Constants are asked for ahead, so that they come behind the arithmetic."""
        values = sum(count * nbytes / self._rate(count * nbytes) for nbytes in load.values)
        arithmetic = count * load.flops / self._flops
        return values + max(arithmetic, load.constants / self._constant_rate) + _STEP_NS * len(load.values)

    def between(self, nbytes: int, before: int, after: int) -> float:
        """Of writing and reading the values between two parts where those of all items lie."""
        far = 2 / self._rate(self._batch * nbytes) - 1 / self._rate(before * nbytes) - 1 / self._rate(after * nbytes)
        return self._batch * nbytes * max(0.0, far) + _LEAST_GAIN_OF_CUT * self.whole

    def _rate(self, nbytes: float) -> float:
        """Bytes in a nanosecond of what comes again after so many others.

        The last level is shared with whatever else runs: a third of it is counted on, as convolutions do.
        """
        near, far, memory = self._levels
        if nbytes <= self._caches.l2:
            return near
        return far if self._stays(nbytes) else memory

    def _stays(self, nbytes: float) -> bool:
        """Whether so many bytes stay in the last level."""
        return nbytes <= self._caches.l3 / 3

"""The sizes between the least and the largest shapes of a profile that a model takes.

Dimensions of one name have one size. Which of the others go together follows from the model alone, as that a mask is as
long as a past and what is new together: how sizes may change is found by asking the model whether it takes shapes in
which one of them has changed, or two, or all, by 1, 2, 4 and so on. What it takes are then all sizes that such changes
lead to from the usual ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.api.building.signature import Declared
from sardonyx.api.engines.shape_profiles import LARGEST, LEAST, USUAL, Profile, Shape
from sardonyx.light_dataclass import dataclass

Shapes = Mapping[str, Shape]
# Whether the model takes such shapes.
Takes = Callable[[Shapes], bool]

# How far one size is changed at most to find out whether the model takes others: convolutional ones often take
# multiples of 32 only.
_LARGEST_STEP = 64
# How often a model is asked for one profile; and combinations of sizes that are looked at one by one.
_MOST_QUESTIONS = 160
_MOST_POINTS = 1 << 22


@dataclass(frozen=True)
class _Size:
    """A size that varies, and the inputs and axes that have it."""

    least: int
    usual: int
    largest: int
    places: list[tuple[str, int]]


class SizeRanges:
    """The sizes of one profile for the inputs of a model; `takes` asks the model."""

    def __init__(self, profile: Profile, inputs: Sequence[Declared], takes: Takes) -> None:
        self._profile = profile
        self._sizes = _sizes(profile, inputs)
        self._questions = 0
        self._takes = takes
        self._ways = self._find_ways()
        self._turns = [self._turns_of(way) for way in self._ways]

    @property
    def is_one(self) -> bool:
        """Whether there is no other size than the usual one."""
        return not self._sizes

    def count(self) -> int:
        """How many sizes there are; where these are very many, with some that the model does not take."""
        product = int(np.prod([float(len(turns)) for turns in self._turns]))
        return product if product > _MOST_POINTS else len(self._points(self._turns))

    def chosen(self, most: int) -> list[Shapes]:
        """The shapes for all of them. Of more than `most`, first of the dimensions with the fewest sizes only the
        powers of two, the usual and the outermost ones, then of others only every second, fourth, and so on.

        Round sizes come first.
        """
        turns = list(self._turns)
        order = sorted(range(len(turns)), key=lambda index: len(turns[index]))
        for index in order[:-1]:
            if self._fits(turns, most):
                break
            turns[index] = [turn for turn in turns[index] if self._is_round(index, turn)]
        stride = 2
        while not self._fits(turns, most) and order:
            last = order[-1]
            turns[last] = [turn for turn in self._turns[last] if turn % stride == 0 or turn in self._ends(last)]
            if stride > 2 * len(self._turns[last]):
                break
            stride *= 2
        if not self._fits(turns, most):
            return []
        points = self._points(turns).tolist()
        return list(map(self._shapes, sorted(points, key=self._oddness)))

    def nearest(self, most: int) -> list[Shapes]:
        """The shapes for `most` sizes at most to which one way leads from the usual ones: all of each way, or, of too
        many, every second, fourth, and so on."""
        stride, lines = 1, [list(turns) for turns in self._turns]
        while sum(map(len, lines)) + 1 > most and stride <= 2 * max(map(len, self._turns)):
            stride *= 2
            lines = [[turn for turn in turns if turn % stride == 0] for turns in self._turns]
        usual = [[0] for _ in lines]
        points = [
            point
            for index, line in enumerate(lines)
            for point in self._points([*usual[:index], line, *usual[index + 1 :]]).tolist()
        ]
        distinct = sorted(dict.fromkeys(map(tuple, points)), key=self._oddness)
        return list(map(self._shapes, distinct[:most]))

    def _fits(self, turns: Sequence[Sequence[int]], most: int) -> bool:
        product = int(np.prod([float(len(one)) for one in turns]))
        return product <= most or (product <= _MOST_POINTS and len(self._points(turns)) <= most)

    def _oddness(self, sizes: Sequence[int]) -> int:
        """The less, the larger the power of two that all sizes are multiples of which the model takes others of."""
        moving = {index for way in self._ways for index in way}
        return -min((sizes[index] & -sizes[index] for index in moving), default=0)

    def _find_ways(self) -> list[dict[int, int]]:
        """How sizes change from one that the model takes to the next: by how much which of them."""
        indices = range(len(self._sizes))
        ways: list[dict[int, int]] = []

        def try_all(groups: Iterator[tuple[int, ...]]) -> set[int]:
            found: set[int] = set()
            for group in groups:
                way = self._way(group)
                if way is not None:
                    ways.append(way)
                    found.update(group)
            return found

        alone = try_all((index,) for index in indices)
        left = [index for index in indices if index not in alone]
        paired = try_all(itertools.combinations(left, 2))
        rest = [index for index in left if index not in paired]
        if len(rest) > 2:
            try_all(iter([tuple(rest)]))
        return ways

    def _way(self, group: tuple[int, ...]) -> dict[int, int] | None:
        """The smallest step that all sizes of a group can take together."""
        step = 1
        while step <= _LARGEST_STEP:
            for sign in (1, -1):
                moved = [one.usual for one in self._sizes]
                for index in group:
                    moved[index] += sign * step
                pairs = zip(moved, self._sizes, strict=True)
                if all(one.least <= size <= one.largest for size, one in pairs):
                    self._questions += 1
                    if self._questions > _MOST_QUESTIONS:
                        return None
                    if self._takes(self._shapes(moved)):
                        return dict.fromkeys(group, step)
                    break
            step *= 2
        return None

    def _turns_of(self, way: Mapping[int, int]) -> list[int]:
        """How often one may go a way from the usual sizes, backwards where the number is negative."""
        sizes = [(self._sizes[index], step) for index, step in way.items()]
        first = max(-((one.usual - one.least) // step) for one, step in sizes)
        last = min((one.largest - one.usual) // step for one, step in sizes)
        return list(range(first, last + 1))

    def _ends(self, index: int) -> tuple[int, ...]:
        turns = self._turns[index]
        return turns[0], 0, turns[-1]

    def _is_round(self, index: int, turn: int) -> bool:
        place, step = next(iter(self._ways[index].items()))
        size = self._sizes[place].usual + turn * step
        return turn in self._ends(index) or size & (size - 1) == 0

    def _points(self, turns: Sequence[Sequence[int]]) -> Any:
        """The sizes after these turns of all ways, as rows: those that lie in the ranges."""
        usual = np.array([one.usual for one in self._sizes], np.int64)
        steps = np.zeros((len(self._ways), len(self._sizes)), np.int64)
        for number, way in enumerate(self._ways):
            steps[number, list(way)] = list(way.values())
        mesh = np.meshgrid(*[np.array(one, np.int64) for one in turns], indexing="ij")
        points = usual + np.stack([one.reshape(-1) for one in mesh], axis=1) @ steps if mesh else usual[None]
        least = np.array([one.least for one in self._sizes], np.int64)
        largest = np.array([one.largest for one in self._sizes], np.int64)
        return np.unique(points[((points >= least) & (points <= largest)).all(axis=1)], axis=0)

    def _shapes(self, sizes: Sequence[int]) -> Shapes:
        shapes = {name: list(three[USUAL]) for name, three in self._profile.shapes.items()}
        for size, one in zip(sizes, self._sizes, strict=True):
            for name, axis in one.places:
                shapes[name][axis] = size
        return {name: tuple(shape) for name, shape in shapes.items()}


def _sizes(profile: Profile, inputs: Sequence[Declared]) -> list[_Size]:
    """The sizes of a profile that vary; dimensions of one name and one range are one."""
    dims = {value.name: value.dims for value in inputs}
    found: dict[tuple[Any, int, int, int], list[tuple[str, int]]] = {}
    for name, three in profile.shapes.items():
        named = dims.get(name) or (None,) * len(three[USUAL])
        for axis, dim in enumerate(named):
            least, usual, largest = three[LEAST][axis], three[USUAL][axis], three[LARGEST][axis]
            if least != largest:
                known = dim if isinstance(dim, str) else (name, axis)
                found.setdefault((known, least, usual, largest), []).append((name, axis))
    return [_Size(least, usual, largest, places) for (_, least, usual, largest), places in found.items()]

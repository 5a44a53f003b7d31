"""Decision trees in the form in which kernels walk them.

Every branch becomes "go to the second of two neighbours where key < threshold, else to the first". A key is a feature
as an unsigned integer of the same order; NaN is the lowest or the highest key, each feature having a column for either,
so that a branch that NaN shall take needs no test of its own. A leaf is a branch that is never taken, back to itself.

Neighbours lie close to their parents: a cache line holds a pair of nodes with the two pairs below it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sardonyx.ops.framework.operator import Array
from sardonyx.ops.ml.forest import LEAF, MODES, Forest

# Walks that advance side by side; a column of keys has this many rows.
WALKS = 8
# Nodes of 8 bytes that a cache line holds.
_LINE = 8

_NARROW = np.dtype([("feature", np.uint16), ("step", np.int16), ("threshold", np.uint32)])
_WIDE = np.dtype([("feature", np.int32), ("step", np.int32), ("threshold", np.uint64)])


@dataclass(frozen=True)
class PackedForest:
    """Trees as tables.

    `nodes`: records of 8 bytes, or of 16 where keys have 64 bits: the offset of a key's column, how many nodes further
    on the first neighbour is, the threshold (a leaf's: what it holds). `roots` (trees, 2): the number of a tree's root
    and its depth; whole groups of `WALKS` trees, of which those behind `trees` hold nothing. `columns`: the features of
    the keys; the first `high` have NaN as the highest key, the others as the lowest.
    A leaf holds its weight (float32 or float64), or with `entries` the number of the first of its entries and theirs.
    """

    wide: bool
    nodes: Array
    roots: Array
    trees: int
    columns: Array
    high: int
    entries: bool
    first: Array  # the first entry of each leaf, and the end of the last one's
    target: Array
    weight: Array


def keys_of(values: Array) -> Array:
    """Floats as unsigned integers in the same order, zeros of both signs alike; NaN is the highest."""
    values = values + values.dtype.type(0)
    unsigned = np.dtype(f"u{values.dtype.itemsize}")
    bits = values.view(unsigned)
    top = unsigned.type(1 << (8 * values.dtype.itemsize - 1))
    keys = np.where(bits & top, ~bits, bits | top)
    keys[np.isnan(values)] = np.iinfo(unsigned).max
    return keys


def packed(forest: Forest, *, wide: bool, entries: bool) -> PackedForest:
    """The tables of a forest, trees in the order of their depths; ValueError where nodes form a circle.

    Keys are those of float32, or of float64 in the wide form, which is also taken where offsets need more room.
    `entries` must be set unless every leaf has one weight that the form holds exactly.
    """
    _check_ends(forest)
    packing = _Packing(forest, wide=wide, entries=entries)
    if not packing.fits:
        packing = _Packing(forest, wide=True, entries=entries)
    return packing.result()


def _check_ends(forest: Forest) -> None:
    """ValueError where a walk from a root might never end."""
    reached = np.unique(forest.roots)
    children = forest.children.reshape(-1, 2)
    for _ in range(len(forest.mode) + 1):
        reached = np.unique(children[reached[forest.mode[reached] != LEAF]])
        if not reached.size:
            return
    raise ValueError("the nodes of a tree form a circle")


class _Split(NamedTuple):
    """A branch of the packed form; `low` and `high` are splits, or numbers of the forest's nodes."""

    column: tuple[int, bool]  # the feature, and whether NaN is the lowest
    threshold: int
    high: int | _Split  # what follows where the key is not below the threshold
    low: int | _Split


class _Packing:
    """Places the trees of a forest one after the other."""

    def __init__(self, forest: Forest, *, wide: bool, entries: bool) -> None:
        self._wide, self._entries, self._forest = wide, entries, forest
        self._splits = _splits(forest, wide=wide)
        self._in_line = _LINE // 2 if wide else _LINE
        # The packed nodes, as parallel lists: a column, how far the first neighbour is, the threshold, and of which
        # node of the forest it is the leaf (-1: of none).
        self._column: list[tuple[int, bool] | None] = []
        self._step: list[int] = []
        self._threshold: list[int] = []
        self._leaf: list[int] = []
        self._placed: dict[int, int] = {}
        self._roots = [self._tree(root) for root in forest.roots.tolist()]
        self._nothing = self._new(1)
        names = {name for name in self._column if name is not None}
        self._names = sorted(names, key=lambda name: (name[1], name[0]))

    @property
    def fits(self) -> bool:
        """Whether the fields of the form hold every offset."""
        if self._wide:
            return True
        return WALKS * len(self._names) < 1 << 16 and max(map(abs, self._step)) < 1 << 15

    def result(self) -> PackedForest:
        """The tables."""
        place: dict[tuple[int, bool] | None, int] = {name: WALKS * rank for rank, name in enumerate(self._names)}
        place[None] = WALKS * len(self._names)  # a column of the highest key: below no threshold
        nodes = np.zeros(len(self._step), _WIDE if self._wide else _NARROW)
        nodes["feature"] = [place[name] for name in self._column]
        nodes["step"] = self._step
        nodes["threshold"] = self._threshold
        heights = self._heights()[self._roots]
        order = np.argsort(heights, kind="stable")
        padding = [(self._nothing, 0)] * (-len(order) % WALKS)
        roots = np.stack([np.array(self._roots, np.int64)[order], heights[order]], axis=1).tolist() + padding
        first, target, weight = self._leaves(nodes)
        return PackedForest(
            wide=self._wide,
            nodes=nodes,
            roots=np.array(roots, np.int64).reshape(-1, 2),
            trees=len(order),
            columns=np.array([feature for feature, _ in self._names], np.int64),
            high=sum(not lowest for _, lowest in self._names),
            entries=self._entries,
            first=first,
            target=target,
            weight=weight,
        )

    def _heights(self) -> Array:
        """How many steps lead from each node to the deepest leaf below it."""
        here = np.arange(len(self._step))
        first = here + np.array(self._step, np.int64)
        second = first + np.array([name is not None for name in self._column])
        heights = np.zeros(len(here), np.int64)
        while True:
            above = np.where(first == here, 0, 1 + np.maximum(heights[first], heights[second]))
            if (above == heights).all():
                return heights
            heights = above

    def _new(self, count: int) -> int:
        """Places for neighbours, leaves that hold nothing until they are filled."""
        place = len(self._step)
        self._column += [None] * count
        self._step += [0] * count
        self._threshold += [0] * count
        self._leaf += [-1] * count
        return place

    def _align(self) -> None:
        """Begin a line of the cache."""
        self._new(-len(self._step) % self._in_line)

    def _tree(self, root: int) -> int:
        """The place of a tree's root."""
        self._align()
        top = self._new(1)
        waiting: deque[tuple[int, int | _Split]] = deque([(top, root)])
        while waiting:
            place, node = waiting.popleft()
            split = self._expanded(node)
            if split is not None and place != top:
                below = 2 + 2 * sum(self._expanded(child) is not None for child in (split.low, split.high))
                if -len(self._step) % self._in_line < min(below, self._in_line):
                    self._align()
            line = [(place, node)]
            for place, node in line:
                line += self._fill(place, node, waiting, first=len(line) == 1)
        return top

    def _fill(
        self, place: int, node: int | _Split, waiting: deque[tuple[int, int | _Split]], *, first: bool
    ) -> list[tuple[int, int | _Split]]:
        """Write a node; its neighbours below it where the line has room for them or it is the `first` one."""
        split = self._expanded(node)
        if split is None:
            assert isinstance(node, int)
            self._leaf[place] = node
            return []
        if isinstance(node, int) and node in self._placed:  # two branches lead here: a step that is always taken
            self._step[place] = self._placed[node] - place
            return []
        if not first and -len(self._step) % self._in_line < 2:
            waiting.append((place, node))
            return []
        if isinstance(node, int):
            self._placed[node] = place
        pair = self._new(2)
        self._column[place], self._threshold[place], self._step[place] = split.column, split.threshold, pair - place
        return [(pair, split.high), (pair + 1, split.low)]

    def _leaves(self, nodes: Array) -> tuple[Array, Array, Array]:
        """Write what leaves hold into the nodes; the tables of entries."""
        leaves = self._forest.leaves
        holder = np.array(self._leaf, np.int64)
        places = np.nonzero(holder >= 0)[0]
        holder = holder[places]
        if not self._entries:
            held = leaves.weight[leaves.start[holder]].astype(np.float64 if self._wide else np.float32)
            nodes["threshold"][places] = held.view(nodes["threshold"].dtype)
            return np.zeros(1, np.int32), np.zeros(0, np.int32), np.zeros(0)
        # Leaf 0 is that of the trees that hold nothing.
        nodes["threshold"][places] = 1 + np.arange(len(places))
        count = leaves.count[holder]
        first = np.concatenate([[0, 0], np.cumsum(count)]).astype(np.int32)
        start = np.repeat(leaves.start[holder] - first[1:-1], count)
        entry = start + np.arange(len(start))
        return first, leaves.target[entry].astype(np.int32), leaves.weight[entry]

    def _expanded(self, node: int | _Split) -> _Split | None:
        """The branch that stands for a node; None for a leaf."""
        return self._splits[node] if isinstance(node, int) else node


def _splits(forest: Forest, *, wide: bool) -> list[_Split | None]:
    """The branch that stands for each node; None for a leaf."""
    numbers = forest.value.astype(np.float64 if wide else np.float32)
    keys, never = keys_of(numbers), np.isnan(numbers)
    no, yes = forest.children.reshape(-1, 2).T
    # Greater than a number is not below its successor: what holds follows where the key is high.
    above = np.isin(forest.mode, [MODES.index("BRANCH_GT"), MODES.index("BRANCH_GTE")])
    beyond = np.isin(forest.mode, [MODES.index("BRANCH_LEQ"), MODES.index("BRANCH_GT")])
    bound = np.where(never, np.where(above, np.iinfo(keys.dtype).max, 1).astype(keys.dtype), keys + beyond)
    columns = zip(forest.feature.tolist(), (forest.missing ^ above).tolist(), strict=True)
    highs, lows = np.where(above, yes, no).tolist(), np.where(above, no, yes).tolist()
    splits: list[_Split | None] = list(map(_Split, columns, bound.tolist(), highs, lows))
    for leaf in np.flatnonzero(forest.mode == LEAF).tolist():
        splits[leaf] = None
    for node in np.flatnonzero(np.isin(forest.mode, [MODES.index("BRANCH_EQ"), MODES.index("BRANCH_NEQ")])).tolist():
        feature, missing = int(forest.feature[node]), bool(forest.missing[node])
        equal, other = int(yes[node]), int(no[node])
        if MODES[forest.mode[node]] == "BRANCH_NEQ":
            equal, other, missing = other, equal, False
        splits[node] = _equality(feature, missing, None if never[node] else int(keys[node]), equal, other)
    return splits


def _equality(feature: int, missing: bool, key: int | None, equal: int, other: int) -> _Split:
    """A branch to `equal` where a feature has a key, which NaN has where `missing`; no number has the key None."""
    if key is None:
        return _Split((feature, missing), 1, other, equal)
    split = _Split((feature, False), key + 1, other, _Split((feature, False), key, equal, other))
    if missing:  # the lowest key is that of NaN, which goes where equal ones go
        return _Split((feature, True), 1, split, equal)
    return split

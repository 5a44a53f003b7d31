"""Decision trees in the form in which kernels walk them.

Every branch becomes "go to the second of two neighbours where key < threshold, else to the first". A key is a feature
as an unsigned integer of the same order; NaN is the lowest or the highest key, each feature having a column for either,
so that a branch that NaN shall take needs no test of its own. A leaf is a branch that is never taken, back to itself.

Neighbours lie close to their parents: a cache line holds a pair of nodes with the two pairs below it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sardonyx.light_dataclass import dataclass
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


class _Splits(NamedTuple):
    """Branches by their numbers: those of the forest's nodes, and behind them those that only the packed form has."""

    lowest: Array  # whether NaN is the lowest key
    feature: Array
    threshold: Array
    high: Array  # what follows where the key is not below the threshold
    low: Array
    leaf: Array  # whether it is none


class _Seats:
    """Where the nodes of all trees sit: in blocks, each of which holds what lies up to two steps below a branch.

    The root of a tree sits in front of its own block. Each seat has a `node`, the `block` and the `offset` in it, and
    those of the pair that follows it (`below` is -1 where none does). A branch to which several lead is followed from
    its first seat only, which `first_seat` has for each branch; the others are steps to that one.
    Blocks have a `size` and a `tree`, whose number theirs begin with.
    """

    def __init__(self, splits: _Splits, roots: Array) -> None:
        self._splits = splits
        self._rows: list[Array] = []
        self._count = 0
        self.first_seat = np.full(len(splits.leaf), -1)
        trees = np.arange(len(roots))
        sizes, owners = [np.ones(len(roots), np.int64)], [trees]
        seats, heads = self._sit(roots, trees, np.zeros_like(trees))
        node, tree, seat, blocks, begin = roots[heads], trees[heads], seats[heads], trees[heads], 1
        while len(node):
            self._lead(seat, blocks, begin)
            size, below = self._fill(node, blocks, begin)
            if begin:
                sizes[0][blocks] += size
            else:
                sizes.append(size)
                owners.append(tree)
            holder, node, seat = below
            tree = tree[holder]
            blocks, begin = sum(map(len, sizes)) + np.arange(len(node)), 0
        self.size, self.tree = np.concatenate(sizes), np.concatenate(owners)
        self.node, self.block, self.offset, self.below, self.below_offset = np.concatenate(self._rows, axis=1)

    def _sit(self, nodes: Array, blocks: Array, offsets: Array) -> tuple[Array, Array]:
        """New seats, and which of them are the first of a branch."""
        seats = self._count + np.arange(len(nodes))
        self._count += len(nodes)
        self._rows.append(np.stack([nodes, blocks, offsets, np.full(len(nodes), -1), np.zeros_like(nodes)]))
        fresh = np.flatnonzero(~self._splits.leaf[nodes] & (self.first_seat[nodes] < 0))
        fresh = fresh[np.unique(nodes[fresh], return_index=True)[1]]
        self.first_seat[nodes[fresh]] = seats[fresh]
        heads = np.zeros(len(nodes), bool)
        heads[fresh] = True
        return seats, heads

    def _lead(self, seats: Array, blocks: Array, offsets: Array | int) -> None:
        """Let seats of the last rows be followed by the pairs that begin there."""
        rows = self._rows[-1]
        places = seats - (self._count - rows.shape[1])
        rows[3, places], rows[4, places] = blocks, offsets

    def _fill(self, nodes: Array, blocks: Array, begin: int) -> tuple[Array, tuple[Array, Array, Array]]:
        """Seat what lies below branches, each in its own block from `begin` on; how many seats that takes, and the
        branches at the end: of which of `nodes` they come, themselves, and their seats.
        """
        pairs = np.stack([self._splits.high[nodes], self._splits.low[nodes]], axis=1)
        owner, side = np.repeat(np.arange(len(nodes)), 2), np.tile([0, 1], len(nodes))
        seats, heads = self._sit(pairs.ravel(), blocks[owner], begin + side)
        both = heads.reshape(-1, 2)
        offsets = begin + 2 + np.where(side[heads] & both[owner[heads], 0], 2, 0)
        self._lead(seats[heads], blocks[owner[heads]], offsets)
        size = 2 + 2 * both.sum(axis=1)
        node, owner = pairs.ravel()[heads], owner[heads]
        pairs = np.stack([self._splits.high[node], self._splits.low[node]], axis=1)
        holder, side = np.repeat(owner, 2), np.tile([0, 1], len(node))
        seats, heads = self._sit(pairs.ravel(), blocks[holder], np.repeat(offsets, 2) + side)
        return size, (holder[heads], pairs.ravel()[heads], seats[heads])

    def starts(self, in_line: int) -> Array:
        """Where each block begins: trees one after the other, at the beginning of a line, and a block where the last
        one ends if it ends within the line; last, where nothing is any more.
        """
        order = np.argsort(self.tree, kind="stable")
        roots = order < len(np.unique(self.tree))
        starts, at = [], 0
        for size, is_root in zip(self.size[order].tolist(), roots.tolist(), strict=True):
            room = -at % in_line
            if is_root or room < min(size, in_line):
                at += room
            starts.append(at)
            at += size
        found = np.empty(len(starts) + 1, np.int64)
        found[order], found[-1] = starts, at
        return found


class _Packing:
    """The nodes of all trees at their places."""

    def __init__(self, forest: Forest, *, wide: bool, entries: bool) -> None:
        self._wide, self._entries, self._forest = wide, entries, forest
        splits = _splits(forest, wide=wide)
        seats = _Seats(splits, forest.roots)
        starts = seats.starts(_LINE // 2 if wide else _LINE)
        count = int(starts[-1]) + 1  # the last one holds nothing
        place = starts[seats.block] + seats.offset
        follows = seats.below >= 0
        leaf = splits.leaf[seats.node]
        self._step = np.zeros(count, np.int64)
        self._step[place] = np.where(
            follows,
            starts[seats.below] + seats.below_offset - place,
            np.where(leaf, 0, place[seats.first_seat[seats.node]] - place),
        )
        columns = splits.lowest * (1 + splits.feature.max(initial=0)) + splits.feature
        self._names, ranks = np.unique(columns[seats.node[follows]], return_inverse=True)
        self._rank = np.full(count, len(self._names))  # a column of the highest key: below no threshold
        self._rank[place[follows]] = ranks
        self._threshold = np.zeros(count, splits.threshold.dtype)
        self._threshold[place[follows]] = splits.threshold[seats.node[follows]]
        self._places, self._holders = place[leaf], seats.node[leaf]
        self._roots = place[: len(forest.roots)]

    @property
    def fits(self) -> bool:
        """Whether the fields of the form hold every offset."""
        if self._wide:
            return True
        return WALKS * len(self._names) < 1 << 16 and int(np.abs(self._step).max()) < 1 << 15

    def result(self) -> PackedForest:
        """The tables."""
        nodes = np.zeros(len(self._step), _WIDE if self._wide else _NARROW)
        nodes["feature"] = WALKS * self._rank
        nodes["step"] = self._step
        nodes["threshold"] = self._threshold
        heights = self._heights()[self._roots]
        order = np.argsort(heights, kind="stable")
        nothing = [[len(nodes) - 1, 0]] * (-len(order) % WALKS)
        roots = np.stack([self._roots[order], heights[order]], axis=1)
        features = 1 + self._forest.feature.max(initial=0)
        first, target, weight = self._leaves(nodes)
        return PackedForest(
            wide=self._wide,
            nodes=nodes,
            roots=np.concatenate([roots, np.array(nothing, np.int64).reshape(-1, 2)]),
            trees=len(order),
            columns=self._names % features,
            high=int((self._names < features).sum()),
            entries=self._entries,
            first=first,
            target=target,
            weight=weight,
        )

    def _heights(self) -> Array:
        """How many steps lead from each node to the deepest leaf below it."""
        here = np.arange(len(self._step))
        first = here + self._step
        second = first + (self._rank < len(self._names))
        heights = np.zeros(len(here), np.int64)
        while True:
            above = np.where(first == here, 0, 1 + np.maximum(heights[first], heights[second]))
            if (above == heights).all():
                return heights
            heights = above

    def _leaves(self, nodes: Array) -> tuple[Array, Array, Array]:
        """Write what leaves hold into the nodes; the tables of entries."""
        leaves, places, holder = self._forest.leaves, self._places, self._holders
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


def _splits(forest: Forest, *, wide: bool) -> _Splits:
    """The branch that stands for each node."""
    numbers = forest.value.astype(np.float64 if wide else np.float32)
    keys, never = keys_of(numbers), np.isnan(numbers)
    no, yes = forest.children.reshape(-1, 2).T
    # Greater than a number is not below its successor: what holds follows where the key is high.
    above = np.isin(forest.mode, [MODES.index("BRANCH_GT"), MODES.index("BRANCH_GTE")])
    beyond = np.isin(forest.mode, [MODES.index("BRANCH_LEQ"), MODES.index("BRANCH_GT")])
    bound = np.where(never, np.where(above, np.iinfo(keys.dtype).max, 1).astype(keys.dtype), keys + beyond)
    plain = _Splits(
        forest.missing ^ above,
        forest.feature,
        bound.astype(keys.dtype),
        np.where(above, yes, no),
        np.where(above, no, yes),
        forest.mode == LEAF,
    )
    equality = np.flatnonzero(np.isin(forest.mode, [MODES.index("BRANCH_EQ"), MODES.index("BRANCH_NEQ")]))
    return _with_equalities(plain, equality, forest, keys, never) if len(equality) else plain


def _with_equalities(plain: _Splits, at: Array, forest: Forest, keys: Array, never: Array) -> _Splits:
    """The splits with those `at` which a feature has a key or not, which NaN has where it is missing.

    A key is one that is below its successor but not below itself: two branches. Where NaN goes where equal ones go, a
    branch before them asks for the lowest key, that of NaN; it is all there is where no number is equal.
    """
    no, yes = forest.children.reshape(-1, 2)[at].T
    inverse = forest.mode[at] == MODES.index("BRANCH_NEQ")
    equal, other = np.where(inverse, no, yes), np.where(inverse, yes, no)
    missing, key = forest.missing[at] & ~inverse, keys[at]
    ordinary, asks = ~never[at], missing & ~never[at]
    count = len(plain.leaf)
    inner = count + np.cumsum(ordinary) - 1  # not below the key itself
    outer = np.where(asks, count + int(ordinary.sum()) + np.cumsum(asks) - 1, at)  # below the key's successor
    lowest, feature, threshold, high, low, leaf = (
        np.concatenate([table, np.zeros(int(ordinary.sum()) + int(asks.sum()), table.dtype)]) for table in plain
    )
    feature[inner[ordinary]], feature[outer] = forest.feature[at[ordinary]], forest.feature[at]
    lowest[at], threshold[at], high[at], low[at] = missing, 1, other, equal
    high[at[asks]] = outer[asks]
    lowest[outer[ordinary]], threshold[outer[ordinary]] = False, key[ordinary] + 1
    high[outer[ordinary]], low[outer[ordinary]] = other[ordinary], inner[ordinary]
    threshold[inner[ordinary]] = key[ordinary]
    high[inner[ordinary]], low[inner[ordinary]] = equal[ordinary], other[ordinary]
    return _Splits(lowest, feature, threshold, high, low, leaf)

"""Walks through decision trees: many at the same time, so that one's waiting for memory is another's work.

The tables are those of `packing`. A step reads a node, the key that it asks for and the way to its
neighbours; a leaf leads back to itself, so that a group of walks goes as deep as its deepest without a branch. Walks
side by side are `WALKS` rows in one tree, or `WALKS` trees for one row.

Weights meet in double precision: those of `BLOCK` trees one after the other, then the blocks, in the same order
whichever way the walks are grouped.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.arguments import Read, Record, Size, Table, Write, kernel
from sardonyx.compiler.kernels.trees.packing import WALKS
from sardonyx.compiler.llvm.builder import Function, Pointer, Value, Variable
from sardonyx.compiler.llvm.types import F32, F64, I16, I32, I64, U16, U32, U64, Type, dtype_type
from sardonyx.light_dataclass import dataclass

# Trees whose weights are added up before they are added to those of others.
BLOCK = 64
# Groups deeper than this ask now and then whether all their walks have ended.
_SHALLOW = 12
_STEPS = 4


@dataclass(frozen=True)
class WalkSpec:
    """`data`: the rows' dtype. `wide`: nodes of 16 bytes and keys of 64 bits.

    `entries`: leaves name entries of a table; `function` (sum, min, max) says how they meet. Else a leaf has a weight
    for the only target.
    """

    data: str
    wide: bool
    entries: bool
    function: str = "sum"

    @property
    def type(self) -> Type:
        """The type of the features."""
        return dtype_type(self.data)

    @property
    def key(self) -> Type:
        return U64 if self.wide else U32


class Arguments(Record):
    rows = Read(lambda spec: spec.type)
    count = Size()  # rows
    features = Size()
    nodes = Table()
    roots = Table(I64)
    trees = Size()
    columns = Table(I64)
    high = Size()  # columns
    all = Size()  # columns
    scores = Write(F64)  # [rows, targets]
    met = Write(I64)  # how many weights met in each
    targets = Size()
    first = Table(I32)  # of the entries
    target = Table(I32)
    weight = Table(F64)
    share = Size()  # the rows of a tile (a multiple of `WALKS`), or the blocks of trees


@kernel(Arguments)
def emit_walk_rows(k: Function, a: Arguments, spec: WalkSpec) -> None:
    """Every tree for tiles of rows.

    Scratch: keys of a tile (columns + 1, for each group of rows), scores and counts of it.
    """
    walker = _Walker(k, a, spec)
    rows, trees, tile = a.count, a.trees, a.share
    targets = a.targets
    scores, met = a.scores, a.met
    keys = walker.scratch
    block_scores = k.pointer(keys.offset(tile * walker.columns).address, F64)
    block_met = block_scores.offset(tile * targets).cast(I64)
    with k.loop(k["begin"], k["end"]) as chunk:
        top = chunk * tile
        count = k.smaller(tile, rows - top)
        groups = (count + (WALKS - 1)) // WALKS
        with k.loop(0, groups) as group:
            walker.keys_of_rows(keys.offset(group * walker.group_size), top + group * WALKS, rows)
        total, total_met = scores.offset(top * targets), met.offset(top * targets)
        walker.clear(total, total_met, count * targets)
        # One block needs no scores of its own, but walks behind the last row need room for theirs.
        apart = (trees > BLOCK) | (count < tile)
        into = k.pointer(k.select(apart, block_scores.address, total.address), F64)
        into_met = k.pointer(k.select(apart, block_met.address, total_met.address), I64)
        with k.loop(0, trees, BLOCK) as block:
            with k.when(apart):
                walker.clear(block_scores, block_met, tile * targets)
            with k.loop(block, k.smaller(block + BLOCK, trees)) as tree:
                root, depth = walker.root(tree)
                with k.loop(0, groups) as group:
                    column = keys.offset(group * walker.group_size)
                    ends = walker.walk([root] * WALKS, depth, [column.offset(lane) for lane in range(WALKS)])
                    at = group * (targets * WALKS)
                    for lane, end in enumerate(ends):
                        place = at + targets * lane
                        walker.add_leaf(end, into.offset(place), into_met.offset(place))
            with k.when(apart):
                walker.add_block(total, total_met, block_scores, block_met, count * targets)


@kernel(Arguments)
def emit_walk_trees(k: Function, a: Arguments, spec: WalkSpec) -> None:
    """A block of trees for one row; chunks are rows times blocks. Scores and counts are [rows, blocks, targets]."""
    walker = _Walker(k, a, spec)
    trees, targets, blocks = a.trees, a.targets, a.share
    scores, met = a.scores, a.met
    keys = walker.scratch
    prepared = k.variable(I64, -1)
    with k.loop(k["begin"], k["end"]) as chunk:
        row = chunk // blocks
        with k.when(row.differs(prepared.get())):
            walker.keys_of_row(keys, row)
            prepared.set(row)
        first = (chunk - row * blocks) * BLOCK
        total, total_met = scores.offset(chunk * targets), met.offset(chunk * targets)
        walker.clear(total, total_met, targets)
        with k.loop(first, k.smaller(first + BLOCK, trees), WALKS) as group:
            roots = [walker.root(group + lane) for lane in range(WALKS)]
            deepest = roots[-1][1]  # trees lie in the order of their depths, padded with some of none
            for _, depth in roots[:-1]:
                deepest = k.larger(deepest, depth)
            for end in walker.walk([root for root, _ in roots], deepest, [keys] * WALKS):
                walker.add_leaf(end, total, total_met)


class _Walker:
    """The arguments of both kernels, and what they do with nodes."""

    def __init__(self, k: Function, a: Arguments, spec: WalkSpec) -> None:
        self._k, self._spec = k, spec
        self._rows, self._features = a.rows, a.features
        self._key = spec.key
        self._float = F64 if spec.wide else F32
        self._node_bytes = 16 if spec.wide else 8
        self._nodes, self._roots = a.nodes.cast(self._key), a.roots
        self._names, self._high, self._all = a.columns, a.high, a.all
        self._targets = a.targets
        self._first, self._target = a.first, a.target
        self._weight = a.weight
        self.columns = self._all + 1
        self.group_size = self.columns * WALKS
        self.scratch = k.pointer("scratch", self._key)

    # Keys

    def keys_of_rows(self, keys: Pointer, first: Value, rows: Value) -> None:
        """The columns of `WALKS` rows from `first` on; behind the last row it counts again."""
        k = self._k
        lines = [self._rows.offset(k.smaller(first + lane, rows - 1) * self._features) for lane in range(WALKS)]
        self._fill_columns(keys, lines)

    def keys_of_row(self, keys: Pointer, row: Value) -> None:
        """The columns of one row, of which the others are not read."""
        self._fill_columns(keys, [self._rows.offset(row * self._features)])

    def _fill_columns(self, keys: Pointer, lines: Sequence[Pointer]) -> None:
        k, lanes = self._k, len(lines)
        highest = k.constant(self._key, -1)
        for begin, end, of_nan in ((0, self._high, highest), (self._high, self._all, k.constant(self._key, 0))):
            missing = k.splat(of_nan, lanes)
            with k.loop(begin, end) as column:
                feature = self._names.load(column)
                keys.store(self._key_of(self._abreast([line.load(feature) for line in lines]), missing), column * WALKS)
        keys.store(k.splat(highest, lanes), self._all * WALKS)

    def _abreast(self, values: Sequence[Value]) -> Value:
        """Features of several rows as a vector, in the precision in which they are compared."""
        k = self._k
        floats = [one if one.type.is_float and one.type.bits >= 32 else one.to(F32) for one in values]
        vector = k.splat(floats[0], len(floats))
        for lane, one in enumerate(floats[1:], 1):
            vector = k.insert(vector, one, lane)
        return vector.to(self._float)

    def _key_of(self, number: Value, of_nan: Value) -> Value:
        """Features as unsigned integers of the same order."""
        k = self._k
        bits = (number + 0.0).bits_as(self._key)
        top = 1 << (self._key.bits - 1)
        key = k.select((bits & top).differs(0), ~bits, bits | top)
        return k.select(number.differs(number), of_nan, key)

    # Walks

    def root(self, tree: Value) -> tuple[Value, Value]:
        """The address of a tree's root and the depth of the tree."""
        place = self._roots.load(tree * 2)
        return self._nodes.offset(place * (self._node_bytes // self._key.nbytes)).address, self._roots.load(
            tree * 2 + 1
        )

    def walk(self, starts: Sequence[Value], depth: Value, columns: Sequence[Pointer]) -> list[Pointer]:
        """The leaves that walks reach; walk i reads its keys from column i on."""
        k = self._k
        places = [k.variable(start.type, start) for start in starts]
        shallow = depth <= _SHALLOW
        with k.when(shallow), k.loop(0, depth):
            self._step(places, columns)
        with k.otherwise(shallow):
            going = k.variable(I64, 1)
            with k.loop_while(lambda: going.get().differs(0)):
                for _ in range(_STEPS):
                    ways = self._step(places, columns)
                moved = ways[0]
                for way in ways[1:]:
                    moved = moved | way
                going.set(moved)
        return [Pointer(place.get(), self._key) for place in places]

    def _step(self, places: Sequence[Variable], columns: Sequence[Pointer]) -> list[Value]:
        """One step of every walk; how many nodes further on each goes."""
        k = self._k
        narrow = not self._spec.wide
        ways = []
        for place, column in zip(places, columns, strict=True):
            node = place.get()
            feature = Pointer(node, U16 if narrow else I32).load(0)
            step = Pointer(node, I16 if narrow else I32).load(1)
            threshold = Pointer(node, self._key).load(1)
            below = column.load(feature.to(U64 if narrow else I64)) < threshold
            way = step.to(I64) + below.to(I64)
            place.set(k.advance(node, way, self._node_bytes))
            ways.append(way)
        return ways

    # Scores

    def clear(self, scores: Pointer, met: Pointer, count: Value) -> None:
        """Scores that nothing has met in yet."""
        k = self._k
        start = {"sum": 0.0, "min": np.inf, "max": -np.inf}[self._spec.function]
        with k.loop(0, count) as place:
            scores.store(start, place)
            if self._spec.entries:
                met.store(0, place)

    def add_leaf(self, leaf: Pointer, scores: Pointer, met: Pointer) -> None:
        """What a leaf holds, added to a row's scores."""
        k = self._k
        held = leaf.load(1)
        if not self._spec.entries:
            scores.store(scores.load(0) + held.bits_as(self._float).to(F64), 0)
            return
        number = held.to(U64)
        with k.loop(self._first.load(number).to(I64), self._first.load(number + 1).to(I64)) as entry:
            target = self._target.load(entry).to(I64)
            scores.store(self._met(scores.load(target), self._weight.load(entry)), target)
            met.store(met.load(target) + 1, target)

    def add_block(self, scores: Pointer, met: Pointer, more: Pointer, more_met: Pointer, count: Value) -> None:
        """What met in a block of trees, added to what met before."""
        with self._k.loop(0, count) as place:
            scores.store(self._met(scores.load(place), more.load(place)), place)
            if self._spec.entries:
                met.store(met.load(place) + more_met.load(place), place)

    def _met(self, left: Value, right: Value) -> Value:
        """Two scores of one target."""
        if self._spec.function == "sum":
            return left + right
        return self._k.smaller(left, right) if self._spec.function == "min" else self._k.larger(left, right)

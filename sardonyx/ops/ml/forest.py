"""Decision trees as flat tables, walked by many rows and trees at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.operator import Array
from sardonyx.runtime.forks import cached_property
from sardonyx.runtime.memory import memory

# Of a row and a target: the sum, how many weights met in it, and what becomes of both.
_BYTES_PER_SCORE = 32

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
LEAF = -1
_COMPARISONS = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)

# How many walks (a row in a tree) advance together: enough to spread NumPy's cost per call, few enough for the cache.
_TOGETHER = 32768


@dataclass(frozen=True)
class Leaves:
    """What leaves add to targets: entries `start[node]` to `start[node] + count[node]` of `target` and `weight`."""

    start: Array
    count: Array
    target: Array
    weight: Array


@dataclass(frozen=True)
class Forest:
    """Nodes of all trees in one table; `children` holds (false, true) for each node, a leaf's are itself.

    `mode` is an index of MODES or LEAF. `missing` says whether NaN takes the true branch.
    """

    roots: Array
    mode: Array
    feature: Array
    value: Array
    missing: Array
    children: Array
    leaves: Leaves

    def walks(self, rows: Array) -> Iterator[tuple[slice, Array]]:
        """The leaf that each row reaches in some trees: the rows' slice and nodes (rows, trees), block by block."""
        count, trees = len(rows), len(self.roots)
        if count and rows.shape[1] <= self.feature.max(initial=-1):
            raise ValueError(f"the trees read feature {self.feature.max()}, but the input has {rows.shape[1]} features")
        height = min(max(count, 1), _TOGETHER)
        width = max(1, _TOGETHER // height)
        for top in range(0, count, height):
            part = np.ascontiguousarray(rows[top : top + height])
            for left in range(0, trees, width):
                yield slice(top, top + len(part)), self._walk(part, self.roots[left : left + width])

    def _walk(self, rows: Array, roots: Array) -> Array:
        """The leaves (rows, roots) that rows reach from some roots."""
        flat, features = rows.reshape(-1), rows.shape[1]
        place = np.tile(roots, len(rows))
        offset = np.repeat(np.arange(len(rows)) * features, len(roots))
        active = np.nonzero(self.mode[place] != LEAF)[0]
        node = place[active]
        for _ in range(len(self.mode) + 1):
            if not active.size:
                return place.reshape(len(rows), len(roots))
            value = flat[offset[active] + self.feature[node]]
            node = self.children[2 * node + self._holds(node, value)]
            place[active] = node
            going = self.mode[node] != LEAF
            if not going.all():
                active, node = active[going], node[going]
        raise ValueError("the nodes of a tree form a circle")

    def _holds(self, node: Array, value: Array) -> Array:
        """Whether each value takes the true branch of its node."""
        split = self.value[node]
        modes = self._modes
        if len(modes) == 1:
            held = _COMPARISONS[modes[0]](value, split)
        else:
            kind = self.mode[node]
            held = np.zeros(len(node), bool)
            for mode in modes:
                held |= (kind == mode) & _COMPARISONS[mode](value, split)
        if self._any_missing:
            held |= np.isnan(value) & self.missing[node]
        return held

    @cached_property
    def _modes(self) -> list[int]:
        return [int(mode) for mode in np.unique(self.mode) if mode != LEAF]

    @cached_property
    def _any_missing(self) -> bool:
        return bool(self.missing.any())

    def aggregated(self, rows: Array, targets: int, function: str) -> tuple[Array, Array]:
        """Scores (rows, targets) of leaves' weights over the trees, and how many weights met in each.

        Sums are taken in double precision; a target that no leaf has a weight for is 0.
        """
        size = len(rows) * targets
        memory.require(size * _BYTES_PER_SCORE, "the scores of trees")
        counts = np.zeros(size, np.int64)
        start = {"MIN": np.inf, "MAX": -np.inf}.get(function, 0.0)
        scores = np.full(size, start)
        leaves = self.leaves
        for span, nodes in self.walks(rows):
            base = np.broadcast_to(np.arange(span.start, span.stop)[:, None] * targets, nodes.shape).reshape(-1)
            flat = nodes.reshape(-1)
            for turn in range(int(leaves.count[flat].max(initial=0))):
                if turn:
                    more = leaves.count[flat] > turn
                    base, flat = base[more], flat[more]
                elif (leaves.count[flat] == 0).any():
                    base, flat = base[leaves.count[flat] > 0], flat[leaves.count[flat] > 0]
                entry = leaves.start[flat] + turn
                cell, weight = base + leaves.target[entry], leaves.weight[entry]
                low, high = span.start * targets, span.stop * targets
                counts[low:high] += np.bincount(cell - low, minlength=high - low)
                if function == "MIN":
                    np.minimum.at(scores, cell, weight)
                elif function == "MAX":
                    np.maximum.at(scores, cell, weight)
                else:
                    scores[low:high] += np.bincount(cell - low, weight, minlength=high - low)
        scores[counts == 0] = 0
        if function == "AVERAGE":
            scores /= max(len(self.roots), 1)
        return scores.reshape(len(rows), targets), counts.reshape(len(rows), targets)


def leaves_of(nodes: int, node: Array, target: Array, weight: Array, targets: int) -> Leaves:
    """The table of leaves from entries in any order."""
    if target.size and not (target.min() >= 0 and target.max() < targets):
        raise ValueError(f"a leaf names target {int(target.max())}, but there are {targets}")
    order = np.argsort(node, kind="stable")
    count = np.bincount(node, minlength=nodes)
    start = np.concatenate([[0], np.cumsum(count)[:-1]])
    return Leaves(start, count, target[order], weight[order].astype(np.float64))


def by_name(tree_ids: Array, node_ids: Array, wanted_trees: Array, wanted_nodes: Array, what: str) -> Array:
    """The places of nodes that are named by tree and number; ValueError where there is none of that name."""
    width = int(max(node_ids.max(initial=0), wanted_nodes.max(initial=0), 0)) + 1
    names, wanted = tree_ids * width + node_ids, wanted_trees * width + wanted_nodes
    order = np.argsort(names, kind="stable")
    found = np.minimum(np.searchsorted(names[order], wanted), max(len(names) - 1, 0))
    places = order[found] if len(names) else np.zeros(len(wanted), np.int64)
    if wanted.size and not (len(names) and (names[places] == wanted).all()):
        raise ValueError(f"{what} names a node that no tree has")
    return places

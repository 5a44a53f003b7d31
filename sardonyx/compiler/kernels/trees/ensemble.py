"""Tree ensembles: the trees packed once, their weights added up for rows or for blocks of trees, then the rules."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.kernels.trees import total, walk
from sardonyx.compiler.kernels.trees.packing import WALKS, PackedForest, packed
from sardonyx.compiler.kernels.trees.total import TotalSpec, emit_total
from sardonyx.compiler.kernels.trees.walk import BLOCK, WalkSpec, emit_walk_rows, emit_walk_trees
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.ml.forest import LEAF, Forest
from sardonyx.runtime.memory import memory

# A step of a walk takes about this many nanoseconds.
_STEP_NS = 0.5
# At least this many nanoseconds for a chunk.
_CHUNK_NS = 4000.0


@dataclass(frozen=True)
class Scores:
    """`values` (rows, targets), and which of them met a weight (truth values) where not all do."""

    values: Tensor
    known: Tensor | None


class EnsembleWalk:
    """A forest's scores for rows of features.

    `function` is SUM, AVERAGE, MIN or MAX; `base` holds a number for each target, or none.
    """

    def __init__(self, forest: Forest, targets: int, function: str, base: Array) -> None:
        self._forest, self._targets, self._function = forest, targets, function
        memory.require_tables(targets * np.dtype(np.float64).itemsize, "the scores of trees")
        self._base = np.zeros(targets) if not base.size else base.astype(np.float64)
        self._packed: dict[bool, PackedForest] = {}

    def bind(self, binder: Binder, rows: Tensor, result: np.dtype[Any]) -> Scores:
        """Add the steps for a matrix of rows; scores get the dtype `result`."""
        rows = contiguous(binder, rows)
        count, features = rows.shape
        trees = self._tables(rows.dtype)
        if count and self._forest.feature.size and features <= int(self._forest.feature.max()):
            most = int(self._forest.feature.max())
            raise ValueError(f"the trees read feature {most}, but the input has {features} features")
        values = binder.new(result, (count, self._targets))
        known = binder.new(np.dtype(np.bool_), values.shape) if trees.entries else None
        if values.size == 0:
            return Scores(values, known)
        parts, met, blocks = self._walked(binder, rows, trees)
        per_chunk = max(1, 4096 // (blocks * self._targets))
        divisor = max(1, trees.trees) if self._function == "AVERAGE" else 1
        binder.step(
            emit_total,
            TotalSpec(result.name, trees.entries, self._kind),
            total.Arguments(
                scores=parts,
                met=met,
                rows=count,
                blocks=blocks,
                targets=self._targets,
                base=binder.constant(self._base),
                divisor=divisor,
                results=values,
                known=known,
                per_chunk=per_chunk,
            ),
            chunks=-(-count // per_chunk),
            detail=f"{count} rows, {blocks} blocks of trees",
        )
        return Scores(values, known)

    @property
    def _kind(self) -> str:
        return {"MIN": "min", "MAX": "max"}.get(self._function, "sum")

    def _tables(self, data: np.dtype[Any]) -> PackedForest:
        """The packed trees for rows of a dtype."""
        forest, leaves = self._forest, self._forest.leaves
        ends = forest.mode == LEAF
        alone = self._targets == 1 and self._kind == "sum" and bool((leaves.count[ends] == 1).all())
        exact = leaves.weight.astype(np.float32).astype(np.float64)
        double = data == np.float64 or forest.value.dtype == np.float64
        wide = double or (alone and not np.array_equal(exact, leaves.weight, equal_nan=True))
        if wide not in self._packed:
            self._packed[wide] = packed(forest, wide=wide, entries=not alone)
        return self._packed[wide]

    def _walked(self, binder: Binder, rows: Tensor, trees: PackedForest) -> tuple[Tensor, Tensor, int]:
        """Scores (rows, blocks, targets), how many weights met in each, and the number of blocks."""
        count, features = rows.shape
        columns = len(trees.columns)
        key = 8 if trees.wide else 4
        steps = float(trees.roots[: trees.trees, 1].sum())
        tile = _tile(columns, key, binder.target.caches.l1)
        by_trees = count < 2 * WALKS
        blocks = max(1, -(-trees.trees // BLOCK)) if by_trees else 1
        parts = binder.new(np.dtype(np.float64), (count, blocks, self._targets))
        met = binder.new(np.dtype(np.int64), parts.shape if trees.entries else (0,))
        tables = [trees.columns, trees.first, trees.target, trees.weight]
        names, first, target, weight = (binder.constant(table) for table in tables)
        nodes, roots = binder.constant(trees.nodes.view(np.uint64)), binder.constant(trees.roots)
        if not by_trees:
            tile = min(tile, max(WALKS, -(-count // (4 * WALKS)) * WALKS))
        keys = (columns + 1) * WALKS * key
        binder.step(
            emit_walk_trees if by_trees else emit_walk_rows,
            WalkSpec(rows.dtype.name, trees.wide, trees.entries, self._kind),
            walk.Arguments(
                rows=rows,
                count=count,
                features=features,
                nodes=nodes,
                roots=roots,
                trees=trees.trees,
                columns=names,
                high=trees.high,
                all=columns,
                scores=parts,
                met=met,
                targets=self._targets,
                first=first,
                target=target,
                weight=weight,
                share=blocks if by_trees else tile,
            ),
            chunks=count * blocks if by_trees else -(-count // tile),
            claim=max(1, int(_CHUNK_NS / (1 + _STEP_NS * steps / blocks))) if by_trees else 1,
            scratch=keys if by_trees else tile // WALKS * keys + 16 * tile * self._targets,
            flops=steps * count,
            nbytes=float(rows.nbytes + trees.nodes.nbytes),
            detail=f"{count} rows, {trees.trees} trees, {'trees' if by_trees else 'rows'} side by side",
        )
        return parts, met, blocks


def _tile(columns: int, key: int, cache: int) -> int:
    """Rows whose keys fill less than half of the nearest cache, at most 128: the trees take turns beside them."""
    rows = cache // 3 // (key * (columns + 1))
    return max(WALKS, min(128, rows // WALKS * WALKS))

"""The passes that a reduction makes over a row, and what it keeps from one for the next."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.kernel.cost import weight
from sardonyx.kernel.expr import Apply, Constant, Expr, Input, Reduce, RowIndex, RowLength, arguments, walk

# An intermediate with at least this many operations is stored for a later pass rather than computed again.
_WORTH_KEEPING = 10


class RowPasses:
    """What each pass over a row computes.

    `fixed` says of each input whether it is the same for the whole row. `reductions[p]` are combined in pass p and
    need what earlier passes combined; a last pass computes the outputs that are elements. `kept[p]` are the
    intermediates that pass p stores, if `keeps`, for the passes after it.
    """

    def __init__(self, roots: Sequence[Expr], fixed: Sequence[bool], keeps: bool) -> None:
        self.roots = tuple(roots)
        self.order = walk(roots)
        self.row_values = self._row_values(fixed)
        self.reductions = self._reductions()
        self.element_roots = tuple(root for root in roots if id(root) not in self.row_values)
        self.kept: list[list[Expr]] = [[] for _ in self.reductions]
        if keeps:
            self._keep()

    def is_row_value(self, expr: Expr) -> bool:
        return id(expr) in self.row_values

    @property
    def kept_count(self) -> int:
        return sum(map(len, self.kept))

    def met_by_elements(self) -> set[int]:
        """The row values that take part in what is computed for each element."""
        met = {id(root) for root in self.roots} | {id(one.arg) for group in self.reductions for one in group}
        for expr in self.order:
            if isinstance(expr, Apply) and id(expr) not in self.row_values:
                met.update(id(arg) for arg in expr.args)
        return met & self.row_values

    def _row_values(self, fixed: Sequence[bool]) -> set[int]:
        found: set[int] = set()
        for expr in self.order:
            if isinstance(expr, Input):
                constant = fixed[expr.index]
            elif isinstance(expr, Apply):
                constant = all(id(arg) in found for arg in expr.args)
            else:
                constant = not isinstance(expr, RowIndex)
            if constant:
                found.add(id(expr))
        return found

    def _reductions(self) -> list[list[Reduce]]:
        depths: dict[int, int] = {}
        passes: list[list[Reduce]] = []
        for expr in self.order:
            depth = max((depths[id(arg)] for arg in arguments(expr)), default=0)
            if isinstance(expr, Reduce):
                while len(passes) <= depth:
                    passes.append([])
                passes[depth].append(expr)
                depth += 1
            depths[id(expr)] = depth
        return passes

    def _keep(self) -> None:
        """Of what several passes compute, the largest expressions, stored by the first of those passes."""
        before: dict[int, int] = {}
        stages = [[one.arg for one in group] for group in self.reductions]
        for number, roots in enumerate([*stages, list(self.element_roots)]):
            leaves = self.row_values
            stack = list(roots)
            seen: set[int] = set()
            while stack:
                expr = stack.pop()
                if id(expr) in leaves or id(expr) in seen or not isinstance(expr, Apply):
                    continue
                seen.add(id(expr))
                if id(expr) in before and weight([expr], leaves) >= _WORTH_KEEPING:
                    group = self.kept[before[id(expr)]]
                    if expr not in group:
                        group.append(expr)
                else:
                    stack.extend(expr.args)
            for expr in walk(roots, leaves):
                if isinstance(expr, Apply) and id(expr) not in leaves:
                    before.setdefault(id(expr), number)


def available(passes: RowPasses, known: set[int]) -> list[Expr]:
    """The row values that can be computed from those already `known`, in order."""
    found = set(known)
    result: list[Expr] = []
    for expr in passes.order:
        if id(expr) in found or not passes.is_row_value(expr) or isinstance(expr, Input | Reduce | RowLength):
            continue
        if isinstance(expr, Constant) or all(id(arg) in found for arg in arguments(expr)):
            found.add(id(expr))
            result.append(expr)
    return result

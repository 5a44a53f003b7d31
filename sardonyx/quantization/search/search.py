"""The search for a recipe that reaches a target with as many nodes quantised, and as few evaluations, as it can.

Errors of nodes that are quantised one without the others add up as independent noise does: their squares. So groups of
nodes are measured by themselves and divided where the error is, until what must stay float is found node by node; the
rest is never divided. Of two halves one is measured, and the other has what is left of the square; both are measured
where that does not lead to the target. The way of measuring groups in place of nodes is that of group testing (R.
Dorfman, "The Detection of Defective Members of Large Populations", 1943).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.search.evaluation import Evaluator, Verdict
from sardonyx.quantization.search.recipe import Recipe

# What is tried where the first calibration misses the target.
_CALIBRATIONS = ("Percentile", "Entropy")
# How much of the outliers of activations SmoothQuant moves into weights: the second leaves more of them, of which the
# worst then stay float.
_ALPHAS = (0.65, 0.5)
# What tells a transformer, beside its products.
_NORMALISING = frozenset({"LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization", "ReduceMean"})
# By how much the predicted error stays below the target, from the first guess to the last: noise is not independent.
_MARGINS = (1.0, 0.8, 0.6, 0.4, 0.2)
# Groups of a smaller share of the work are not divided: that would take an evaluation more to gain next to nothing.
_SMALLEST = 1 / 32


@dataclass(frozen=True)
class Target:
    """What is asked for: the largest `error` of an output, or else the least `metric`."""

    error: float | None = None
    metric: float | None = None

    def is_reached(self, verdict: Verdict) -> bool:
        if self.error is not None and not verdict.error <= self.error:
            return False
        return self.metric is None or (verdict.metric is not None and verdict.metric >= self.metric)


@dataclass(frozen=True)
class Result:
    """The recipe that was found, what it costs, and whether that is what was asked for."""

    recipe: Recipe
    verdict: Verdict
    is_reached: bool


@dataclass(frozen=True)
class _Group:
    """Nodes that are measured together: the square of the error that they make by themselves."""

    names: tuple[str, ...]
    square: float


class Search:
    """Looks for a recipe; `costs` are the work of the nodes that the base recipe quantises, by name, in order."""

    def __init__(self, evaluator: Evaluator, target: Target, costs: Mapping[str, float]) -> None:
        if target.error is None and target.metric is None:
            raise InvalidQuantization("A search needs a target: an error or a metric")
        self._evaluator = evaluator
        self._target = target
        self._costs = dict(costs)
        self._names = tuple(costs)
        self._infers = True  # the error of a half from that of the other

    def run(self, base: Recipe) -> Result:
        """The first recipe that reaches the target: as it is, in another way for all nodes, with nodes in float.

        Where none does, that with the least error, and `is_reached` is False.
        """
        tried = self._variants(base)
        recipe, verdict = min(tried, key=lambda one: self._rank(one[1]))
        if self._target.is_reached(verdict):
            return Result(recipe, verdict, True)
        return self._with_float(recipe, verdict)

    def _variants(self, base: Recipe) -> list[tuple[Recipe, Verdict]]:
        """The base, and the same in other ways that all nodes share, up to the first that reaches the target."""
        recipes = [base]
        if not base.per_channel:
            recipes.append(base.with_changes(per_channel=True))
        if self._is_transformer(base):  # whose outliers are channels: clipping loses what others need
            if base.is_static and base.operators is None:
                recipes.append(recipes[-1].products_only)
            if not base.options.get("SmoothQuant"):
                recipes += [recipes[-1].smoothed(alpha) for alpha in _ALPHAS]
        elif base.is_static:
            recipes += [
                recipes[-1].with_changes(calibration=name) for name in _CALIBRATIONS if name != base.calibration
            ]
        tried: list[tuple[Recipe, Verdict]] = []
        for recipe in recipes:
            try:
                tried.append((recipe, self._evaluator.verdict(recipe)))
            except InvalidQuantization:
                if not tried and recipe is recipes[-1]:
                    raise
                continue
            if self._target.is_reached(tried[-1][1]):
                break
        return tried

    def _is_transformer(self, base: Recipe) -> bool:
        """Whether the model is one of products between normalised states, and not of windows."""
        found = {one.op_type for one in self._evaluator.report(base).nodes.values()}
        return "MatMul" in found and "Conv" not in found and bool(found & _NORMALISING)

    def _rank(self, verdict: Verdict) -> tuple[float, float]:
        return (-(verdict.metric or 0.0) if self._target.metric is not None else 0.0, verdict.error)

    def _with_float(self, recipe: Recipe, verdict: Verdict) -> Result:
        quantised = {one.name for one in self._evaluator.report(recipe).nodes.values() if one.is_quantized}
        self._names = tuple(name for name in self._names if name in quantised)
        result = Result(recipe, verdict, False)
        for self._infers in (True, False):
            found = self._by_groups(recipe, verdict)
            result = min(result, found, key=lambda one: self._rank(one.verdict))
            if found.is_reached:
                return found
        return result

    def _by_groups(self, recipe: Recipe, verdict: Verdict) -> Result:
        groups = self._halves(recipe, _Group(self._names, verdict.error**2))
        best = recipe, verdict
        for allowed in self._allowances(verdict):
            groups, kept = self._kept(recipe, groups, allowed**2)
            is_last = set(kept) == set(self._names)
            if is_last:  # nothing would be quantised: the part that costs least is what is left to try
                least = min(groups, key=lambda one: one.square)
                kept = tuple(name for name in kept if name not in least.names)
            candidate = recipe.with_kept(kept)
            try:
                found = self._evaluator.verdict(candidate)
            except InvalidQuantization:
                break  # none of the rest is quantised without the others
            best = min(best, (candidate, found), key=lambda one: self._rank(one[1]))
            if self._target.is_reached(found):
                return self._returned(candidate, found, groups)
            if is_last:
                break
        return Result(*best, self._target.is_reached(best[1]))

    def _allowances(self, verdict: Verdict) -> list[float]:
        """Errors that a selection may predict, largest first, until one is found that holds in truth."""
        if self._target.error is not None:
            return [self._target.error * margin for margin in _MARGINS]
        assert self._target.metric is not None
        assert verdict.metric is not None
        # A metric falls by the square of a small error: what is allowed follows from what the whole error costs.
        own = self._evaluator.float_metric()
        share = (own - self._target.metric) / max(own - verdict.metric, 1e-30)
        allowed = verdict.error * math.sqrt(min(max(share, 0.01), 1.0))
        return [allowed * margin for margin in _MARGINS]

    def _kept(self, recipe: Recipe, groups: Sequence[_Group], allowed: float) -> tuple[list[_Group], tuple[str, ...]]:
        """Which nodes stay float so that the others' squares add up to what is allowed; groups are divided for it."""
        current = list(groups)
        smallest = _SMALLEST * sum(self._costs.values())
        while True:
            chosen = self._worst(current, allowed)
            whole = [group for group in chosen if len(group.names) > 1 and self._cost(group) > smallest]
            if not whole:
                return current, tuple(name for group in chosen for name in group.names)
            largest = max(whole, key=lambda one: self._cost(one))
            current.remove(largest)
            current += self._halves(recipe, largest)

    def _worst(self, groups: Sequence[_Group], allowed: float) -> list[_Group]:
        """The groups with most error for their work, until what is left is allowed."""
        ordered = sorted(groups, key=lambda one: -one.square / max(self._cost(one), 1e-30))
        left = sum(group.square for group in groups)
        chosen: list[_Group] = []
        for group in ordered:
            if not left > allowed:
                break
            chosen.append(group)
            left = sum(one.square for one in groups if one not in chosen)
        return chosen

    def _halves(self, recipe: Recipe, group: _Group) -> list[_Group]:
        """A group as two, each measured with all other nodes in float; or the second has the rest of the group's error,
        if there is one, as errors also cancel."""
        middle = len(group.names) // 2
        if not middle:
            return [group]
        first, second = group.names[:middle], group.names[middle:]
        square = self._alone(recipe, first)
        rest = group.square - square
        if not self._infers or rest <= 0:
            rest = self._alone(recipe, second)
        return [_Group(first, square), _Group(second, rest)]

    def _alone(self, recipe: Recipe, names: Sequence[str]) -> float:
        """The square of the error that these nodes make by themselves."""
        chosen = set(names)
        others = tuple(name for name in self._names if name not in chosen)
        try:
            found = self._evaluator.error(recipe.with_kept(others))
        except InvalidQuantization:
            return 0.0  # none of them is quantised without the others
        return found**2 if math.isfinite(found) else float(np.finfo(np.float32).max)

    def _returned(self, recipe: Recipe, verdict: Verdict, groups: Sequence[_Group]) -> Result:
        """The recipe with the nodes of most work quantised again where the target allows: two tries."""
        squares = {group.names[0]: group.square for group in groups if len(group.names) == 1}
        current, known = recipe, verdict
        by_gain: Callable[[str], float] = lambda name: -self._costs[name] / max(squares.get(name, 0.0), 1e-30)  # noqa: E731
        for name in sorted(recipe.kept_float, key=by_gain)[:2]:
            kept = tuple(one for one in current.kept_float if one != name)
            candidate = current.with_kept(kept)
            found = self._evaluator.verdict(candidate)
            if self._target.is_reached(found):
                current, known = candidate, found
        return Result(current, known, True)

    def _cost(self, group: _Group) -> float:
        return sum(self._costs[name] for name in group.names)

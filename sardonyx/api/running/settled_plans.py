"""Plans for given sizes of the inputs, for models whose Ifs ask for sizes.

An exporter that traces no sizes writes an If for each question about them, and behind it not even ranks are known: such
a model runs node by node. For sizes that come again it is compiled once more, with the branches that they choose; for
those of an earlier process its engine is there at once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sardonyx import errors
from sardonyx.api.building.built import Built
from sardonyx.api.running.fast_run import ShortWay
from sardonyx.api.running.output_plans import OutputPlans
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.forks import free_in_child
from sardonyx.runtime.native.fast_call import FastCall
from sardonyx.runtime.plan import Plan

Sizes = tuple[tuple[int, ...], ...]

# Sizes that are kept, in memory and as engines of one session, and how often a model is compiled for some before it is
# taken for one whose sizes never settle.
MOST_SIZES = 4
MOST_BUILDS = 16
_MOST_SEEN = 64
_UNKNOWN: Any = object()  # what is known of sizes that have not come twice


@dataclass
class Settled:
    """What there is for some sizes: plans, a short way where they have one, and what keeps an engine of them."""

    plans: OutputPlans
    fast: tuple[ShortWay, FastCall] | None
    keep: Callable[[Sequence[Any]], bool] | None


class SettledPlans:
    """The plans of one session; any thread may ask.

    `build` compiles its model for inputs of these shapes, by name; `find` gives the same from an engine, if there is
    one.
    """

    def __init__(
        self,
        find: Callable[[Mapping[str, tuple[int, ...]]], Built | None],
        build: Callable[[Mapping[str, tuple[int, ...]]], Built],
        inputs: Sequence[str],
        outputs: Sequence[str],
    ) -> None:
        self._find, self._build = find, build
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)
        self._made: OrderedDict[Sizes, Settled | None] = OrderedDict()
        self._seen: set[Sizes] = set()
        self._builds = 0
        self._lock = free_in_child(threading.Lock())

    @property
    def plans(self) -> list[Plan]:
        """All that were made and are kept."""
        return [plan for one in list(self._made.values()) if one is not None for plan in one.plans.plans]

    @property
    def latest(self) -> dict[str, tuple[int, ...]]:
        """The shapes of inputs, by name, that a plan was made for last; none where there is no plan."""
        made = [sizes for sizes, one in list(self._made.items()) if one is not None]
        return dict(zip(self._inputs, made[-1], strict=True)) if made else {}

    def serves(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether inputs of these shapes, by name, have a plan of their own, or get one when they come again."""
        if any(name not in shapes for name in self._inputs):
            return False
        sizes = tuple(shapes[name] for name in self._inputs)
        known = self._made.get(sizes, _UNKNOWN)
        return self._builds < MOST_BUILDS if known is _UNKNOWN else known is not None

    def made(self, inputs: Sequence[Any]) -> Settled | None:
        """What there is for inputs like these."""
        sizes = _sizes(inputs)
        return None if sizes is None else self._made.get(sizes)

    def of(self, inputs: Sequence[Any]) -> Settled | None:
        """The same, compiled where such inputs come for the second time; not where another thread compiles."""
        sizes = _sizes(inputs)
        if sizes is None:
            return None
        known: Settled | None = self._made.get(sizes, _UNKNOWN)
        if known is not _UNKNOWN:
            return known
        is_new = sizes not in self._seen
        if is_new and len(self._seen) >= _MOST_SEEN:
            return None
        if self._builds >= MOST_BUILDS or not self._lock.acquire(blocking=False):
            return None
        try:
            self._seen.add(sizes)
            if sizes not in self._made:
                found = self._kept(sizes) if is_new else self._compiled(sizes)
                if found is None and is_new:
                    return None
                self._made[sizes] = found
                while len(self._made) > MOST_SIZES:
                    self._made.popitem(last=False)
            return self._made.get(sizes)
        finally:
            self._lock.release()

    def note(self, plan: Plan, inputs: Sequence[Any]) -> None:
        """A run of one of the plans had these inputs."""
        for one in list(self._made.values()):
            if one is not None and one.keep is not None and plan is one.plans.whole and not one.keep(inputs):
                one.keep = None

    def _kept(self, sizes: Sizes) -> Settled | None:
        built = self._find(dict(zip(self._inputs, sizes, strict=True)))
        return None if built is None else self._settled(built)

    def _compiled(self, sizes: Sizes) -> Settled | None:
        """None where the model breaks a rule for these sizes: its nodes say so, one by one, when they run."""
        self._builds += 1
        try:
            built = self._build(dict(zip(self._inputs, sizes, strict=True)))
        except errors.OnnxRuntimeError:
            return None
        return self._settled(built if self._builds <= MOST_SIZES else replace(built, keep=None))

    def _settled(self, built: Built) -> Settled:
        if built.open_ifs:  # it is data that decide, so that other sizes would not help either
            self._builds = MOST_BUILDS
        way = ShortWay.of(built.plan, self._inputs)
        fast = None if way is None else (way, way.fast_call())
        return Settled(OutputPlans(built.plan, self._outputs, built.compiled), fast, built.keep)


def _sizes(inputs: Sequence[Any]) -> Sizes | None:
    """The shapes of inputs that are all tensors."""
    if all(isinstance(value, np.ndarray) for value in inputs):
        return tuple([value.shape for value in inputs])
    return None

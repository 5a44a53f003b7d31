"""Routes: how the operations of a segment are walked by formulas, for inputs of kinds that came before.

Nobody needs the tensors between operations whose formulas hold: what lies where is the same as it was, and the numbers
of an operation's outputs go to the formulas of those that read them. Where none holds, that operation is bound.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Buffer, Tensor
from sardonyx.compiler.bound_step import contents_of
from sardonyx.compiler.new_sizes.course import Course, Faults, noted
from sardonyx.compiler.new_sizes.formulas import (
    TRIES,
    Family,
    Formula,
    Formulas,
    Numbers,
    Place,
    Sized,
    places_of,
    sized_of,
)
from sardonyx.compiler.new_sizes.reckoning import Arrays, Reckoning, Values
from sardonyx.compiler.new_sizes.recording import Recording
from sardonyx.compiler.new_sizes.replay import Replays
from sardonyx.compiler.pieces import Piece, Words
from sardonyx.light_dataclass import dataclass

if TYPE_CHECKING:
    from sardonyx.compiler.new_sizes.outline import Outline
    from sardonyx.compiler.segment import Operation

# Routes of a segment, and outlines that one of them remembers; beyond, all are dropped.
MOST_ROUTES = 64
_MOST_OUTLINES = 256
# Routes for inputs of the same kinds, which differ in what is computed on the way; beyond, the one longest unused goes.
_MOST_WAYS = 8

OutlineOf = Callable[[Sequence[Piece]], "Outline | None"]
_Known = tuple["Outline", Faults, Sequence[Array]]


class NoRouteError(Exception):
    """An operation makes constants."""


class NoOutlineError(Exception):
    """There is no outline for what the operations come to."""


class RoutedWalk:
    """What an outline reads of a `Walk`, found by formulas."""

    def __init__(self, binder: Binder, found: Sequence[Sized], faults: Faults, value: Callable[[int], Tensor | None]):
        self.binder = binder
        self.numbers: Words = np.frombuffer(b"".join([one.numbers for one in found]), np.int64)
        self.words = [one.words for one in found]
        self.nanoseconds = [one.nanoseconds for one in found]
        self.scratch_bytes = max([one.scratch_bytes for one in found], default=0)
        self.faults = faults
        self.value = value


@dataclass(eq=False, slots=True)
class _Choice:
    """A formula, and the contents of values that it depends on."""

    formula: Formula
    reads: Sequence[tuple[int, Hashable]]


@dataclass(eq=False, slots=True)
class _Last:
    """What a stage came to for the numbers `given`, which holds where values have the contents that it `reads`."""

    given: Sequence[int]
    reads: Sequence[tuple[int, Hashable]]
    chosen: Formula | Recording
    sized: Sized


@dataclass(eq=False, slots=True)
class _Stage:
    """The operations of a kind, the first of which reads the numbers of the values `reads`, and makes those that are
    `made` and no inputs. `choices` are the formulas among those of the family that give them at these `places`.
    All operations of a kind have to read the same contents. What it came to `last` serves again where it is given the
    same: most of a decoder never sees how long its past is."""

    kind: int
    operation: Operation  # the first one
    places: tuple[Place | None, ...]
    reads: Sequence[int]
    made: Sequence[int]
    family: Family | None = None  # None: not known yet
    choices: tuple[Sequence[Formula], Sequence[_Choice]] = (), ()
    last: _Last | None = None


@dataclass(eq=False, slots=True)
class _Computed:
    """Operations, one after the other, that are computed while binding, from what others make. Of its values in
    `sizes`, with how many numbers each has, formulas take those, which are of these `kinds`."""

    reckoning: Reckoning
    kinds: Hashable
    sizes: Sequence[tuple[int, int]]


class Route:
    """A way through a course, for inputs of the same kinds as those of a walk that gave these recordings; `value` gives
    its values.

    `sources` are those that are known before, with how many numbers each has; what follows from others is computed by
    the operations `later`. NoRouteError where there is none.
    """

    def __init__(
        self,
        course: Course,
        sources: Sequence[tuple[int, int]],
        later: Sequence[Operation],
        recordings: Sequence[Recording],
        value: Callable[[int], Tensor | None],
        formulas: Formulas,
    ) -> None:
        self._course = course
        self._sources = sources
        self._stages: list[_Stage] = []
        self._known: dict[tuple[Formula | Recording, ...], _Known] = {}
        # Of each value that an operation of a kind makes: that operation, and the place among its outputs.
        self._makers = {
            number: (index, place)
            for index, kind in enumerate(course.kinds)
            if kind >= 0
            for place, number in enumerate(course.operations[index].outputs)
        }
        self._way: list[_Stage | _Computed] = []
        for is_computed, indices in groupby(course.bound, lambda index: course.kinds[index] < 0):
            operations = [course.operations[index] for index in indices]
            if is_computed:
                operations = [one for one in operations if one in later]
                if operations:
                    self._way.append(_computed(Reckoning(operations, course.taken), value, formulas))
                continue
            for operation in operations:
                kind = len(self._stages)
                self._stages.append(self._stage(kind, operation, places_of(recordings[kind]), value, formulas))
                self._way.append(self._stages[-1])
        numbered = {number for number, _ in sources}.union(*(stage.made for stage in self._stages))
        numbered.update(number for one in self._way if isinstance(one, _Computed) for number, _ in one.sizes)
        alike = {(self._numbers_of(one), self._numbers_of(other)) for one, other in course.alike}
        self._alike = [(one, other) for one, other in alike if one != other and {one, other} <= numbered]

    @property
    def signature(self) -> Hashable:
        """What its walks have in common: of what kinds what is computed is, and where outputs lie."""
        return tuple([one.kinds if isinstance(one, _Computed) else one.places for one in self._way])

    def _stage(
        self,
        kind: int,
        operation: Operation,
        places: tuple[Place | None, ...],
        value: Callable[[int], Tensor | None],
        formulas: Formulas,
    ) -> _Stage:
        """The stage of the operation that is the first of its kind, whose outputs lie at these places."""
        if any(one is not None and one.is_constant for one in places):
            raise NoRouteError
        read = [None if number < 0 else value(number) for number in operation.inputs]
        pairs = zip(operation.inputs, read, strict=True)
        reads = [self._numbers_of(number) for number, one in pairs if one is not None and not formulas.stays(one)]
        made = [number for number, one in zip(operation.outputs, places, strict=False) if one and one.given < 0]
        family = formulas.family((operation.structure, False), read)
        return _Stage(kind, operation, places, reads, made, family)

    def _root(self, number: int) -> int:
        """The value that it is: itself, or the input that its operation gives back."""
        while number in self._makers:
            index, place = self._makers[number]
            lies = self._stages[self._course.kinds[index]].places[place]
            if lies is None or lies.given < 0:
                break
            number = self._course.operations[index].inputs[lies.given]
        return number

    def _numbers_of(self, number: int) -> int:
        """The value of the same numbers that is a source, or that the first operation of a kind makes."""
        number = self._root(number)
        if number not in self._makers:
            return number
        index, place = self._makers[number]
        return self._course.operations[self._course.of_kind[self._course.kinds[index]][0]].outputs[place]

    def walk(
        self,
        binder: Binder,
        begun: tuple[Values, Arrays],
        numbers: Numbers,
        replays: Replays,
        outline_of: OutlineOf,
    ) -> tuple[RoutedWalk, Outline] | None:
        """The walk for sources of these numbers, and the outline of its plan, which `outline_of` gives by the pieces of
        all kinds; None where an operation gives its outputs in another way. What has `begun` it are the sources."""
        values, arrays = begun
        own = _dealt(numbers, self._sources)
        value = _RoutedValues(self, values, own)
        chosen: list[Formula | Recording] = []
        found: list[Sized] = []
        for stage in self._way:
            if isinstance(stage, _Computed):
                if not stage.reckoning.run(binder, value, arrays, values):
                    return None
                kinds, made = replays.formulas.taken_apart([values[number] for number in stage.reckoning.made])
                if kinds != stage.kinds:
                    return None
                own.update(_dealt(made, stage.sizes))
                continue
            given = [each for number in stage.reads for each in own[number]]
            last = stage.last
            if last is None or last.given != given or not _hold(last.reads, values):
                last = self._by_formula(stage, values, given) or self._bound(stage, binder, value, replays, given)
                if last is None:
                    return None
            chosen.append(last.chosen)
            own.update(zip(stage.made, last.sized.outputs, strict=True))
            found.append(last.sized)
        if not all(own[one] == own[other] for one, other in self._alike):
            return None
        outline, faults, constants = self._outline(tuple(chosen), outline_of)
        binder.constants += constants
        return RoutedWalk(binder, found, faults, value), outline

    def _by_formula(self, stage: _Stage, values: Values, given: Sequence[int]) -> _Last | None:
        """What the first formula gives that holds for these numbers."""
        family = stage.family
        if family is None:
            return None
        formulas, choices = stage.choices
        if formulas is not family.formulas:
            choices = self._choices(stage, family.formulas)
            stage.choices = family.formulas, choices
        for choice in choices:
            sized = choice.formula.sized(given) if _hold(choice.reads, values) else None
            if sized is not None:
                family.tries = TRIES
                last = _Last(given, choice.reads, choice.formula, sized)
                stage.last = last  # read by other threads, and replaced
                return last
        return None

    def _bound(
        self, stage: _Stage, binder: Binder, value: _RoutedValues, replays: Replays, numbers: Sequence[int]
    ) -> _Last | None:
        """What the binding of an operation comes to; None where it has other outputs than it had, or is refused."""
        operation = stage.operation
        assert operation.structure is not None
        given = [None if number < 0 else value(number) for number in operation.inputs]
        binder.label, binder.origin = operation.label, operation
        try:
            _, found = replays.bind(operation.structure, operation.bind, binder, given, as_piece=True)
        except Exception:  # the ordinary way says so
            return None
        stage.family = replays.formulas.family(operation.structure, given)
        if found is None or places_of(found) != stage.places:
            return None
        read = [self._course.operations[index].inputs for index in self._course.of_kind[stage.kind]]
        for place in found.read:
            if len({contents_of(None if one[place] < 0 else value(one[place])) for one in read}) > 1:
                return None
        reads = self._reads(stage, [(place, contents_of(given[place])) for place in found.read])
        last = _Last(numbers, reads or (), found, sized_of(found, given))
        lasting = (given[one.place] for one in found.derived)
        if reads is not None and all(one is not None and replays.formulas.stays(one) for one in lasting):
            stage.last = last
        return last

    def _reads(self, stage: _Stage, reads: Iterable[tuple[int, Hashable]]) -> Sequence[tuple[int, Hashable]] | None:
        """Values with the contents that they have to have, where the operations of a kind are to read such at places;
        of the constants that is known now: None where one of them has others."""
        inputs = [self._course.operations[index].inputs for index in self._course.of_kind[stage.kind]]
        wanted = {(self._root(read[place]), contents) for place, contents in reads for read in inputs}
        fixed = {(number, contents_of(one)) for number, _ in wanted if (one := self._course.fixed.get(number))}
        return list(wanted - fixed) if fixed <= wanted else None

    def _choices(self, stage: _Stage, formulas: Sequence[Formula]) -> Sequence[_Choice]:
        """Those of the formulas that give the outputs of a stage where they lie."""
        found: list[_Choice] = []
        for formula in formulas:
            reads = self._reads(stage, formula.reads) if formula.places == stage.places else None
            if reads is not None:
                found.append(_Choice(formula, reads))
        return found

    def _outline(self, chosen: tuple[Formula | Recording, ...], outline_of: OutlineOf) -> _Known:
        """The outline of plans by these formulas, what kernels may note, in the order of the notes, and the constants
        that kernels read beside those of the outline. NoOutlineError where there is none."""
        known = self._known.get(chosen)
        if known is not None:
            return known
        outline = outline_of([one.template if isinstance(one, Formula) else one.piece for one in chosen])
        if outline is None:
            raise NoOutlineError
        recordings = [one.recording if isinstance(one, Formula) else one for one in chosen]
        found = outline, noted(self._course, recordings), [array for one in recordings for array in one.constants]
        if len(self._known) >= _MOST_OUTLINES:
            self._known.clear()
        self._known[chosen] = found
        return found


def _hold(reads: Iterable[tuple[int, Hashable]], values: Values) -> bool:
    """Whether values have these contents."""
    return all(contents_of(values.get(number)) == contents for number, contents in reads)


def _dealt(numbers: Sequence[int], sizes: Sequence[tuple[int, int]]) -> dict[int, Sequence[int]]:
    """The numbers of each value, of which there are so many."""
    found: dict[int, Sequence[int]] = {}
    at = 0
    for number, count in sizes:
        found[number] = numbers[at : at + count]
        at += count
    return found


def _computed(reckoning: Reckoning, value: Callable[[int], Tensor | None], formulas: Formulas) -> _Computed:
    """Operations that are computed while binding, where `value` gives what they come to."""
    kinds, _ = formulas.taken_apart([value(number) for number in reckoning.made])
    if kinds is None:
        raise NoRouteError
    sizes = [(number, len(formulas.taken_apart([value(number)])[1])) for number in reckoning.made]
    return _Computed(reckoning, kinds, sizes)


class _RoutedValues:
    """Any value of the segment, of whose numbers it is known by `own` what they are; `values` are the sources."""

    def __init__(self, route: Route, values: Values, own: Mapping[int, Sequence[int]]) -> None:
        self._route = route
        self._values = values
        self._own = own
        self._buffers: dict[tuple[int, int], Buffer] = {}

    def __call__(self, number: int) -> Tensor | None:
        route = self._route
        number = route._root(number)
        if number not in route._makers:
            return self._values.get(number) or route._course.fixed.get(number)
        index, place = route._makers[number]
        lies = route._stages[route._course.kinds[index]].places[place]
        if lies is None:
            return None
        nbytes, *rest = self._own[route._numbers_of(number)]
        assert lies.dtype is not None
        if lies.over < 0:
            buffer = self._buffers.setdefault((index, lies.new), Buffer(nbytes))
        else:
            under = self(route._course.operations[index].inputs[lies.over])
            assert under is not None
            buffer = under.buffer
        return Tensor(lies.dtype, tuple(rest[: lies.rank]), tuple(rest[lies.rank : 2 * lies.rank]), buffer, rest[-1])


class Routes:
    """The routes through one course, by the kinds of what they begin with."""

    def __init__(self, course: Course, replays: Replays) -> None:
        self._course = course
        self._replays = replays
        self._formulas = replays.formulas
        computed: list[Operation] = []  # while binding, from inputs and constants alone
        self._later: list[Operation] = []  # the same from what others make
        kinds = zip(course.operations, course.kinds, strict=True)
        made = {number for one, kind in kinds if kind >= 0 for number in one.outputs}
        for operation in [course.operations[index] for index in course.bound if course.kinds[index] < 0]:
            if made.isdisjoint(number for number in operation.inputs if number >= 0):
                computed.append(operation)
            else:
                self._later.append(operation)
                made.update(operation.outputs)
        self._reckoning = Reckoning(computed, course.taken)
        self._routes: dict[Hashable, tuple[Route, ...]] = {}  # the last one that was walked comes first

    def walk(self, binder: Binder, inputs: Values, outline_of: OutlineOf) -> tuple[RoutedWalk, Outline] | None:
        """The walk for these inputs, and the outline of its plan; None where no route leads there."""
        if not self._routes:
            return None
        begun = self._begun(binder, inputs)
        if begun is None:
            return None
        kinds, numbers = self._taken_apart(begun[0])
        for route in self._routes.get(kinds, ()):
            found = route.walk(binder, begun, numbers, self._replays, outline_of)
            if found is not None:
                self._put_first(kinds, route)
                return found
        return None

    def _put_first(self, kinds: Hashable, route: Route) -> None:
        """Try this route first from now on, for inputs of these kinds."""
        known = self._routes.get(kinds, ())
        if not known or known[0] is not route:
            others = [one for one in known if one is not route]
            self._routes = {**self._routes, kinds: (route, *others[: _MOST_WAYS - 1])}

    def learn(
        self,
        binder: Binder,
        inputs: Values,
        recordings: Sequence[Recording],
        value: Callable[[int], Tensor | None],
    ) -> None:
        """Find the route for inputs like these, where it has been walked without one: `value` gives what was bound.

        Inputs of the same kinds may need several: one token and many differ in how many numbers are computed of them.
        """
        begun = self._begun(binder, inputs)
        if begun is None:
            return
        values, _ = begun
        kinds, _ = self._taken_apart(values)
        if kinds is None:
            return
        sources = [(number, len(self._taken_apart({number: one})[1])) for number, one in values.items()]
        try:
            route = Route(self._course, sources, self._later, recordings, value, self._formulas)
        except NoRouteError:
            return
        known = self._routes.get(kinds, ())
        if any(route.signature == one.signature for one in known):
            return  # it would lead no further than that one
        if not known and len(self._routes) >= MOST_ROUTES:
            self._routes = {}
        self._put_first(kinds, route)

    def _taken_apart(self, values: Values) -> tuple[Hashable, Numbers]:
        """The kinds and the numbers of those values that formulas take."""
        return self._formulas.taken_apart([one for number, one in values.items() if number in self._course.read])

    def _begun(self, binder: Binder, inputs: Values) -> tuple[Values, Arrays] | None:
        """The inputs with what is computed of them while binding, as values and as arrays; None where an operation
        refuses them."""
        values: Values = dict(inputs)
        arrays: dict[int, Array] = {}
        fixed = self._course.fixed

        def value(number: int) -> Tensor | None:
            return values.get(number) or fixed.get(number)

        return (values, arrays) if self._reckoning.run(binder, value, arrays, values) else None

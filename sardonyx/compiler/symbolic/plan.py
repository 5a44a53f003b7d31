"""Symbolic plans: a segment bound once, and evaluated for other sizes.

The operations of a segment are of few kinds, such as the equal ones of all layers. A symbolic plan has a stage for each
kind, with guarded variants of its binding; evaluated one after the other, they give the numbers of all steps, and a
layout puts these in place. If the guards of all variants of a stage fail, its operation alone is bound again, as one
more variant. Nobody needs the tensors between stages: a value is its kind and its numbers.

Nothing is taken for granted. Operations of one kind have to look the same for the new sizes, and the steps have to
touch the buffers that they touched in a plan that was bound operation by operation: else the segment is bound so again.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Buffer, Tensor
from sardonyx.compiler.bound_step import contents_of
from sardonyx.compiler.joint_results import Rooms, Slice
from sardonyx.compiler.operation import Operation
from sardonyx.compiler.recording import Describe
from sardonyx.compiler.symbolic.layout import NoLayoutError, PlanLayout, PlanNumbers, Sample
from sardonyx.compiler.symbolic.shape_program import ShapeProgram, Values
from sardonyx.compiler.symbolic.template import taken_apart
from sardonyx.compiler.symbolic.variants import Entry, Kinds, Sized, Variant, VariantMaker
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.forks import free_in_child

# Layouts of a segment, and combinations of variants whose layout is known; beyond, all are dropped.
MOST_LAYOUTS = 64
_MOST_COMBINATIONS = 256
# So many plans of a segment without a layout, and none is made any more. That of a long prompt may have none if those
# of single tokens do.
_MOST_FAILURES = 4
# Variants of a stage for inputs of the same kinds; of how many in a row that were of no use others are tried.
MOST_VARIANTS = 32
TRIES = 4
# Traced variants that are made with one plan: each takes as long as to bind a few operations.
_MOST_TRACED = 16

# Values with the contents that they have to have.
Reads = Sequence[tuple[int, Hashable]]
Faults = Sequence[tuple[Operation, Describe]]


@dataclass(eq=False, slots=True)
class _Outcome:
    """What a stage came to for the numbers `given`, if values have the contents that it `reads`: a variant and its
    numbers. `made` are values that it makes, `passed` those that are inputs, with these."""

    given: Sequence[Entry]
    reads: Reads
    variant: Variant
    sized: Sized
    made: Sequence[tuple[int, Entry]]
    passed: Sequence[tuple[int, int]]


class _Stage:
    """The operations of one kind, the first of which reads the values `reads` that are no constants of the model.

    All operations of a kind have to read the same contents. The `last` outcome serves again if the stage is given the
    same: most of a decoder never sees how long its past is.
    """

    def __init__(self, operations: Sequence[Operation], reads: Sequence[int]) -> None:
        self.operations = operations
        self.reads = reads
        self.last: _Outcome | None = None
        self.variants: dict[tuple[int, ...], Sequence[tuple[Variant, Reads]]] = {}
        self.tries = TRIES  # how many more traced variants may be made
        # By the kinds of the inputs: the last numbers, and the places of those that have differed so far.
        self._seen: dict[tuple[int, ...], tuple[Sequence[int], frozenset[int]]] = {}

    def note(self, given: Sequence[Entry]) -> list[bool]:
        """Of inputs that no variant was made for: which of their numbers have differed so far."""
        kinds, numbers = _kinds(given), [number for one in given for number in one[1:]]
        before, varying = self._seen.get(kinds, (numbers, frozenset[int]()))
        pairs = enumerate(zip(before, numbers, strict=True))
        varying = varying.union([place for place, (one, other) in pairs if one != other])
        self._seen[kinds] = numbers, varying
        return [place in varying for place in range(len(numbers))]

    def add(self, kinds: tuple[int, ...], variant: Variant, reads: Reads) -> None:
        """Keep a variant for inputs of these kinds."""
        self.variants[kinds] = [*self.variants.get(kinds, ()), (variant, reads)]

    def has_room(self, kinds: tuple[int, ...]) -> bool:
        """Whether one more may be made."""
        return self.tries > 0 and len(self.variants.get(kinds, ())) < MOST_VARIANTS


class SymbolicPlan:
    """The stages of a segment with these `operations`. `kinds` numbers them in the order of their first ones, -1 for
    those that are computed while a plan is evaluated; `fixed` are the model's constants, `outputs` the results, and
    values in `slices` have rows that lie apart.

    NoLayoutError if operations of a kind do not read alike, or if one of no kind is not computed.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        kinds: Sequence[int],
        fixed: Mapping[int, Tensor],
        outputs: Iterable[int],
        entries: Kinds,
        slices: Mapping[int, Slice],
    ) -> None:
        self.operations, self.kinds, self.fixed, self.entries = operations, kinds, fixed, entries
        self._rooms = Rooms(slices)
        # Of each value that an operation of a kind makes: the operation, the place among its outputs, and the value
        # that the first operation of the kind makes there.
        self.makers: dict[int, tuple[int, int, int]] = {}
        self.of_kind: list[list[int]] = []
        alike: dict[tuple[int, int], None] = {}
        for index, (operation, kind) in enumerate(zip(operations, kinds, strict=True)):
            if kind < 0:
                if operation.computation is None:
                    raise NoLayoutError
                continue
            if kind == len(self.of_kind):
                self.of_kind.append([])
            self.of_kind[kind].append(index)
            first = operations[self.of_kind[kind][0]]
            for place, number in enumerate(operation.outputs):
                self.makers[number] = index, place, first.outputs[place]
            read, wanted = self._read(operation), self._read(first)
            if len(read) != len(wanted):
                raise NoLayoutError
            alike.update(dict.fromkeys(zip(read, wanted, strict=True)))
        # Pairs of values that have to look alike, so that what the first of a kind does is right for the others.
        self._alike = [(one, other) for one, other in alike if one != other]
        chosen = [operations[index] for indices in self.of_kind for index in indices]
        self._taken = {number for one in chosen for number in one.inputs if number >= 0}
        self.stages = [self._stage([operations[index] for index in indices]) for indices in self.of_kind]
        self._way = self._parts(self._taken.union(outputs))
        self._maker = VariantMaker(entries)

    def _read(self, operation: Operation) -> list[int]:
        """What an operation reads that is no constant of the model, as values that first operations make."""
        read = [number for number in operation.inputs if number >= 0 and number not in self.fixed]
        return [self.makers[number][2] if number in self.makers else number for number in read]

    def _stage(self, operations: Sequence[Operation]) -> _Stage:
        return _Stage(operations, self._read(operations[0]))

    def _parts(self, wanted: Collection[int]) -> list[_Stage | ShapeProgram]:
        """Stages and shape programs in order. What follows from the inputs alone is computed first."""
        early: list[Operation] = []
        later: list[list[Operation]] = [[] for _ in self.stages] or [[]]
        made, count = set(self.makers), 0
        for operation, kind in zip(self.operations, self.kinds, strict=True):
            if kind >= 0:
                count = max(count, kind + 1)
            elif made.isdisjoint(operation.inputs):
                early.append(operation)
            else:
                later[count - 1].append(operation)
                made.update(operation.outputs)
        parts: list[_Stage | ShapeProgram] = [ShapeProgram(early, wanted)] if early else []
        for stage, behind in zip(self.stages, later, strict=True):
            parts += [stage, ShapeProgram(behind, wanted)] if behind else [stage]
        return parts

    def note(self, sample: Sample) -> None:
        """See the numbers of a plan that was bound operation by operation."""
        for stage, indices in zip(self.stages, self.of_kind, strict=True):
            bound = sample.operations[indices[0]]
            pairs = zip(bound.operation.inputs, bound.inputs, strict=True)
            read = [one for number, one in pairs if one is not None and number not in self.fixed]
            stage.note([self.entries.entry(one) for one in read])

    def evaluate(self, binder: Binder, inputs: Values) -> Evaluation | None:
        """The numbers of the plan for these inputs; None if operations of a kind differ, or one of them refuses what it
        is given."""
        found = Evaluation(self, binder, inputs)
        entry, own, values = self.entries.entry, found.own, found.values
        own.update((number, entry(one)) for number, one in inputs.items() if one is not None)
        arrays: dict[int, Array] = {}
        for part in self._way:
            if type(part) is ShapeProgram:
                if not part.run(binder, found.value, arrays, values):
                    return None
                own.update((number, entry(values[number])) for number in part.made)  # type: ignore[arg-type]
                continue
            assert type(part) is _Stage
            given = [own[number] for number in part.reads]
            last = part.last
            if last is None or last.given != given or (last.reads and not found.hold(last.reads)):
                last = self._by_variant(part, given, found) or self._bound(part, given, found)
                if last is None:
                    return None
                part.last = last  # read by other threads, and replaced
            found.outcomes.append(last)
            own.update(last.made)
            for number, source in last.passed:
                own[number] = own[source]
        return found if all(own[one] == own[other] for one, other in self._alike) else None

    def _by_variant(self, stage: _Stage, given: Sequence[Entry], found: Evaluation) -> _Outcome | None:
        """What the first variant gives whose guards hold."""
        for variant, reads in stage.variants.get(_kinds(given), ()):
            sized = variant.sized(given) if found.hold(reads) else None
            if sized is not None:
                stage.tries = TRIES
                return self._outcome(stage, given, reads, variant, sized)
        return None

    def _bound(self, stage: _Stage, given: Sequence[Entry], found: Evaluation) -> _Outcome | None:
        """What the binding of an operation comes to, which is one more variant; None if it is refused."""
        operation, binder = stage.operations[0], found.binder
        kinds, varies = _kinds(given), stage.note(given)
        binder.label, binder.origin = operation.label, operation
        binder.slices = self._rooms.slices(operation.outputs)
        made: tuple[Variant, Sized] | None = None
        try:
            inputs = [None if number < 0 else found.value(number) for number in operation.inputs]
            if any(varies) and stage.has_room(kinds) and found.traced < _MOST_TRACED:
                stage.tries -= 1
                found.traced += 1
                made = self._maker.traced(operation.bind, binder, inputs, varies)
            variant, sized = made or self._maker.bound(operation.bind, binder, inputs)
        except Exception:  # the ordinary way says so
            return None
        reads = self._reads(stage, variant)
        passed = [operation.inputs[one.given] for one in variant.places if one is not None and one.given >= 0]
        if reads is None or not self.fixed.keys().isdisjoint(passed) or not found.hold(reads):
            return None
        if made is not None:
            stage.add(kinds, variant, reads)
        return self._outcome(stage, given, reads, variant, sized)

    def _reads(self, stage: _Stage, variant: Variant) -> Reads | None:
        """Values with the contents that they have to have, so that all operations of a kind read the same; of the
        constants that is known now: None if one of them has others."""
        pairs = [(one.inputs[place], contents) for place, contents in variant.reads for one in stage.operations]
        if any(contents_of(self.fixed[number]) != contents for number, contents in pairs if number in self.fixed):
            return None
        return list(dict.fromkeys(pair for pair in pairs if pair[0] not in self.fixed))

    def _outcome(self, stage: _Stage, given: Sequence[Entry], reads: Reads, variant: Variant, sized: Sized) -> _Outcome:
        first, outputs = stage.operations[0], iter(sized.outputs)
        made: list[tuple[int, Entry]] = []
        passed: list[tuple[int, int]] = []
        for number, place in zip(first.outputs, variant.places, strict=False):
            if place is None:
                continue
            if place.given < 0:
                made.append((number, next(outputs)))
            else:
                source = first.inputs[place.given]
                passed.append((number, self.makers[source][2] if source in self.makers else source))
        return _Outcome(given, reads, variant, sized, made, passed)

    def faults(self, variants: Sequence[Variant]) -> Faults:
        """What kernels may assert while they run, in the order of the error slots: whose it is, and what makes the
        error."""
        pairs = zip(variants, self.of_kind, strict=True)
        noting = [(index, one) for one, found in pairs if one.faults for index in found]
        noting.sort(key=lambda found: found[0])
        return [(self.operations[index], describe) for index, one in noting for describe in one.faults]


class Evaluation:
    """A symbolic plan for some sizes. `own` has values as numbers, `values` those as tensors that
    somebody asked for; `traced` counts the variants that were made."""

    def __init__(self, plan: SymbolicPlan, binder: Binder, inputs: Values) -> None:
        self.binder = binder
        self.values = dict(inputs)
        self.own: dict[int, Entry] = {}
        self.outcomes: list[_Outcome] = []
        self.traced = 0
        self._plan = plan
        self._buffers: dict[tuple[int, int], Buffer] = {}

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Those of all kinds, in order."""
        return tuple([one.variant for one in self.outcomes])

    @property
    def numbers(self) -> PlanNumbers:
        """What the layout puts in place."""
        sized = [one.sized for one in self.outcomes]
        kept = itertools.chain.from_iterable([one.variant.constants for one in self.outcomes])
        return PlanNumbers(
            [one.words for one in sized],
            np.frombuffer(b"".join([one.numbers for one in sized]), np.int64),
            [one.nanoseconds for one in sized],
            max([one.scratch_bytes for one in sized], default=0),
            [*self.binder.constants, *kept],
            self.value,
        )

    def hold(self, reads: Reads) -> bool:
        """Whether values have these contents."""
        return all(contents_of(self.value(number)) == contents for number, contents in reads)

    def value(self, number: int) -> Tensor | None:
        """Any value of the segment that there is so far."""
        plan = self._plan
        known = self.values.get(number) or plan.fixed.get(number)
        if known is not None or number not in plan.makers:
            return known
        index, place, first = plan.makers[number]
        inputs = plan.operations[index].inputs
        lies = self.outcomes[plan.kinds[index]].variant.places[place]
        if lies is None:
            return None
        if lies.given >= 0:
            found = self.value(inputs[lies.given])
        else:
            under = None if lies.over < 0 else self.value(inputs[lies.over])
            buffer = self._buffers.get((index, lies.new)) if under is None else under.buffer
            found = plan.entries.tensor(self.own[first], buffer)
            if under is None:
                self._buffers[index, lies.new] = found.buffer
        self.values[number] = found
        return found


class SymbolicPlans:
    """The symbolic plan of one segment, which gains layouts; `fixed` are the model's constants by their numbers,
    `outputs` the numbers of what it makes, `slices` those of values whose rows lie apart, and `lasting` has the `id` of
    contents that live as long as the segment."""

    def __init__(
        self,
        operations: Sequence[Operation],
        fixed: Mapping[int, Tensor],
        outputs: Sequence[int],
        slices: Mapping[int, Slice],
        lasting: Collection[int],
    ) -> None:
        self._operations = operations
        self._fixed = fixed
        self._outputs = outputs
        self._slices = slices
        self._kinds = Kinds(lasting)
        self._plan: SymbolicPlan | None = None
        self._layouts: dict[Hashable, PlanLayout] = {}
        self._topologies: dict[Hashable, int] = {}
        self._combinations: dict[tuple[Variant, ...], tuple[PlanLayout, Faults]] = {}
        self._sample: Sample | None = None
        self._failures = 0  # plans that had no layout
        self._lock = free_in_child(threading.RLock())

    def learn(self, sample: Sample) -> None:
        """Keep a plan that was bound operation by operation: its layout is made when another plan is wanted."""
        if self._failures < _MOST_FAILURES:
            self._sample = sample

    def evaluate(self, binder: Binder, inputs: Values) -> tuple[Evaluation, PlanLayout, Faults] | None:
        """The numbers of the plan for other inputs, its layout, and what its kernels may assert.

        None if there is no such plan, or if an operation does not take its inputs.
        """
        with self._lock:
            if self._sample is not None:
                sample, self._sample = self._sample, None
                self._take_in(sample)
            plan = self._plan
        found = None if plan is None else plan.evaluate(binder, inputs)
        if plan is None or found is None:
            return None
        variants = found.variants
        known = self._combinations.get(variants)
        if known is None:
            with self._lock:  # both may be made anew meanwhile
                layout = self._layouts.get(self._key([one.template.topology for one in variants]))
                if layout is None or plan is not self._plan:
                    return None
            known = layout, plan.faults(variants)
            if len(self._combinations) >= _MOST_COMBINATIONS:
                self._combinations.clear()
            self._combinations[variants] = known
        return found, *known

    def _key(self, topologies: Iterable[Hashable]) -> Hashable:
        """The numbers of topologies."""
        return tuple([self._topologies.setdefault(one, len(self._topologies)) for one in topologies])

    def _take_in(self, sample: Sample) -> None:
        """Make the layout of a plan. Operations are of one kind that were so in all plans."""
        found = [None if bound.recording is None else id(bound.recording) for bound in sample.operations]
        pairs = list(zip(found, found if self._plan is None else self._plan.kinds, strict=True))
        numbers = {pair: place for place, pair in enumerate(dict.fromkeys(one for one in pairs if one[0] is not None))}
        kinds = tuple([numbers.get(pair, -1) for pair in pairs])
        recordings = {kind: one.recording for one, kind in zip(sample.operations, kinds, strict=True) if kind >= 0}
        templates = [taken_apart(one)[0] for one in recordings.values() if one is not None]
        if len(self._layouts) >= MOST_LAYOUTS:
            self._layouts, self._topologies, self._combinations = {}, {}, {}
        try:
            if not templates:  # all of it is computed while binding
                raise NoLayoutError
            layout = PlanLayout(sample, kinds, templates, self._fixed)
            if self._plan is None or kinds != self._plan.kinds:
                given = self._fixed, self._outputs, self._kinds, self._slices
                plan = SymbolicPlan(self._operations, kinds, *given)
                self._plan, self._layouts, self._combinations = plan, {}, {}
            self._layouts[self._key([one.topology for one in templates])] = layout
            self._plan.note(sample)
        except NoLayoutError:
            self._failures += 1


def _kinds(given: Sequence[Entry]) -> tuple[int, ...]:
    return tuple([one[0] for one in given])

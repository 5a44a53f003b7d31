"""A segment: nodes between two host steps, compiled to native code as one step of the session's plan.

`segment_build.py` lowers and fuses once. `bind` makes the native plan for given shapes of the inputs: it walks the
segment with tensors that have shapes and no contents, computes what follows from shapes alone, and collects the steps.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import errors
from sardonyx.compiler.batches.batch_size import NotSeparableError, batch_in_rounds
from sardonyx.compiler.binding import Array, Binder, Bound, Fault, Prepared, Stretch, Tensor
from sardonyx.compiler.bound_step import ComputedBuffer
from sardonyx.compiler.computation import Computation
from sardonyx.compiler.fusion import Group
from sardonyx.compiler.joint_results import Rooms, Slice
from sardonyx.compiler.llvm.compiler_process import held
from sardonyx.compiler.llvm.library import KernelLibrary
from sardonyx.compiler.native.movement.copy import copy
from sardonyx.compiler.new_sizes.looks import Looks
from sardonyx.compiler.new_sizes.outline import LaterSteps, Outlines, Sample
from sardonyx.compiler.new_sizes.recording import Recording
from sardonyx.compiler.new_sizes.replay import MOST_RECORDINGS, Replays
from sardonyx.compiler.pairs import Pair
from sardonyx.compiler.shared_constants import ConstantShares, Use
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.executor import error_of_node
from sardonyx.runtime.memory.constant_memory import HeldConstant
from sardonyx.runtime.settings import DEFAULT, RunSettings

Tensors = Sequence["Tensor | None"]


@dataclass(frozen=True, eq=False, slots=True)
class Operation:
    """One thing to bind: the group's nodes, and the numbers of the values that it reads and makes (-1: absent)."""

    group: Group
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    bind: Callable[[Binder, Tensors], Tensors]
    label: str
    structure: int | None  # the same for operations that bind alike; None: it is computed while binding
    computation: Computation | None = None  # what that computes


@dataclass(frozen=True, eq=False, slots=True)
class PairOperation:
    """Two operations as one: `whole` can stand in place of both, where `second` is."""

    pair: Pair
    whole: Operation
    second: Operation


@dataclass(eq=False, slots=True)
class BoundOperation:
    """An operation in one plan, with the values that it reads and makes there."""

    operation: Operation
    inputs: Tensors
    outputs: Tensors = ()
    recording: Recording | None = None  # None: it cannot be replayed, or need not
    end: int = 0  # how many steps the plan has up to here


class OperationError(Exception):
    """An operation that cannot be bound: `cause` is the error of its node."""

    def __init__(self, cause: errors.OnnxRuntimeError, bound: BoundOperation) -> None:
        super().__init__(cause.message)
        self.cause = cause
        self.bound = bound


@dataclass
class Segment:
    """The operations of a segment in order, over numbered values; the groups that need none are among `groups` only.

    `inputs` and `outputs` are values that cross its border, `constants` the model's own. Of the inputs in `steering`
    it reads the contents while binding.
    """

    library: KernelLibrary
    groups: tuple[Group, ...]
    operations: tuple[Operation, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    input_dtypes: tuple[np.dtype[Any], ...]
    _numbers: dict[ir.Value, int]
    _constants: dict[int, Tensor] = field(default_factory=dict)
    settings: RunSettings = DEFAULT
    steering: frozenset[ir.Value] = frozenset()
    pairs: Mapping[int, PairOperation] = field(default_factory=dict)  # by the `id` of the first operation
    slices: Mapping[int, Slice] = field(default_factory=dict)  # the numbers of values that lie in results of Concats
    _prepared: Prepared = field(default_factory=dict)
    _shares: ConstantShares | None = None  # None: made for this segment
    _paying: dict[Hashable, bool] = field(default_factory=dict)
    _looks: Looks = field(default_factory=Looks)

    def __post_init__(self) -> None:
        constants = [one.source for one in self._constants.values() if one.source is not None]
        self._replays = Replays(constants, self._looks)
        self._shares = self._shares or ConstantShares(self.library.target.key)
        self._last_read = _last_read(self.operations, self.pairs, {self._numbers[value] for value in self.outputs})
        # Pairs depend on sizes, and steps side by side come in another order than their operations.
        is_plain = not self.pairs and self.settings.branches == 1 and self.settings.reuses_memory
        self._outlines = Outlines(self.operations, self._constants, self.numbers_of(self.outputs)) if is_plain else None

    @property
    def steering_places(self) -> tuple[int, ...]:
        """The places of those inputs whose contents it reads."""
        return tuple(place for place, value in enumerate(self.inputs) if value in self.steering)

    @held()
    def bind(
        self, shapes: Sequence[Sequence[int]], contents: Sequence[Array] = (), *, rehearses: bool = False
    ) -> tuple[Bound, dict[int, Array]]:
        """The native plan for inputs of these shapes, and those outputs (by place) that are known already.

        `contents` are those of the inputs at `steering_places`. With `rehearses`, the shapes are guessed, and kernels
        for others are made ready as well. OperationError where the shapes break the rule of a node.

        A batch may be done in rounds of fewer items, see `batch_rounds`.
        """
        reason = ""
        whole = bool(self.steering_places) or not (self.settings.reuses_memory and self.settings.packs)
        if not whole and batch_in_rounds(shapes, self.settings.batch_items):
            from sardonyx.compiler.batches.batch_rounds import bind_in_rounds

            try:
                bound = bind_in_rounds(self, shapes)
            except (NotSeparableError, OperationError, OverflowError) as error:
                bound, reason = None, f"all items at a time: {error}"
            if bound is not None:
                return bound, {}
        bound, known = self._bind_whole(shapes, contents, rehearses=rehearses)
        if reason:
            bound = replace(bound, stretches=(Stretch(len(bound.steps), 1, reason),))
        return bound, known

    @property
    def constants(self) -> dict[int, Tensor | None]:
        """The model's own values by their numbers: where the values of a plan begin."""
        return dict(self._constants)

    def numbers_of(self, values: Sequence[ir.Value]) -> list[int]:
        """The numbers of values that cross its border."""
        return [self._numbers[value] for value in values]

    def binder(self, rehearses: bool = False) -> Binder:
        """One for a plan of its operations."""
        kept = {"lasting": self._replays.lasting, "prepared": self._prepared, "shares": self._shares}
        return Binder(self.library, self.settings, rehearses, **kept)  # type: ignore[arg-type]

    def held_constants(self) -> Iterator[HeldConstant]:
        """What it keeps of the model, and what was made of that."""
        for tensor in self._constants.values():
            buffer = tensor.buffer
            if buffer.array is not None and isinstance(buffer, ComputedBuffer):
                yield HeldConstant("computed", buffer.array, isinstance(buffer.kept, Use) and buffer.kept.is_shared)
            elif buffer.array is not None:
                yield HeldConstant("model", buffer.array)
        for _, _, use in tuple(self._prepared.values()):
            yield HeldConstant("packed", use.array, use.is_shared)

    def bind_operations(
        self,
        binder: Binder,
        operations: Iterable[Operation],
        values: dict[int, Tensor | None],
        rooms: Rooms | None = None,
        *,
        forgets: bool = False,
    ) -> list[BoundOperation]:
        """Bind operations in order: what they read is among `values` by its number, and what they make comes to it,
        in results of Concats where there are `rooms`. With `forgets`, what is computed stays no longer than somebody is
        to read it.

        OperationError where one does not take what it is given.
        """
        bound: list[BoundOperation] = []
        for operation in operations:
            given = [None if number < 0 else values[number] for number in operation.inputs]
            one = BoundOperation(operation, given)
            bound.append(one)
            binder.label, binder.origin = operation.label, one
            try:
                made, one.recording = self._bind_one(binder, operation, given, rooms)
                one.outputs, one.end = made, len(binder.steps)
            except Exception as error:
                raise OperationError(failure(operation, error), one) from error
            values.update((number, one) for number, one in zip(operation.outputs, made, strict=False) if number >= 0)
            if forgets:
                for number in self._last_read.get(id(operation), ()):
                    values.pop(number, None)
                if operation.computation is not None:
                    one.inputs = one.outputs = ()
        return bound

    def _bind_one(
        self, binder: Binder, operation: Operation, given: Tensors, rooms: Rooms | None
    ) -> tuple[Tensors, Recording | None]:
        """What an operation makes of what it is given, and what can be replayed of it."""
        slices = () if rooms is None else rooms.slices(operation.outputs)
        if rooms is None or not slices:
            if operation.structure is None:
                return operation.bind(binder, given), None
            return self._replays.bind(operation.structure, operation.bind, binder, given)
        anchor, found = operation.group.anchor, None
        native = None if anchor is None else anchor.native
        binder.slices = slices
        if operation.structure is None or (native is not None and native.joins is not None):
            binder.whole = rooms.memory(slices[0])
            made = operation.bind(binder, given)
        else:
            made, found = self._replays.bind((operation.structure, slices), operation.bind, binder, given)
        binder.slices, binder.whole = (), None
        rooms.take(operation.outputs, made)
        return made, found

    def _bind_whole(
        self, shapes: Sequence[Sequence[int]], contents: Sequence[Array], *, rehearses: bool
    ) -> tuple[Bound, dict[int, Array]]:
        """What `bind` gives for all items at once."""
        outlines = None if rehearses else self._outlines
        outlined = None if outlines is None else self._bind_outlined(outlines, shapes, contents)
        if outlined is not None:
            return outlined
        bound, known, operations, constants, is_whole = self._bind_all(shapes, contents, rehearses=rehearses)
        # What is copied without a step has no elements here; for other sizes it may have some.
        if outlines is not None and (is_whole or (operations and operations[-1].end != len(bound.steps))):
            made = len(self.outputs) - len(known)
            outlines.learn(Sample(operations, bound.steps, len(self.inputs), made, constants))
        return bound, known

    def _bind_all(
        self, shapes: Sequence[Sequence[int]], contents: Sequence[Array], *, rehearses: bool = False
    ) -> tuple[Bound, dict[int, Array], list[BoundOperation], list[Array], bool]:
        """The same operation by operation; with the operations, the constants that the plan keeps alive, and whether
        operations make all outputs in memory of their own."""
        binder = self.binder(rehearses)
        values = self.constants | self._brought(binder, shapes, contents)
        chosen = self.chosen(self.operations, binder, values)
        operations = self.bind_operations(binder, chosen, values, Rooms(self.slices), forgets=True)
        results, known = self._made(values.__getitem__)
        is_whole = _are_whole(results)
        try:
            bound = binder.finish(results, len(self.inputs), copy)
        except OverflowError as error:
            raise errors.Fail("Failed to allocate memory for requested buffer: a size exceeds 64 bits") from error
        return bound, known, operations, binder.constants, is_whole

    def _bind_outlined(
        self, outlines: Outlines, shapes: Sequence[Sequence[int]], contents: Sequence[Array]
    ) -> tuple[Bound, dict[int, Array]] | None:
        """The same by the outline of an earlier plan, where there is one; its steps are bound when they are asked for.

        Where an operation refuses its inputs, the ordinary way says so.
        """
        binder = self.binder()
        values = self._brought(binder, shapes, contents)
        try:
            found = outlines.walk(binder, values, self._replays, self._looks)
            if found is None:
                return None
            walk, outline = found
            results, known = self._made(walk.value)
            if not _are_whole(results):
                return None
            plan, constant_words = outline.plan(walk, self.settings.flush_denormals)
        except OverflowError:  # a size that exceeds 64 bits
            return None
        described = tuple([(tensor.dtype, tensor.shape) for tensor in results])
        steps = LaterSteps(len(plan.labels), lambda: self._bind_all(shapes, contents)[0].steps)
        # Messages tell sizes: the ordinary way knows those of these inputs.
        faults = tuple(
            [
                Fault(BoundOperation(operation, ()), partial(self._describe, shapes, contents, place))
                for place, (operation, _) in enumerate(walk.faults)
            ]
        )
        return Bound(plan, described, steps, faults, alike=outline.steps, constant_words=constant_words), known

    def _describe(
        self, shapes: Sequence[Sequence[int]], contents: Sequence[Array], place: int, number: int
    ) -> Exception:
        """The error for the number that the fault at this place among those of a plan notes."""
        return self._bind_all(shapes, contents)[0].faults[place].describe(number)

    def _brought(
        self, binder: Binder, shapes: Sequence[Sequence[int]], contents: Sequence[Array]
    ) -> dict[int, Tensor | None]:
        """The inputs by their numbers."""
        values: dict[int, Tensor | None] = {}
        for index, (value, dtype, shape) in enumerate(zip(self.inputs, self.input_dtypes, shapes, strict=True)):
            values[self._numbers[value]] = binder.external(index, dtype, shape)
        for place, array in zip(self.steering_places, contents, strict=True):
            values[self._numbers[self.inputs[place]]] = binder.constant(array)
        return values

    def _made(self, value_of: Callable[[int], Tensor | None]) -> tuple[list[Tensor], dict[int, Array]]:
        """The outputs that a plan makes, and those, by place, that are known already."""
        known: dict[int, Array] = {}
        results: list[Tensor] = []
        for index, value in enumerate(self.outputs):
            tensor = value_of(self._numbers[value])
            assert tensor is not None
            if tensor.array is not None:
                known[index] = tensor.array
            else:
                results.append(tensor)
        return results, known

    def chosen(
        self, operations: Sequence[Operation], binder: Binder, values: Mapping[int, Tensor | None]
    ) -> Iterator[Operation]:
        """What to bind of operations that follow each other, while `values` are those that were bound: pairs as one
        where that pays."""
        instead: dict[int, Operation] = {}
        inside = set(map(id, operations))
        for operation in operations:
            pair = self.pairs.get(id(operation))
            if pair is None or id(pair.second) not in inside:
                yield instead.get(id(operation), operation)
            elif not self._pays(pair, binder, values):
                yield operation
            else:
                instead[id(pair.second)] = pair.whole

    def _pays(self, both: PairOperation, binder: Binder, values: Mapping[int, Tensor | None]) -> bool:
        given = [values.get(number) for number in both.whole.inputs]
        look = both.whole.structure, *(None if one is None else (one.look, one.buffer.kind) for one in given)
        known = self._paying.get(look)
        if known is None:
            try:
                known = both.pair.kernel.pays(binder, *both.pair.parts(given))
            except (ValueError, errors.OnnxRuntimeError):  # the operation that it comes from says so
                known = False
            if len(self._paying) >= MOST_RECORDINGS:
                self._paying.clear()
            self._paying[look] = known
        return known

    def restricted(self, places: Sequence[int]) -> Segment:
        """The segment that makes only the outputs at these places, with the same kernels."""
        outputs = tuple(self.outputs[place] for place in places)
        wanted = {self._numbers[value] for value in outputs}
        kept: list[Operation] = []
        for operation in reversed(self.operations):
            if wanted.intersection(operation.outputs):
                kept.append(operation)
                wanted.update(operation.inputs)
        pairs = [
            (value, dtype)
            for value, dtype in zip(self.inputs, self.input_dtypes, strict=True)
            if self._numbers[value] in wanted
        ]
        return replace(
            self,
            groups=tuple(operation.group for operation in reversed(kept)),
            operations=tuple(reversed(kept)),
            inputs=tuple(value for value, _ in pairs),
            input_dtypes=tuple(dtype for _, dtype in pairs),
            outputs=outputs,
        )


def failure(operation: Operation, error: Exception) -> errors.OnnxRuntimeError:
    """An error of a kernel, while it is bound or runs, as the error of the node that it comes from."""
    node = (operation.group.anchor or operation.group.nodes[-1]).node
    kind: type[errors.OnnxRuntimeError] = errors.Fail
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, errors.OnnxRuntimeError):
        kind, text = type(error), error.message
    elif isinstance(error, OverflowError | struct.error):
        text = f"a size that follows from its shapes and attributes exceeds 64 bits ({text})"
    elif isinstance(error, MemoryError):
        text = f"Failed to allocate memory for requested buffer: {text}"
    made = ", ".join(f"'{value.name}'" for value in node.outputs if value.name)
    called = f"'{node.name}'" if node.name or not made else f"'' (which makes {made})"
    return error_of_node(kind, node.op_type, called, text)


def _last_read(
    operations: Sequence[Operation], pairs: Mapping[int, PairOperation], kept: Container[int]
) -> dict[int, list[int]]:
    """The values computed while binding that an operation, by its `id`, is the last to read, but those that are `kept`.

    Two operations as one read what both do where the second is.
    """
    last: dict[int, int] = {}
    together = {id(one.second): one.whole for one in pairs.values()}
    for operation in operations:
        whole = together.get(id(operation), operation)
        last.update(dict.fromkeys((*operation.inputs, *whole.inputs, *operation.outputs), id(operation)))
    computed = {number for one in operations if one.computation is not None for number in one.outputs}
    found: dict[int, list[int]] = {}
    for number, operation_id in last.items():
        if number in computed and number not in kept:
            found.setdefault(operation_id, []).append(number)
    return found


def _are_whole(outputs: Sequence[Tensor]) -> bool:
    """Whether each of a plan's outputs fills a buffer of its own, so that none of them is copied."""
    return all(tensor.fills_buffer for tensor in outputs) and len({tensor.buffer for tensor in outputs}) == len(outputs)

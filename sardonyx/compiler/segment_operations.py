"""The operations of a segment over numbered values, and how they are bound one after the other."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import errors
from sardonyx.compiler.binding import Array, Binder, Prepared, Tensor
from sardonyx.compiler.bound_step import ComputedBuffer
from sardonyx.compiler.fusion import Group
from sardonyx.compiler.joint_results import Rooms, Slice
from sardonyx.compiler.llvm.library import KernelLibrary
from sardonyx.compiler.operation import BoundOperation, Operation, OperationError, PairOperation, failure
from sardonyx.compiler.recording import Recording, Tensors
from sardonyx.compiler.recordings import MOST_RECORDINGS, Recordings
from sardonyx.compiler.shared_constants import ConstantShares, Use
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.memory.constant_memory import HeldConstant
from sardonyx.runtime.settings import DEFAULT, RunSettings


@dataclass
class SegmentOperations:
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

    def __post_init__(self) -> None:
        constants = [one.source for one in self._constants.values() if one.source is not None]
        self._recordings = Recordings(constants)
        self._shares = self._shares or ConstantShares(self.library.target.key)
        self._last_read = _last_read(self.operations, self.pairs, {self._numbers[value] for value in self.outputs})

    @property
    def steering_places(self) -> tuple[int, ...]:
        """The places of those inputs whose contents it reads."""
        return tuple(place for place, value in enumerate(self.inputs) if value in self.steering)

    @property
    def constants(self) -> dict[int, Tensor | None]:
        """The model's own values by their numbers: where the values of a plan begin."""
        return dict(self._constants)

    def numbers_of(self, values: Sequence[ir.Value]) -> list[int]:
        """The numbers of values that cross its border."""
        return [self._numbers[value] for value in values]

    def binder(self, rehearses: bool = False) -> Binder:
        """One for a plan of its operations."""
        kept = {"lasting": self._recordings.lasting, "prepared": self._prepared, "shares": self._shares}
        return Binder(self.library, self.settings, rehearses, **kept)  # type: ignore[arg-type]

    def brought(
        self, binder: Binder, shapes: Sequence[Sequence[int]], contents: Sequence[Array]
    ) -> dict[int, Tensor | None]:
        """The inputs by their numbers."""
        values: dict[int, Tensor | None] = {}
        for index, (value, dtype, shape) in enumerate(zip(self.inputs, self.input_dtypes, shapes, strict=True)):
            values[self._numbers[value]] = binder.external(index, dtype, shape)
        for place, array in zip(self.steering_places, contents, strict=True):
            values[self._numbers[self.inputs[place]]] = binder.constant(array)
        return values

    def held_constants(self) -> Iterator[HeldConstant]:
        """What it keeps of the model, and what was made of that."""
        for tensor in self._constants.values():
            buffer = tensor.buffer
            if buffer.array is not None and isinstance(buffer, ComputedBuffer):
                use = buffer.kept if isinstance(buffer.kept, Use) else None
                yield HeldConstant("computed", buffer.array, use is not None and use.is_shared, use and use.key)
            elif buffer.array is not None:
                yield HeldConstant("model", buffer.array)
        for _, _, use in tuple(self._prepared.values()):
            yield HeldConstant("packed", use.array, use.is_shared, use.key)

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
            return self._recordings.bind(operation.structure, operation.bind, binder, given)
        anchor, found = operation.group.anchor, None
        native = None if anchor is None else anchor.native
        binder.slices = slices
        if operation.structure is None or (native is not None and native.joins is not None):
            binder.whole = rooms.memory(slices[0])
            made = operation.bind(binder, given)
        else:
            made, found = self._recordings.bind((operation.structure, slices), operation.bind, binder, given)
        binder.slices, binder.whole = (), None
        rooms.take(operation.outputs, made)
        return made, found

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

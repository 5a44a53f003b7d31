"""Shape programs: the operations of a symbolic plan that are computed while it is evaluated, over arrays."""

from __future__ import annotations

from collections.abc import Callable, Container, MutableMapping, Sequence
from operator import is_
from typing import Any

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.bound_step import COMPARED_BYTES
from sardonyx.compiler.operation import Operation

Values = dict[int, "Tensor | None"]
Arrays = MutableMapping[int, Array]


class ShapeProgram:
    """What such operations, in order, compute. Only those of their values that others read become tensors: `wanted`.

    Whatever gets the same arrays or shapes as the last time, as do most operations of a decoder, gives the same arrays
    again.
    """

    def __init__(self, operations: Sequence[Operation], wanted: Container[int]) -> None:
        self.made = [number for one in operations for number in one.outputs if number in wanted]
        self._steps = [_Step(one) for one in operations]

    def run(self, binder: Binder, value: Callable[[int], Tensor | None], arrays: Arrays, values: Values) -> bool:
        """Compute from what `value` gives, and from the `arrays` that were computed before, to which these come; the
        `values` get tensors. False if an operation refuses its inputs."""
        try:
            for step in self._steps:
                step.run(value, arrays)
        except Exception:  # the ordinary way says so
            return False
        for number in self.made:
            values[number] = binder.computed(arrays[number])
        return True


class _Step:
    """One operation, and the last that it was given and gave."""

    __slots__ = ("_inputs", "_last", "_outputs", "_reads_shapes", "_run")

    def __init__(self, operation: Operation) -> None:
        assert operation.computation is not None
        self._inputs, self._outputs = operation.inputs, operation.outputs
        self._run, self._reads_shapes = operation.computation.run, operation.computation.reads_shapes
        self._last: tuple[Sequence[Any], Sequence[Array]] | None = None

    def run(self, value: Callable[[int], Tensor | None], arrays: Arrays) -> None:
        """Put the results to the arrays."""
        given: list[Any] = []
        for number in self._inputs:
            array = arrays.get(number)
            if array is None:
                tensor = None if number < 0 else value(number)
                given.append(None if tensor is None else tensor.shape if self._reads_shapes else tensor.array)
            else:
                given.append(array.shape if self._reads_shapes else array)
        last = self._last
        if last is not None and (given == last[0] if self._reads_shapes else all(map(is_, given, last[0]))):
            made = last[1]
        else:
            made = self._run(given)
            if sum([array.nbytes for array in made]) <= COMPARED_BYTES:
                self._last = given, made
        for number, array in zip(self._outputs, made, strict=False):
            arrays[number] = array

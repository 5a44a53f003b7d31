"""Which values of a segment are to be written where a Concat along their channels wants them: see `joint_results`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sardonyx.compiler.joint_results import Slice
from sardonyx.compiler.operation import Operation

# The dimensions of a value by its number, as far as they are known without a run.
ShapeOf = Callable[[int], Sequence[Any] | None]


def find_slices(operations: Sequence[Operation], shape_of: ShapeOf, outer: Callable[[int], bool]) -> dict[int, Slice]:
    """The values that are to lie in results of Concats, and these results; `outer` tells what leaves the segment."""
    makers = {number: one for one in operations for number in one.outputs if number >= 0}
    readers: dict[int, list[Operation]] = defaultdict(list)
    for operation in operations:
        for number in operation.inputs:
            readers[number].append(operation)

    def may_lie_apart(number: int) -> bool:
        maker = makers.get(number)
        return maker is not None and not outer(number) and _writes(maker) and all(map(_reads, readers[number]))

    sizes: dict[int, int] = {}
    parts: dict[int, tuple[int, ...]] = {}  # of each result
    places: dict[int, tuple[int, int]] = {}  # of each part: the number of the result, and its first channel there
    for operation in operations:
        channels = _channels(operation, shape_of)
        if channels is None:
            continue
        (made,), given = operation.outputs, operation.inputs
        if not any(number in makers and _is_kernel(makers[number]) for number in given):
            continue  # loops alone make them, which follow what others do
        sizes |= zip(given, channels, strict=True)
        sizes[made], parts[made] = sum(channels), given
        at = 0
        for number in _with_earlier(given, parts, lambda one: one not in places and may_lie_apart(one)):
            if number not in places and given.count(number) < 2 and may_lie_apart(number):
                places[number] = made, at
            at += sizes[number]

    def slice_of(number: int) -> Slice:
        first = 0
        while number in places:
            number, at = places[number]
            first += at
        return Slice(number, first, sizes[number])

    return {number: slice_of(number) for number in {*places, *(made for made, _ in places.values())}}


def _with_earlier(
    given: tuple[int, ...], parts: Mapping[int, tuple[int, ...]], may_be_part: Callable[[int], bool]
) -> tuple[int, ...]:
    """The parts of a Concat, the first ones of them as one where these are all parts of an earlier one."""
    for made, other in reversed(list(parts.items())):
        if 1 < len(other) < len(given) and given[: len(other)] == other and may_be_part(made):
            return (made, *given[len(other) :])
    return given


def _channels(operation: Operation, shape_of: ShapeOf) -> list[int] | None:
    """The channels of each part of a Concat along the channels of maps; None for other operations."""
    anchor = operation.group.anchor
    if anchor is None or anchor.native is None or anchor.native.joins is None or operation.group.values:
        return None
    shapes = [shape_of(number) for number in operation.inputs if number >= 0]
    known = [shape for shape in shapes if shape is not None and len(shape) >= 3]
    if len(known) < max(2, len(operation.inputs)) or anchor.native.joins not in (1, 1 - len(known[0])):
        return None
    found = [shape[1] for shape in known]
    return found if all(isinstance(size, int) and size > 0 for size in found) else None


def _is_kernel(operation: Operation) -> bool:
    """Whether it is a kernel of maps that can write a result whose rows lie apart."""
    anchor = operation.group.anchor
    return anchor is not None and anchor.native is not None and anchor.native.writes_slices


def _writes(operation: Operation) -> bool:
    """Whether an operation can write a result whose rows lie apart."""
    return operation.group.anchor is None or _is_kernel(operation)


def _reads(operation: Operation) -> bool:
    """Whether an operation reads values whose rows lie apart as readily as others."""
    anchor = operation.group.anchor
    if anchor is None or anchor.role == "known":
        return True
    return anchor.native is not None and anchor.native.reads_slices

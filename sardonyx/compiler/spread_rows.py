"""Which results of products are to have rows a line longer than they need, so that products read them sooner.

A tile of a product reads words of a dozen rows at once. Rows a multiple of 4096 bytes apart share one set of the
nearest cache, which holds fewer lines than that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from sardonyx.compiler.choice.gemm_choice import row_step
from sardonyx.compiler.joint_parts import ShapeOf
from sardonyx.compiler.joint_results import Slice
from sardonyx.compiler.operation import Operation


def find_spread(operations: Sequence[Operation], shape_of: ShapeOf, outer: Callable[[int], bool]) -> dict[int, Slice]:
    """The results that products alone read, as left-hand sides, and that have rows of such a length.

    `outer` tells what leaves the segment.
    """
    readers: dict[int, list[Operation]] = defaultdict(list)
    for operation in operations:
        for number in set(operation.inputs):
            readers[number].append(operation)
    found: dict[int, Slice] = {}
    for operation in filter(_is_product, operations):
        for number in operation.outputs:
            if number < 0 or outer(number) or not all(_multiplies(one, number) for one in readers[number]):
                continue
            shape = shape_of(number)
            columns = shape[-1] if shape else 0
            if isinstance(columns, int) and row_step(columns) != columns:
                found[number] = Slice(number, 0, row_step(columns))
    return found


def _is_product(operation: Operation) -> bool:
    anchor = operation.group.anchor
    return anchor is not None and anchor.native is not None and anchor.native.spreads_rows


def _multiplies(operation: Operation, number: int) -> bool:
    """Whether an operation is a product that reads the value as its left-hand side and nowhere else."""
    return _is_product(operation) and operation.inputs[0] == number and operation.inputs.count(number) == 1

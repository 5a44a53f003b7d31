"""Which values of a segment somebody needs, and of which the sizes are enough.

Of what is computed while a plan is bound, much is read for its shape alone: the sum of the coordinates of a slice, say,
which exporters compute to know how far each of them is expanded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.compiler.binding import Array
from sardonyx.compiler.computation import Computation, Given
from sardonyx.compiler.fusion import Group
from sardonyx.compiler.picked_sizes import PickedSizes
from sardonyx.kernel.program import Pointwise


class Needs:
    """What is read of a segment's values: the `contents` of some, the shapes of others.

    `groups` are in order, with what each reads and makes; `outside` are the values that somebody else reads.
    """

    def __init__(
        self,
        groups: Iterable[tuple[Group, Sequence[ir.Value | None], Sequence[ir.Value]]],
        picked: Mapping[ir.Value, PickedSizes],
        outside: Iterable[ir.Value],
    ) -> None:
        self.contents: set[ir.Value | None] = set(outside)
        self._shapes: set[ir.Value | None] = set()
        for group, read, made in reversed(list(groups)):
            if made and picked.keys() >= set(made):
                self._shapes.update(source for one in made if self.has(one) for source in picked[one].sources)
            elif _is_known(group) and not any(map(self.has, made)):
                continue
            elif self.is_shape_alone(group, made) or (group.anchor is not None and group.anchor.reads_shapes):
                self._shapes.update(read)
            else:
                self.contents.update(read)

    def has(self, value: ir.Value) -> bool:
        """Whether somebody reads a value, or its shape."""
        return value in self.contents or value in self._shapes

    def is_shape_alone(self, group: Group, made: Sequence[ir.Value]) -> bool:
        """Whether of what a group computes while binding, element by element, only the shape is needed."""
        item = group.anchor
        if item is None or item.role != "known" or not isinstance(item.kernel, Pointwise) or not item.kernel.inputs:
            return False
        return not any(value in self.contents for value in made)


def _is_known(group: Group) -> bool:
    return group.anchor is not None and group.anchor.role == "known"


def shape_alone(dtypes: Sequence[np.dtype[Any]]) -> Computation:
    """What stands for results of these types, of equal shapes that those of the inputs broadcast to."""

    def run(shapes: Given) -> Sequence[Array]:
        shape = np.broadcast_shapes(*(shape for shape in shapes if shape is not None))
        return [np.broadcast_to(np.zeros((), dtype), shape) for dtype in dtypes]

    return Computation(run, True)

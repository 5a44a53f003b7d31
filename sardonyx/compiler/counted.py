"""Native steps whose results have sizes that the data decide: NonZero, Compress, Unique, NonMaxSuppression.

Everything in a segment has its size before the run. A node whose results do not is a step of its own: its kernel
writes into memory of the largest size that there may be, densely, and says how much it wrote; the step gives the part
that was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import errors
from sardonyx.compiler.binding import Array, Binder, Bound, Tensor
from sardonyx.compiler.fusion import Group
from sardonyx.compiler.llvm.library import KernelLibrary
from sardonyx.compiler.lowering import Lowered
from sardonyx.compiler.native.movement.copy import copy
from sardonyx.compiler.operation import BoundOperation, Operation, OperationError, failure
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.settings import RunSettings

Contents = dict[ir.Value, Array]


@dataclass(frozen=True)
class CountedKernel:
    """A node with a native kernel that counts its results. `inputs` are those that are no constants."""

    item: Lowered
    inputs: tuple[ir.Value, ...]
    constants: Contents
    library: KernelLibrary
    settings: RunSettings

    @property
    def steering_places(self) -> tuple[int, ...]:
        """The places of those inputs whose contents the kernel needs when it is bound."""
        assert self.item.native is not None
        given = self.item.node.inputs
        known = {given[index] for index in self.item.native.known_inputs if index < len(given)}
        return tuple(place for place, value in enumerate(self.inputs) if value in known)

    @property
    def counted_axes(self) -> tuple[int | None, ...]:
        """Of each output that somebody wants, the axis whose size is counted."""
        assert self.item.native is not None
        axes = self.item.native.counted_axes
        assert axes is not None
        return tuple(axes[index] for index, value in enumerate(self.item.node.outputs) if value.name != "")

    def bind(
        self, dtypes: Sequence[np.dtype[Any]], shapes: Sequence[Sequence[int]], contents: Sequence[Array]
    ) -> Bound:
        """The plan for inputs of these types and shapes: the outputs that somebody wants, and last their count.

        OperationError where the kernel refuses them.
        """
        node, native = self.item.node, self.item.native
        assert native is not None
        binder = Binder(self.library, self.settings)
        values: dict[ir.Value | None, Tensor] = {
            value: binder.constant(array) for value, array in self.constants.items()
        }
        for index, value in enumerate(self.inputs):
            values[value] = binder.external(index, dtypes[index], shapes[index])
        for place, array in zip(self.steering_places, contents, strict=True):
            values[self.inputs[place]] = binder.constant(array)
        group = Group([self.item], None, anchor=self.item)
        operation = Operation(group, (), (), lambda binder, inputs: native.bind(binder, *inputs), node.op_type, 0)
        bound = BoundOperation(operation, [values.get(value) for value in node.inputs])
        binder.label, binder.origin = node.op_type, bound
        try:
            *made, count = native.bind(binder, *bound.inputs)
        except Exception as error:
            raise OperationError(failure(operation, error), bound) from error
        bound.outputs = made
        wanted = [one for one, value in zip(made, node.outputs, strict=False) if value.name != ""]
        results = [one for one in (*wanted, count) if one is not None]
        try:
            return binder.finish(results, len(self.inputs), copy)
        except OverflowError as error:
            raise errors.Fail("Failed to allocate memory for requested buffer: a size exceeds 64 bits") from error

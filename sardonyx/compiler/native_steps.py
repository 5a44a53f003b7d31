"""Segments of a session as steps of its plan: what they share, and how one is made ready."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import errors
from sardonyx.compiler.binding import Array, Bound, Fault
from sardonyx.compiler.likely_shapes import likely_shapes
from sardonyx.compiler.lowering import Lowered
from sardonyx.compiler.native_resources import NativeResources
from sardonyx.compiler.operation import BoundOperation, OperationError, failure
from sardonyx.compiler.planner import Compilation
from sardonyx.compiler.segment import Segment
from sardonyx.compiler.segment_build import build_segment
from sardonyx.graph.types import numpy_dtype
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.memory.constant_memory import passing
from sardonyx.runtime.memory.memory import MemoryLimitError, ahead_of_run
from sardonyx.runtime.native.counted_call import CountedCall
from sardonyx.runtime.native.native_segment import BindingError, NativeSegment, ReadyPlan, Shapes
from sardonyx.runtime.native.waits import note_plan
from sardonyx.runtime.plan import Step
from sardonyx.runtime.trace import Work, type_shape


@dataclass(frozen=True, eq=False)
class BoundSegment:
    """A segment and its plan for some shapes: the `source` of a `ReadyPlan`."""

    segment: Segment
    bound: Bound


@dataclass(frozen=True, eq=False)
class BoundNode:
    """The same of a node that is a step by itself."""

    bound: Bound


class NativeSteps:
    """Makes the native steps of one session, which share its `resources`."""

    def __init__(self, resources: NativeResources, provider: str) -> None:
        self.resources = resources
        self.settings = resources.settings
        self.library = resources.library
        self.provider = provider

    def _work(self, bound: BoundOperation | None, compilation: Compilation, extra: Mapping[str, Any]) -> Work:
        """What a profile says of a step; copies to the outputs belong to no node."""
        if bound is None:
            return Work("outputs", "Copy", self.provider, -1, 0, 0, 0, [], [], extra)
        group = bound.operation.group
        nodes = [item.node for item in group.nodes]
        leading = group.anchor.node if group.anchor is not None else nodes[-1]
        inputs = [tensor for tensor in bound.inputs if tensor is not None]
        outputs = [tensor for tensor in bound.outputs if tensor is not None]
        constant = sum(tensor.nbytes for tensor in inputs if tensor.buffer.kind == "constant")
        return Work(
            compilation.node_name(leading),
            leading.op_type,
            self.provider,
            compilation.node_index(leading),
            sum(tensor.nbytes for tensor in inputs) - constant,
            constant,
            sum(tensor.nbytes for tensor in outputs),
            [type_shape(tensor.dtype, tensor.shape) for tensor in inputs],
            [type_shape(tensor.dtype, tensor.shape) for tensor in outputs],
            {"nodes": [compilation.node_name(node) for node in nodes], **extra} if len(nodes) > 1 else extra,
        )

    def step(
        self,
        items: Sequence[Lowered],
        borrowed: Sequence[Lowered],
        lent: Container[ir.Value],
        compilation: Compilation,
        steering: frozenset[ir.Value],
    ) -> Step:
        """One step for all of `items`; kernels are compiled and constants packed here, not in the first run.

        `borrowed` are nodes of other steps whose results are worked out again while binding, `lent` the values that
        such nodes read, in whatever step. `steering` are those whose contents steps read where they begin.
        """
        inside = {item.node for item in items}

        def is_read_outside(value: ir.Value) -> bool:
            if value.producer() not in inside:
                return False
            return value.is_graph_output() or value in lent or any(use.node not in inside for use in value.uses())

        segment = build_segment(
            [*borrowed, *items],
            compilation.inference,
            self.library,
            compilation.constant,
            is_read_outside,
            self.settings,
            steering,
        )

        call = self._native(segment, compilation)
        _make_ready(segment, compilation)
        first = items[0].node
        return Step(
            name=compilation.node_name(first),
            op_type=first.op_type,
            provider=self.provider,
            kind="segment",
            inputs=compilation.slots(segment.inputs),
            outputs=compilation.slots(segment.outputs),
            call=call,
            node_index=compilation.node_index(first),
        )

    def counted_step(self, item: Lowered, compilation: Compilation) -> Step:
        """A step for one node whose results have sizes that its kernel counts; it is compiled here where it can be."""
        from sardonyx.compiler.counted import CountedKernel  # few models have any

        node = item.node
        given = dict.fromkeys(value for value in node.inputs if value is not None and value.name != "")
        found = {value: compilation.constant(value) for value in given}
        constants = {value: array for value, array in found.items() if array is not None}
        inputs = tuple(value for value in given if value not in constants)
        kernel = CountedKernel(item, inputs, constants, self.library, self.settings)
        facts = [compilation.inference.fact(value) for value in inputs]
        dtypes = [numpy_dtype(fact.dtype) for fact in facts if fact is not None and fact.dtype is not None]

        def make_plan(shapes: Shapes, contents: Sequence[Array]) -> ReadyPlan:
            try:
                bound = kernel.bind(dtypes, shapes, contents)
            except OperationError as error:
                raise BindingError(error.cause, self._work(error.bound, compilation, {})) from error
            note_plan()
            faults = tuple(_describer(fault) for fault in bound.faults)
            return ReadyPlan(bound.plan, bound.outputs, {}, list, faults, bound.plan.nanoseconds or 0, BoundNode(bound))

        def whole(places: Sequence[int]) -> tuple[NativeSegment, Sequence[int]]:
            raise NotImplementedError("a counted kernel makes all of its results")

        names = [value.name or "" for value in inputs]
        segment = self.resources.segment(make_plan, dtypes, names, kernel.steering_places, whole)
        if not kernel.steering_places:
            with contextlib.suppress(errors.OnnxRuntimeError, OperationError):
                kernel.bind(dtypes, likely_shapes(inputs, compilation.inference), ())
        wanted = tuple(place for place, value in enumerate(node.outputs) if value.name != "")
        return Step(
            name=compilation.node_name(node),
            op_type=node.op_type,
            provider=self.provider,
            kind="native",
            inputs=compilation.slots(inputs),
            outputs=compilation.slots(node.outputs),
            call=CountedCall(segment, wanted, kernel.counted_axes, len(node.outputs)),
            node_index=compilation.node_index(node),
        )

    def _native(self, segment: Segment, compilation: Compilation) -> NativeSegment:
        """A segment as what the executor calls."""

        def make_plan(shapes: Shapes, contents: Sequence[Array]) -> ReadyPlan:
            try:
                bound, known = segment.bind(shapes, contents)
            except OperationError as error:
                raise BindingError(error.cause, self._work(error.bound, compilation, {})) from error
            note_plan()
            return ReadyPlan(
                bound.plan,
                _outputs(bound, known, len(segment.outputs)),
                known,
                lambda: [
                    self._work(step.origin, compilation, {"kernel": step.label, "flops": step.flops})
                    for step in map(bound.steps.__getitem__, bound.order)
                ],
                tuple(_describer(fault) for fault in bound.faults),
                bound.plan.nanoseconds or 0,
                BoundSegment(segment, bound),
                lambda: bound.writers,
            )

        def restricted(places: Sequence[int]) -> tuple[NativeSegment, Sequence[int]]:
            part = segment.restricted(places)
            return self._native(part, compilation), [segment.inputs.index(value) for value in part.inputs]

        names = [value.name or "" for value in segment.inputs]
        given = make_plan, segment.input_dtypes, names, segment.steering_places, restricted
        return self.resources.segment(*given, segment.held_constants)


def _make_ready(segment: Segment, compilation: Compilation) -> None:
    """Bind once for likely shapes, so that kernels are compiled and constants packed; sizes that do not fit the model
    are no error here, because the real ones come later, and neither are those for which tables would be large. Nothing
    is likely where contents decide."""
    if segment.steering_places:
        return
    shapes, others = (likely_shapes(segment.inputs, compilation.inference, more) for more in (0, 1))
    try:
        with segment.library.helpers(), passing(), ahead_of_run():
            segment.bind(shapes, rehearses=shapes != others)
    except OperationError as error:
        if isinstance(error.cause, MemoryLimitError):
            raise error.cause from error
    except MemoryLimitError:
        raise
    except errors.OnnxRuntimeError:
        return


def _outputs(bound: Bound, known: dict[int, Array], count: int) -> tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]:
    """Dtype and shape of every output of the segment, those known before the run in their places."""
    native = iter(bound.outputs)
    return tuple((known[index].dtype, known[index].shape) if index in known else next(native) for index in range(count))


def _describer(fault: Fault) -> Callable[[int], errors.OnnxRuntimeError]:
    """The error of the node whose kernel found something wrong."""
    return lambda number: failure(fault.origin.operation, fault.describe(number))

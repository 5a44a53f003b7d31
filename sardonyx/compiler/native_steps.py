"""Segments of a session as steps of its plan: what they share, and how one is made ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import errors
from sardonyx.compiler.binding import Array, Bound, Fault
from sardonyx.compiler.llvm.kernels.call import emit_call
from sardonyx.compiler.llvm.kernels.executor import executor_code
from sardonyx.compiler.llvm.library import library
from sardonyx.compiler.lowering import Lowered
from sardonyx.compiler.planner import Compilation
from sardonyx.compiler.segment import Operation, Segment, build_segment, failure, likely_shapes
from sardonyx.runtime.fast_call import CallCode
from sardonyx.runtime.lanes import LanePool
from sardonyx.runtime.native_segment import NativeSegment, ReadyPlan, Shapes, StepOrigin
from sardonyx.runtime.plan import Step
from sardonyx.runtime.processors import parse_affinities, team_size
from sardonyx.runtime.settings import RunSettings
from sardonyx.runtime.team import TeamOptions, ThreadTeam, shared_team

# What a symbolic dimension is taken for when kernels are compiled and weights packed ahead of the first run.
LIKELY_SIZE = 16


class NativeSteps:
    """Makes the native steps of one session, which share its thread team and its arenas."""

    def __init__(self, settings: RunSettings, provider: str) -> None:
        self.settings = settings
        self.provider = provider
        self.library = library(settings.kernels)
        self.team: ThreadTeam = shared_team(executor_code(self.library), _team_options(settings))
        self.lanes = LanePool(self.team.threads)

    def _call_code(self) -> CallCode:
        return CallCode(self.library.address(emit_call, ("arrays",)), self.library.address(emit_call, ("bound",)))

    def step(self, items: Sequence[Lowered], compilation: Compilation) -> Step:
        """One step for all of these nodes; kernels are compiled and constants packed here, not in the first run."""
        inside = {item.node for item in items}

        def is_read_outside(value: ir.Value) -> bool:
            return value.is_graph_output() or any(use.node not in inside for use in value.uses())

        segment = build_segment(items, compilation.inference, self.library, compilation.constant, is_read_outside)

        def make_plan(shapes: Shapes) -> ReadyPlan:
            bound, known = segment.bind(shapes)
            return ReadyPlan(
                bound.plan,
                _outputs(bound, known, len(segment.outputs)),
                known,
                lambda: _origins(bound, compilation, self.provider),
                tuple(_describer(fault) for fault in bound.faults),
                _nanoseconds(bound),
            )

        names = [value.name or "" for value in segment.inputs]
        call = NativeSegment(make_plan, segment.input_dtypes, names, self.team, self.lanes, self._call_code)
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


def _team_options(settings: RunSettings) -> TeamOptions:
    """The kind of team that a session asks for."""
    affinities = parse_affinities(settings.affinities) if settings.affinities else ()
    wished = settings.threads or (len(affinities) + 1 if affinities else 0)
    threads = team_size(wished, settings.branches, parallel=settings.branches != 1)
    return TeamOptions(
        threads,
        spinning=settings.spin,
        spin_seconds=None if settings.spin_us is None else settings.spin_us / 1e6,
        affinities=affinities,
    )


def _make_ready(segment: Segment, compilation: Compilation) -> None:
    """Bind once for likely shapes, so that kernels are compiled and constants packed; sizes that do not fit the model
    are no error here, because the real ones come later."""
    shapes = likely_shapes(segment.inputs, compilation.inference, LIKELY_SIZE)
    try:
        segment.bind(shapes)
    except errors.OnnxRuntimeError:
        return


def _outputs(bound: Bound, known: dict[int, Array], count: int) -> tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]:
    """Dtype and shape of every output of the segment, those known before the run in their places."""
    native = iter(bound.outputs)
    return tuple((known[index].dtype, known[index].shape) if index in known else next(native) for index in range(count))


def _describer(fault: Fault) -> Callable[[int], errors.OnnxRuntimeError]:
    """The error of the node whose kernel found something wrong."""
    return lambda number: failure(fault.origin, ValueError(fault.describe(number)))


def _nanoseconds(bound: Bound) -> float:
    """A rough estimate of a run on one thread: 50 operations or 20 bytes in a nanosecond, and 100 ns for a step."""
    return sum(100 + step.flops / 50 + step.bytes / 20 for step in bound.steps)


def _origins(bound: Bound, compilation: Compilation, provider: str) -> list[StepOrigin]:
    """What profiles say of the steps of a plan."""
    origins = []
    for step in bound.steps:
        operation: Operation = step.origin
        nodes = [item.node for item in operation.group.nodes] if operation is not None else []
        leading = operation.group.anchor.node if operation is not None and operation.group.anchor else None
        node = leading or (nodes[-1] if nodes else None)
        arguments = {
            "kernel": step.label,
            "nodes": [compilation.node_name(one) for one in nodes],
            "flops": step.flops,
            "bytes": step.bytes,
        }
        if node is None:
            origins.append(StepOrigin(step.label, step.label, -1, provider, arguments))
        else:
            origins.append(
                StepOrigin(compilation.node_name(node), node.op_type, compilation.node_index(node), provider, arguments)
            )
    return origins

"""Whole plans that outlive their process: steps on the host and control flow between native segments.

A native segment becomes a number; its plans are `stored_plan`'s. A node that runs on the host becomes a graph of this
one node with what inference found of its values, from which `restored_node` makes its operator again. A node with
bodies becomes the same without them: they are plans of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.compiler.control_flow import graphs_of_node
from sardonyx.compiler.control_flow_call import ControlFlowCall
from sardonyx.compiler.node_call import NodeCall
from sardonyx.compiler.stored.constant_places import NotStorableError
from sardonyx.compiler.stored.restored_node import restored_call, restored_operator
from sardonyx.graph.types import MapType, numpy_dtype
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import ControlFlow
from sardonyx.ops.microsoft.packed_weights import is_constant
from sardonyx.runtime.control_flow import flow_content
from sardonyx.runtime.files.engine_file import Bytes
from sardonyx.runtime.native.counted_call import CountedCall
from sardonyx.runtime.native.native_segment import NativeSegment
from sardonyx.runtime.plan import Plan, Step, StepCall

_WORD = 8


@dataclass(eq=False)
class StoredProgram:
    """A plan as JSON (`content`), and what it counts by numbers: segments, constants, and nodes in bytes."""

    content: dict[str, Any]
    segments: list[NativeSegment] = field(default_factory=list)
    constants: list[np.ndarray[Any, Any]] = field(default_factory=list)
    nodes: list[Bytes] = field(default_factory=list)


def stored_program(plan: Plan) -> StoredProgram:
    """A plan for `restored_program`; NotStorableError where a step cannot be made again in another process."""
    program = StoredProgram({"segments": [], "nodes": []})
    program.content["plan"] = _Writer(program).plan(plan)
    return program


class _Writer:
    def __init__(self, program: StoredProgram) -> None:
        self.program = program

    def plan(self, plan: Plan) -> dict[str, Any]:
        return {
            "slots": [slot.name for slot in plan.slots],
            "inputs": list(plan.inputs),
            "outputs": list(plan.outputs),
            "captures": list(plan.captures),
            "constants": [[slot, self._constant(value)] for slot, value in plan.constants.items()],
            "steps": [self._step(step) for step in plan.steps],
        }

    def _constant(self, value: Any) -> int:
        if not isinstance(value, np.ndarray):
            raise NotStorableError("a constant is no tensor")
        self.program.constants.append(value)
        return len(self.program.constants) - 1

    def _step(self, step: Step) -> dict[str, Any]:
        return {
            "name": step.name,
            "op_type": step.op_type,
            "kind": step.kind,
            "inputs": list(step.inputs),
            "outputs": list(step.outputs),
            "release": list(step.release),
            "index": step.node_index,
            "reason": step.reason,
            **self._call(step, step.call),
        }

    def _call(self, step: Step, call: StepCall) -> dict[str, Any]:
        if isinstance(call, NativeSegment):
            return {"segment": self._segment(call)}
        if isinstance(call, CountedCall):
            wanted = [list(call.places), list(call.axes), call.outputs]
            return {"segment": self._segment(call.segment), "counted": wanted}
        if isinstance(call, ControlFlowCall):
            return {"flow": self._flow(step, call)}
        if isinstance(call, NodeCall):
            return {"node": self._host(step, call)}
        raise NotStorableError(f"{step.name} ({step.op_type}) is run by {step.provider}")

    def _segment(self, segment: NativeSegment) -> int:
        kinds = [dtype.name for dtype in segment.dtypes]
        described = self.program.content["segments"]
        described.append({"dtypes": kinds, "names": list(segment.names), "steering": list(segment.steering_places)})
        self.program.segments.append(segment)
        return len(described) - 1

    def _flow(self, step: Step, call: ControlFlowCall) -> dict[str, Any]:
        flow = call.flow
        made = {"node": self._operator(step, flow)} if isinstance(flow, ControlFlow) else {"runs": flow_content(flow)}
        return {
            **made,
            "bodies": {name: self.plan(body) for name, body in call.bodies.items()},
            "captures": {name: list(places) for name, places in call.captures.items()},
            "inputs": call.inputs,
        }

    def _operator(self, step: Step, operator: ControlFlow) -> int:
        """An operator that runs its bodies itself."""
        node = operator.node
        graphs = graphs_of_node(node)
        graph = onnx.GraphProto(name="node", input=_values(node.inputs, None), output=_values(node.outputs, None))
        proto = graph.node.add(op_type=node.op_type, domain=node.domain, name=node.name or "")
        proto.input.extend(_names(node.inputs))
        proto.output.extend(_names(node.outputs))
        for name, attribute in node.attributes.items():
            if name in graphs:
                body = graphs[name]
                outline = onnx.GraphProto(name=body.name or name)
                outline.input.extend(_values(body.inputs, None))
                outline.output.extend(_values(body.outputs, None))
                given = _names(body.inputs)
                # What a body computes is in its plan: one node stands for all of it.
                made = [one for one in dict.fromkeys(_names(body.outputs)) if one not in given]
                outline.node.add(op_type="Body", output=made)
                proto.attribute.add(name=name, type=onnx.AttributeProto.GRAPH).g.CopyFrom(outline)
            else:
                proto.attribute.append(ir.to_proto(attribute))
        content = {"version": operator.version}
        data = self._kept(step, graph, content)
        self._try(step, lambda: restored_operator(data, content))
        return len(self.program.nodes) - 1

    def _host(self, step: Step, call: NodeCall) -> int:
        node, inference = call.node, call.inference
        graph = onnx.GraphProto(name="node", node=[ir.to_proto(node)])
        graph.input.extend(_values(node.inputs, inference))
        graph.output.extend(_values(node.outputs, inference))
        constants = [place for place, value in enumerate(node.inputs) if value is not None and is_constant(value)]
        content = {
            "version": inference.operator(node).version,
            "dtypes": _dtypes(node, inference),
            "constants": constants,
        }
        data = self._kept(step, graph, content)
        self._try(step, lambda: restored_call(data, content))
        return len(self.program.nodes) - 1

    def _kept(self, step: Step, graph: onnx.GraphProto, content: dict[str, Any]) -> bytes:
        """Add a node: its graph, and what is said of it."""
        try:
            data: bytes = graph.SerializeToString(deterministic=True)
        except ValueError as error:  # 2 GiB
            raise NotStorableError(f"the attributes of {step.name} ({step.op_type}) are too large") from error
        nodes, described = self.program.nodes, self.program.content["nodes"]
        described.append({"bytes": len(data), **content})
        nodes.append(np.frombuffer(data + bytes(-len(data) % _WORD), np.uint8))
        return data

    def _try(self, step: Step, make: Any) -> None:
        try:
            make()
        except Exception as error:  # whatever an operator keeps that no attribute says
            raise NotStorableError(f"{step.name} ({step.op_type}) cannot be made again: {error}") from error


def _dtypes(node: ir.Node, inference: Inference) -> list[str | None] | None:
    """The dtypes for which the node was lowered, those of its tensors; None where a type was not known."""
    found: list[str | None] = []
    for value in node.inputs:
        fact = inference.fact(value)
        if fact is not None and fact.type is None:
            return None
        is_tensor = fact is not None and isinstance(fact.type, ir.TensorType)
        found.append(numpy_dtype(fact.type.dtype).name if fact is not None and is_tensor else None)
    return found


def _names(values: Sequence[ir.Value | None]) -> list[str]:
    return ["" if value is None else value.name or "" for value in values]


def _values(values: Sequence[ir.Value | None], inference: Inference | None) -> list[onnx.ValueInfoProto]:
    """What is known of values, once of each; inference knows more than the values."""
    found: dict[str, onnx.ValueInfoProto] = {}
    for value in values:
        if value is None or not value.name or value.name in found:
            continue
        fact = None if inference is None else inference.fact(value)
        kind = value.type if fact is None else fact.type
        shape = value.shape if fact is None or fact.shape is None else ir.Shape(fact.shape)
        if _holds_maps(kind):
            kind = shape = None
        found[value.name] = ir.to_proto(ir.Value(name=value.name, type=kind, shape=shape))
    return list(found.values())


def _holds_maps(kind: Any) -> bool:
    while kind is not None and not isinstance(kind, MapType | ir.TensorType | ir.SparseTensorType):
        kind = kind.elem_type
    return isinstance(kind, MapType)

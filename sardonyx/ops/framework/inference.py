"""Type and shape inference over a graph, with symbolic dimensions.

Each node's operator states its rule; ONNX's own rule serves the rest. The result is kept both as facts (with
contents, for shape arithmetic) and in the `type` and `shape` of the graph's values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference
import onnx_ir as ir

from sardonyx import errors
from sardonyx.graph.types import MapType
from sardonyx.graph.versions import stamp_versions
from sardonyx.ops.framework.check import check_output_type, check_types
from sardonyx.ops.framework.contents import contents
from sardonyx.ops.framework.facts import UNKNOWN, Dim, Fact, known, of_array, symbol, unknown_dim
from sardonyx.ops.framework.operator import Elementwise, Operator
from sardonyx.ops.framework.registry import operator_of
from sardonyx.ops.framework.size_limits import SizeLimits

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
_MAXIMUM_CONSTANT = 4096  # larger constants take no part in inference and are never read for it
# What the types of shape arithmetic hold.
_BOUNDS = {
    dtype: (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    for dtype, bits in ((ir.DataType.INT32, 32), (ir.DataType.INT64, 64))
}
_DIMENSION = r"SymbolicDim\((?:'([^']*)'|None)\)"  # how a rule's words show one
_ERROR_HEAD = r"^\[\w+\] (\(op_type:[^)]*\): )?"


# How names begin that dimensions of inputs get which have none. No value of the model is said to be so large.
_UNNAMED = "unnamed."


class Inference:
    """Facts of every value of a model's graph and its subgraphs.

    A `lenient` one takes branches of an If that break a rule for such as are never chosen: `broken` tells why. Nothing
    is known then of what the node gives that breaks it.
    """

    def __init__(self, opsets: Mapping[str, int], ir_version: int, *, lenient: bool = False) -> None:
        self.lenient = lenient
        self.broken: dict[ir.Graph, errors.Fail] = {}
        self.opsets = dict(opsets)
        self.ir_version = ir_version
        self.facts: dict[ir.Value, Fact] = {}
        self.operators: dict[ir.Node, Operator] = {}
        self.main: ir.Graph | None = None  # whose nodes are all run
        self._limits = SizeLimits()
        self._declared: dict[ir.Value, Fact] = {}
        self._branch: ir.Graph | None = None  # the one that is being inferred
        self._branches: dict[ir.Graph | None, ir.Graph | None] = {}  # those that graphs are or lie in

    def operator(self, node: ir.Node) -> Operator:
        """The operator of a node, made once."""
        found = self.operators.get(node)
        if found is None:
            found = self.operators[node] = operator_of(node)
        return found

    def may_differ(self, node: ir.Node) -> bool:
        """Whether another run of a node on equal inputs may give other outputs, as its operator says."""
        return self.operator(node).may_differ([self.fact(value) for value in node.inputs])

    @property
    def is_limited(self) -> bool:
        """Whether nodes have told what sizes are at most, which nodes before them do not know."""
        return bool(self._limits)

    def name_dimensions(self, inputs: Sequence[ir.Value]) -> None:
        """Give each dimension of these inputs that the model says nothing of a name of its own: of two values whose
        sizes follow from it, it can be said then that they are equally large."""
        taken = {dim.value for value in inputs for dim in self.declared(value).shape or () if not isinstance(dim, int)}
        for number, value in enumerate(inputs):
            fact = self.declared(value)
            if fact.shape is not None:
                names = [f"{_UNNAMED}{number}.{axis}" for axis in range(len(fact.shape))]
                shape = [
                    dim if known(dim) or name in taken else ir.SymbolicDim(name)
                    for dim, name in zip(fact.shape, names, strict=True)
                ]
                self._declared[value] = replace(fact, shape=tuple(shape))

    def fact(self, value: ir.Value | None) -> Fact | None:
        """What is known of a value; None for an input that is not given."""
        return None if value is None else self.facts.get(value, UNKNOWN)

    def let_go(self) -> None:
        """Hold no contents of the model any more, nor let it hold them, which makes both of no use.

        Values and nodes refer to each other, so that only Python's collector frees them, whenever that comes: what they
        hold is the memory of the whole model where it was given as bytes.
        """
        for value in self.facts:
            value.const_value = None
        for node in self.operators:
            if node.op_type == "Constant":
                node.attributes.clear()
        for held in (self.facts, self.operators, self._declared):
            held.clear()

    def graph(self, graph: ir.Graph, inputs: Sequence[Fact] | None = None) -> list[Fact]:
        """Infer a graph; `inputs` are the facts of its inputs where the caller knows better than the graph.

        A body of control flow may be inferred again with other inputs; the last facts stay.
        """
        self._branches.setdefault(graph, self._branch)
        for value in graph.initializers.values():
            if value.const_value is not None and not value.is_graph_input():
                self._set(value, _constant_fact(value))
        for index, value in enumerate(graph.inputs):
            declared = self.declared(value)
            given = inputs[index] if inputs is not None and index < len(inputs) else None
            self._set(value, merge(declared, given) if given is not None else declared)
        for node in graph:
            self.node(node)
        return [self.facts.get(value, UNKNOWN) for value in graph.outputs]

    def branch(self, graph: ir.Graph) -> list[Fact] | None:
        """Infer a branch of an If; None where it is broken."""
        outer, self._branch = self._branch, graph if self.lenient else None
        self.broken.pop(graph, None)
        try:
            found = self.graph(graph)
        finally:
            self._branch = outer
        return None if graph in self.broken else found

    def node(self, node: ir.Node) -> None:
        """Infer one node, whose inputs have been inferred; errors.Fail where they contradict its rule outside of
        branches that may be broken.
        """
        try:
            self._node(node)
        except errors.Fail as error:
            branch = self._branches.get(node.graph)
            if branch is None:
                raise
            self.broken.setdefault(branch, error)
            for value in node.outputs:
                self._set(value, self.declared(value))

    def _node(self, node: ir.Node) -> None:
        inputs = [self.fact(value) for value in node.inputs]
        check_types(node, inputs)
        try:
            found = list(self.operator(node).infer(inputs, self))
        except (MemoryError, errors.OnnxRuntimeError):
            raise
        except Exception as error:  # a rule meets whatever a model says: every refusal becomes the node's typed error
            text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            text = re.sub(_DIMENSION, lambda found: found[1] or "?", text)
            raise errors.Fail(f"Node ({node.name or ''}) Op ({node.op_type}) [ShapeInferenceError] {text}") from error
        if node.graph is self.main and isinstance(self.operator(node), Elementwise):
            self._limits.learn([fact.shape for fact in inputs if fact is not None and fact.shape is not None])
        if found and found[0].elements is None:
            elements = contents(node, inputs, found[0])
            if elements is not None:
                found[0] = replace(found[0], elements=elements)
        for index, value in enumerate(node.outputs):
            fact = found[index] if index < len(found) else UNKNOWN
            declared = self.declared(value)
            check_output_type(node, value, declared, fact)
            merged = _without_overflow(merge(declared, fact))
            self._set(value, self._limits.within(merged) if self._limits else merged)

    def declared(self, value: ir.Value) -> Fact:
        """What the model itself said about a value before inference wrote to it."""
        found = self._declared.get(value)
        if found is None:
            found = self._declared[value] = declared_fact(value)
        return found

    def by_onnx(self, node: ir.Node, inputs: Sequence[Fact | None], version: int) -> list[Fact]:
        """ONNX's own rule for a node without subgraphs; unknown facts where it has none or needs more."""
        try:
            schema = onnx.defs.get_schema(node.op_type, version, node.domain)
        except onnx.defs.SchemaError:
            return []
        if any(attribute.type in _GRAPHS for attribute in node.attributes.values()):
            return []
        types: dict[str, onnx.TypeProto] = {}
        data: dict[str, onnx.TensorProto] = {}
        proto = ir.to_proto(node)
        for index, fact in enumerate(inputs):
            if fact is None:
                continue
            name = proto.input[index] = f"input_{index}"
            if fact.type is None or isinstance(fact.type, MapType):
                return []
            types[name] = type_proto(fact)
            content = _contents_proto(fact, name)
            if content is not None:
                data[name] = content
        versions = {**self.opsets, node.domain: version}
        opsets = [onnx.helper.make_opsetid(domain, number) for domain, number in versions.items()]
        try:
            found = onnx.shape_inference.infer_node_outputs(schema, proto, types, data, None, opsets, self.ir_version)
        except onnx.shape_inference.InferenceError as error:
            raise ValueError(re.sub(_ERROR_HEAD, "", str(error))) from error
        return [fact_of_proto(found[name]) if name in found else UNKNOWN for name in proto.output]

    def _set(self, value: ir.Value, fact: Fact) -> None:
        self.facts[value] = fact
        if fact.type is not None:
            value.type = fact.type
        if fact.shape is not None and not value.is_graph_input():
            value.shape = ir.Shape([None if _is_ours(dim) else dim for dim in fact.shape])


def _is_ours(dim: Dim) -> bool:
    """Whether a dimension has a name that the model does not know."""
    return not isinstance(dim, int) and dim.value is not None and _UNNAMED in dim.value


def infer_model(
    model: ir.Model, inputs: Sequence[Fact] | None = None, *, lenient: bool = False, names: bool = False
) -> Inference:
    """Everything that can be known of a model before it runs; `inputs` as for `Inference.graph`.

    With `names`, dimensions of its inputs without a name get one, in which facts are told then.
    """
    stamp_versions(model)
    inference = Inference(model.opset_imports, model.ir_version, lenient=lenient)
    inference.main = model.graph
    if names:
        inference.name_dimensions(model.graph.inputs)
    inference.graph(model.graph, inputs)
    if inference.is_limited:
        inference.graph(model.graph, inputs)
    return inference


def declared_fact(value: ir.Value) -> Fact:
    """What the model itself says about a value."""
    return Fact(value.type, None if value.shape is None else tuple(_declared_dim(dim) for dim in value.shape))


def _declared_dim(dim: Dim) -> Dim:
    if isinstance(dim, int):
        return dim if dim >= 0 else unknown_dim()
    return symbol(dim.value)


def merge(declared: Fact, inferred: Fact) -> Fact:
    """Both facts in one; where their dimensions differ, a number wins over a name, and inference over the model."""
    shape = inferred.shape if inferred.shape is not None else declared.shape
    if inferred.shape is not None and declared.shape is not None and len(inferred.shape) == len(declared.shape):
        shape = tuple(_merge_dim(ours, theirs) for ours, theirs in zip(inferred.shape, declared.shape, strict=True))
    kind = inferred.type if inferred.type is not None else declared.type
    return Fact(kind, shape, inferred.elements, inferred.constant)


def _without_overflow(fact: Fact) -> Fact:
    """The fact without contents that its type does not hold: they wrap around, which is left to the operator."""
    if fact.elements is None or fact.dtype not in _BOUNDS:
        return fact
    lowest, highest = _BOUNDS[fact.dtype]
    fits = all(lowest <= item <= highest for item in fact.elements if isinstance(item, int))
    return fact if fits else replace(fact, elements=None)


def _merge_dim(inferred: Dim, declared: Dim) -> Dim:
    if isinstance(inferred, int):
        return inferred
    return declared if isinstance(declared, int) or inferred.value is None else inferred


def _constant_fact(value: ir.Value) -> Fact:
    tensor = value.const_value
    assert tensor is not None
    shape = tuple(dim for dim in tensor.shape if isinstance(dim, int))
    if tensor.dtype == ir.DataType.STRING or tensor.size > _MAXIMUM_CONSTANT:
        return Fact(ir.TensorType(tensor.dtype), shape)
    return of_array(np.asarray(tensor.numpy()), tensor.dtype)


def _contents_proto(fact: Fact, name: str) -> onnx.TensorProto | None:
    """The contents of a small value for ONNX's rules, which read them as tensors; None where they are not known."""
    if fact.dtype is None or not isinstance(fact.type, ir.TensorType):
        return None
    if fact.constant is not None:
        if fact.constant.size > _MAXIMUM_CONSTANT or fact.dtype == ir.DataType.STRING:
            return None
        return ir.to_proto(ir.Tensor(fact.constant, dtype=fact.dtype, name=name))
    values = fact.integers()
    if values is None:
        return None
    shape = [dim for dim in fact.shape or () if isinstance(dim, int)]
    return onnx.helper.make_tensor(name, fact.dtype, shape, values)


def type_proto(fact: Fact) -> onnx.TypeProto:
    """The TypeProto of a fact."""
    value = ir.Value(name="value", type=fact.type, shape=None if fact.shape is None else ir.Shape(fact.shape))
    return ir.to_proto(value).type


def fact_of_proto(proto: onnx.TypeProto) -> Fact:
    """The fact that a TypeProto states; ONNX's generated symbols count as unknown dimensions."""
    kind = ir.serde.deserialize_type_proto_for_type(proto)
    shape = ir.serde.deserialize_type_proto_for_shape(proto)
    return Fact(kind, None if shape is None else tuple(_plain(dim) for dim in shape))


def _plain(dim: Any) -> Dim:
    if isinstance(dim, int):
        return dim if dim >= 0 else unknown_dim()
    return dim  # type: ignore[no-any-return]

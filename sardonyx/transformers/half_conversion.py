"""A model of float32 as one of float16: `convert_float_to_float16`.

The graph is walked once, in order. Of every float value it is known under which names it is there in which element
types; a node asks for its inputs in the types that its operator takes (`half_ports`), and a Cast is put before the
first node that asks for a type which nobody has made. So a value that several float32 nodes read is cast once, one
that goes from one float32 node to another is not rounded on its way, and casts stand in the graph that needs them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import onnx
import onnx_ir as ir
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, inliner

from sardonyx import errors
from sardonyx.graph import constants
from sardonyx.graph.other_files import similar_names
from sardonyx.ops.framework.inference import infer_model
from sardonyx.transformers.graph_order import graphs_of, sort_nodes, subgraphs
from sardonyx.transformers.half_numbers import (
    LARGEST,
    SMALLEST,
    check_limits,
    check_loaded,
    convert_tensor_float_to_bfloat16,
    convert_tensor_float_to_float16,
)
from sardonyx.transformers.half_ports import DEFAULT_OP_BLOCK_LIST, Ports, scaled_sums

Model: TypeAlias = str | os.PathLike[str] | ModelProto

logger = logging.getLogger(__name__)

_SUFFIXES = {TensorProto.FLOAT: "fp32", TensorProto.FLOAT16: "fp16", TensorProto.BFLOAT16: "bf16"}
_SMALLEST_BFLOAT16_OPSET = 13

# The attribute with the element type of the result, and whether float32 is what its absence means.
_RESULT_TYPES = {
    "Cast": ("to", False),
    "EyeLike": ("dtype", False),
    "Bernoulli": ("dtype", False),
    "RandomNormalLike": ("dtype", False),
    "RandomUniformLike": ("dtype", False),
    "Multinomial": ("dtype", False),
    "RandomNormal": ("dtype", True),
    "RandomUniform": ("dtype", True),
    "SequenceEmpty": ("dtype", True),
    "MelWeightMatrix": ("output_datatype", True),
    "BlackmanWindow": ("output_datatype", True),
    "HammingWindow": ("output_datatype", True),
    "HannWindow": ("output_datatype", True),
    "DequantizeLinear": ("output_dtype", False),
}


def convert_float_to_float16(
    model: Model,
    min_positive_val: float = SMALLEST,
    max_finite_val: float = LARGEST,
    keep_io_types: bool | Collection[str] = False,
    disable_shape_infer: bool = False,
    op_block_list: Collection[str] | None = None,
    node_block_list: Collection[str] | None = None,
    force_fp16_initializers: bool = False,
    force_fp16_inputs: Mapping[str, Collection[int]] | None = None,
    use_bfloat16_as_blocked_nodes_dtype: bool = False,
) -> ModelProto:
    """A model, given as a message or as the path of its file, with float16 in the place of float32.

    - Numbers of weights beyond `min_positive_val` and `max_finite_val` are clipped, see `convert_np_to_float16`.
    - `keep_io_types`: inputs and outputs of the graph stay float32, all of them or those named.
    - `op_block_list` (default `DEFAULT_OP_BLOCK_LIST`) and `node_block_list`: operators and names of nodes that stay
      float32, with all that is inside them, or become bfloat16 with `use_bfloat16_as_blocked_nodes_dtype`. Operators
      that take no float16 stay float32 in any case.
    - Sums of products of integers stay float32 until they are scaled.
    - `force_fp16_initializers`: weights that only such nodes read become float16, too.
    - `force_fp16_inputs`: inputs by operator that become float16 though they would stay float32.
    - `disable_shape_infer`: types of values are those that the model states; nothing is inferred.

    Functions of the model are expanded. ValueError for limits or a model of another type, RuntimeError for weights
    that were not read, `errors.Fail` for a sequence that would need another element type midway.
    """
    check_limits(min_positive_val, max_finite_val)
    proto = _own_copy(model)
    opsets = {("" if entry.domain == "ai.onnx" else entry.domain): entry.version for entry in proto.opset_import}
    if use_bfloat16_as_blocked_nodes_dtype and opsets.get("", 0) < _SMALLEST_BFLOAT16_OPSET:
        raise errors.InvalidArgument(
            f"use_bfloat16_as_blocked_nodes_dtype: the model has opset {opsets.get('', 0)}, and bfloat16 is known from "
            f"opset {_SMALLEST_BFLOAT16_OPSET} on; convert the model with onnx.version_converter"
        )
    ports = Ports(
        opsets,
        DEFAULT_OP_BLOCK_LIST if op_block_list is None else op_block_list,
        node_block_list or (),
        force_fp16_inputs or {},
        int(TensorProto.BFLOAT16 if use_bfloat16_as_blocked_nodes_dtype else TensorProto.FLOAT),
        {name for graph in graphs_of(proto.graph) for name in scaled_sums(graph.node)},
    )
    conversion = _Conversion(ports, (min_positive_val, max_finite_val), force_fp16_initializers)
    conversion.convert(proto, keep_io_types, infer=not disable_shape_infer)
    return proto


def _own_copy(model: Model) -> ModelProto:
    """The message to work on, with sorted nodes and without functions."""
    if isinstance(model, str | os.PathLike):
        try:
            proto = onnx.load(os.fspath(model))
        except FileNotFoundError:
            raise errors.NoSuchFile(
                f"Load model from {model} failed. File doesn't exist.{similar_names(os.fspath(model))}"
            ) from None
    elif isinstance(model, ModelProto):
        proto = ModelProto()
        proto.CopyFrom(model)
    else:
        raise ValueError(f"Expected an ONNX ModelProto, or the path of one, but got {type(model)}")
    if proto.functions:
        proto = inliner.inline_local_functions(proto)
    for graph in graphs_of(proto.graph):
        for tensor in graph.initializer:
            check_loaded(tensor)
    sort_nodes(proto.graph)
    return proto


@dataclass
class _Value:
    """A float value: the names under which it is there, by element type."""

    names: dict[int, str]
    is_tensor: bool = True
    cast: tuple[str, str] | None = None  # names of the float16 form and of the node that makes it, where they are fixed


@dataclass
class _Scope:
    """One graph while it is converted: its values, and its nodes in their new order."""

    types: Mapping[str, bool]  # the float values by their old names, and whether they are tensors
    outer: _Scope | None
    blocked: bool
    outputs: Mapping[str, tuple[int, tuple[str, str] | None]]  # element types, and names as `_Value.cast`
    values: dict[str, _Value] = field(default_factory=dict)
    nodes: list[NodeProto] = field(default_factory=list)

    def find(self, name: str) -> _Value | None:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        return None


class _Conversion:
    """What all graphs of a conversion share."""

    def __init__(self, ports: Ports, limits: tuple[float, float], force: bool) -> None:
        self.ports = ports
        self.limits = limits
        self.force = force
        self.readers: dict[str, set[int]] = {}  # the element types in which constants are read, by their names
        self.types: Iterator[Mapping[str, bool]] = iter(())
        self.taken: set[str] = set()

    def convert(self, proto: ModelProto, keep: bool | Collection[str], infer: bool) -> None:
        graph = proto.graph
        self.types = iter(_float_values(proto, infer))
        self.taken = {name for each in graphs_of(graph) for node in each.node for name in (*node.output, node.name)}
        self.taken.update(item.name for each in graphs_of(graph) for item in (*each.input, *each.initializer))
        half, single = int(TensorProto.FLOAT16), int(TensorProto.FLOAT)

        def element(info: ValueInfoProto) -> int:
            kept = keep if isinstance(keep, bool) else info.name in ([keep] if isinstance(keep, str) else keep)
            return single if kept else half

        inputs = {
            info.name: (element(info), (f"graph_input_cast_{index}", f"graph_input_cast{index}"))
            for index, info in enumerate(graph.input)
        }
        outputs = {
            info.name: (element(info), (f"graph_output_cast_{index}", f"graph_output_cast{index}"))
            for index, info in enumerate(graph.output)
        }
        self._collect_readers(graph, blocked=False, elements={name: kind for name, (kind, _) in outputs.items()})
        self.graph(graph, None, False, inputs, outputs)

    def _collect_readers(self, graph: GraphProto, blocked: bool, elements: Mapping[str, int]) -> None:
        """Note in which element types values are read: what constants become depends on it."""
        for name, element in elements.items():
            self.readers.setdefault(name, set()).add(element)
        for node in graph.node:
            inside = blocked or self.ports.is_blocked(node)
            for index, name in enumerate(node.input):
                self.readers.setdefault(name, set()).add(self.ports.input(node, index, inside))
            for inner in subgraphs(node):
                element = self.ports.output(node, 0, inside)
                self._collect_readers(inner, inside, dict.fromkeys((info.name for info in inner.output), element))

    def constant_element(self, name: str) -> int:
        """What a constant becomes: float16 where anybody reads it so, bfloat16 where everybody does."""
        half, single, other = int(TensorProto.FLOAT16), int(TensorProto.FLOAT), int(TensorProto.BFLOAT16)
        read = self.readers.get(name, set())
        if half in read and read != {half} and not self.force:
            logger.info("%s is read as float16 and as float32: block the nodes that read it to keep it exact", name)
        if half in read or self.force:
            return half
        return other if read == {other} else single

    def graph(
        self,
        graph: GraphProto,
        outer: _Scope | None,
        blocked: bool,
        inputs: Mapping[str, tuple[int, tuple[str, str] | None]],
        outputs: Mapping[str, tuple[int, tuple[str, str] | None]],
    ) -> None:
        """Convert a graph, its inputs and outputs to the given element types."""
        scope = _Scope(next(self.types), outer, blocked, outputs)
        self._declare(graph, scope, inputs)
        self._constants(graph, scope, {name: element for name, (element, _) in inputs.items()})
        for node in graph.node:
            self._node(node, scope)
        for info in graph.output:
            self._finish_output(info, scope)
        del graph.node[:]
        graph.node.extend(scope.nodes)
        _retype_declarations(graph, scope)

    def _declare(
        self, graph: GraphProto, scope: _Scope, inputs: Mapping[str, tuple[int, tuple[str, str] | None]]
    ) -> None:
        for info in graph.input:
            if info.name in scope.types:
                element, cast = inputs[info.name]
                scope.values[info.name] = _Value({element: info.name}, scope.types[info.name], cast)
                _set_element(info.type, element)

    def _constants(self, graph: GraphProto, scope: _Scope, inputs: Mapping[str, int]) -> None:
        fixed = {name: element for name, (element, _) in scope.outputs.items()}
        tensors = [*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)]
        for tensor in tensors:
            if tensor.data_type == TensorProto.FLOAT:
                element = inputs.get(tensor.name) or fixed.get(tensor.name) or self.constant_element(tensor.name)
                self.tensor(tensor, element)
                known = scope.values.setdefault(tensor.name, _Value({}))
                known.names[element] = tensor.name

    def tensor(self, tensor: TensorProto, element: int) -> None:
        """Convert a float32 tensor in place."""
        if element == TensorProto.FLOAT16:
            convert_tensor_float_to_float16(tensor, *self.limits)
        elif element == TensorProto.BFLOAT16:
            convert_tensor_float_to_bfloat16(tensor)

    def _node(self, node: NodeProto, scope: _Scope) -> None:
        blocked = scope.blocked or self.ports.is_blocked(node)
        for index, name in enumerate(node.input):
            if name:
                node.input[index] = self._named(name, self.ports.input(node, index, blocked), node, scope)
        element = self.ports.output(node, 0, blocked)
        for inner in subgraphs(node):
            names = [info.name for info in inner.input], [info.name for info in inner.output]
            inputs, outputs = (dict.fromkeys(side, (element, None)) for side in names)
            self.graph(inner, scope, blocked, inputs, outputs)
        if node.op_type == "Constant" and node.output[0] in scope.types:
            element = self.constant_element(node.output[0])
        if element != TensorProto.FLOAT:
            self._retype(node, element)
        scope.nodes.append(node)
        for index, name in enumerate(node.output):
            if name in scope.types:
                made = element if node.op_type == "Constant" else self.ports.output(node, index, blocked)
                self._produce(node, index, made, scope)

    def _named(self, name: str, element: int, reader: NodeProto, scope: _Scope) -> str:
        """The name of a value in an element type; makes that form where it is not there."""
        value = scope.find(name)
        if value is None:
            return name
        if element not in value.names:
            if not value.is_tensor:
                raise errors.Fail(
                    f"Node ({reader.name or reader.op_type}) Op ({reader.op_type}) takes the sequence {name} in "
                    f"{_SUFFIXES[element]}, but it is made in {'/'.join(_SUFFIXES[kind] for kind in value.names)}: put "
                    "the nodes that make and read it into node_block_list together, or none of them"
                )
            kinds = list(value.names)
            source = value.names[int(TensorProto.FLOAT) if TensorProto.FLOAT in kinds else kinds[0]]
            made, node_name = f"{name}_cast_to_{_SUFFIXES[element]}", f"{name}_cast_to_{_SUFFIXES[element]}_node"
            if value.cast is not None and element == TensorProto.FLOAT16:
                made, node_name = value.cast
            made = self.fresh(made)
            self._cast(source, made, element, node_name, scope)
            # A form made inside a branch is there for that branch alone.
            scope.values[name] = _Value({**value.names, element: made}, value.is_tensor, value.cast)
        return scope.values[name].names[element] if name in scope.values else value.names[element]

    def _produce(self, node: NodeProto, index: int, element: int, scope: _Scope) -> None:
        """Note the output of a node; one of the graph in another element type is cast to that at once."""
        name = node.output[index]
        wanted, cast = scope.outputs.get(name, (element, None))
        value = scope.values[name] = _Value({element: name}, scope.types[name])
        if wanted == element:
            return
        if not value.is_tensor:
            raise errors.Fail(
                f"Node ({node.name or node.op_type}) Op ({node.op_type}) makes the sequence {name} in "
                f"{_SUFFIXES[element]}, but as an output of the graph it must be {_SUFFIXES[wanted]}: "
                "name it in keep_io_types, or take the node off the block lists"
            )
        made, node_name = f"{name}_cast_to_{_SUFFIXES[wanted]}", f"{name}_cast_to_{_SUFFIXES[wanted]}_node"
        if cast is not None and wanted == TensorProto.FLOAT:
            made, node_name = cast
        node.output[index] = self.fresh(made)
        value.names = {element: node.output[index], wanted: name}
        self._cast(node.output[index], name, wanted, node_name, scope)

    def _finish_output(self, info: ValueInfoProto, scope: _Scope) -> None:
        """Declare an output as what it has become; one that an outer graph makes is handed through in its type."""
        if info.name not in scope.types and scope.find(info.name) is None:
            return
        element, _ = scope.outputs[info.name]
        if info.name not in scope.values:
            outer = info.name
            info.name = self.fresh(f"{outer}_handed_through")
            found = scope.find(outer)
            if found is not None and element in found.names:
                scope.nodes.append(helper.make_node("Identity", [found.names[element]], [info.name]))
            elif found is not None:
                self._cast(next(iter(found.names.values())), info.name, element, f"{info.name}_node", scope)
        _set_element(info.type, element)

    def _cast(self, source: str, made: str, element: int, node_name: str, scope: _Scope) -> None:
        scope.nodes.append(helper.make_node("Cast", [source], [made], to=element, name=self.fresh(node_name)))

    def _retype(self, node: NodeProto, element: int) -> None:
        """Change what a node's attributes say about float32 results."""
        name, by_default = _RESULT_TYPES.get(node.op_type, ("", False))
        if node.op_type == "Constant":
            _put_number_into_tensor(node)
        if node.op_type == "ConstantOfShape" and not node.attribute:
            zero = helper.make_tensor("value", TensorProto.FLOAT, [1], [0.0])
            node.attribute.append(helper.make_attribute("value", zero))
        if by_default and all(attribute.name != name for attribute in node.attribute):
            node.attribute.append(helper.make_attribute(name, int(TensorProto.FLOAT)))
        for attribute in node.attribute:
            if attribute.name == name and attribute.i == TensorProto.FLOAT:
                attribute.i = element
            elif attribute.type == AttributeProto.TENSOR:
                self.tensor(attribute.t, element)
            elif attribute.type == AttributeProto.TENSORS:
                for tensor in attribute.tensors:
                    self.tensor(tensor, element)
            elif attribute.type == AttributeProto.TYPE_PROTO:
                _set_element(attribute.tp, element)

    def fresh(self, wish: str) -> str:
        """A name that nothing else in the model has."""
        name, count = wish, 0
        while name in self.taken:
            count += 1
            name = f"{wish}_{count}"
        self.taken.add(name)
        return name


def _put_number_into_tensor(node: NodeProto) -> None:
    """Write a Constant's number or list of numbers as the tensor that it stands for."""
    attribute = node.attribute[0]
    if attribute.name in ("value_float", "value_floats"):
        numbers = [attribute.f] if attribute.name == "value_float" else list(attribute.floats)
        shape = [] if attribute.name == "value_float" else [len(numbers)]
        tensor = helper.make_tensor("value", TensorProto.FLOAT, shape, numbers)
        attribute.CopyFrom(helper.make_attribute("value", tensor))


def _retype_declarations(graph: GraphProto, scope: _Scope) -> None:
    """Give the declared intermediate values the element types that they have now."""
    elements = {name: kind for value in scope.values.values() for kind, name in value.names.items()}
    for info in graph.value_info:
        if info.name in elements:
            _set_element(info.type, elements[info.name])


def _set_element(kind: Any, element: int) -> None:
    """Exchange float32 for another element type in a TypeProto, inside sequences and optional values, too."""
    while not kind.HasField("tensor_type"):
        if kind.HasField("sequence_type"):
            kind = kind.sequence_type.elem_type
        elif kind.HasField("optional_type"):
            kind = kind.optional_type.elem_type
        else:
            return
    if kind.tensor_type.elem_type == TensorProto.FLOAT:
        kind.tensor_type.elem_type = element


def _float_values(proto: ModelProto, infer: bool) -> Sequence[Mapping[str, bool]]:
    """Of each graph, outer ones first: the float32 values by name, and whether they are tensors."""
    model = ir.serde.deserialize_model(proto)
    if infer:
        try:
            infer_model(model)
        except errors.OnnxRuntimeError as error:
            logger.warning("Types are known only where the model states them, as inference failed: %s", error)
    return [_float_values_of(graph) for graph in constants.graphs_of(model.graph)]


def _float_values_of(graph: ir.Graph) -> dict[str, bool]:
    found: dict[str, bool] = {}
    for value in (*graph.inputs, *graph.initializers.values(), *(made for node in graph for made in node.outputs)):
        kind: Any = value.type or _type_of_constant(value)
        is_tensor = isinstance(kind, ir.TensorType)
        while isinstance(kind, ir.SequenceType | ir.OptionalType):
            kind = kind.elem_type
        if value.name and isinstance(kind, ir.TensorType) and kind.dtype == ir.DataType.FLOAT:
            found[value.name] = is_tensor
    return found


def _type_of_constant(value: ir.Value) -> ir.TensorType | None:
    """The type of an initializer or of a Constant's result, which no declaration is needed for."""
    node = value.producer()
    tensor = value.const_value
    if node is not None and node.op_type == "Constant":
        if {"value_float", "value_floats"} & node.attributes.keys():
            return ir.TensorType(ir.DataType.FLOAT)
        tensor = node.attributes["value"].as_tensor() if "value" in node.attributes else None
    return None if tensor is None else ir.TensorType(tensor.dtype)

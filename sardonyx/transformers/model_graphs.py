"""A model's graphs, looked up by names: the part of `OnnxModel` that changes nothing."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from sardonyx import errors
from sardonyx.transformers.graph_order import graphs_of

if TYPE_CHECKING:
    from sardonyx.transformers.shape_infer_helper import SymbolicShapeInferenceHelper

Array = np.ndarray[Any, Any]

logger = logging.getLogger(__name__)


class ModelGraphs:
    """A ModelProto, with its nodes and values by name, subgraphs included."""

    def __init__(self, model: ModelProto) -> None:
        self.initialize(model)

    def initialize(self, model: ModelProto) -> None:
        """Hold another model; whatever was known of the former one is forgotten."""
        self.model: ModelProto = model
        self.shape_infer_helper: SymbolicShapeInferenceHelper | None = None
        self.enable_shape_infer: bool = True
        self.all_graphs: list[GraphProto] | None = None
        self._last_suffix: dict[str, int] = {}
        self._types: dict[str, int] | None = None
        self._shapes: dict[str, list[int | str]] | None = None

    # Graphs, nodes, names

    def graph(self) -> GraphProto:
        """The main graph."""
        return self.model.graph

    def graphs(self) -> list[GraphProto]:
        """All graphs, outer ones first; kept until `all_graphs` is set to None."""
        if self.all_graphs is None:
            self.all_graphs = list(graphs_of(self.model.graph))
        return self.all_graphs

    def functions(self) -> list[list[FunctionProto]]:
        """The functions of the model, as a list of one list."""
        return [list(self.model.functions)]

    def nodes(self) -> list[NodeProto]:
        """The nodes of all graphs."""
        return [node for graph in self.graphs() for node in graph.node]

    def get_nodes_by_op_type(self, op_type: str) -> list[NodeProto]:
        """All nodes of an operator, of any domain."""
        return [node for node in self.nodes() if node.op_type == op_type]

    def input_name_to_nodes(self, exclude_subgraphs: bool = False) -> dict[str, list[NodeProto]]:
        """The nodes that read each value; one that reads it twice is listed twice."""
        readers: dict[str, list[NodeProto]] = {}
        for node in self.model.graph.node if exclude_subgraphs else self.nodes():
            for name in filter(None, node.input):
                readers.setdefault(name, []).append(node)
        return readers

    def output_name_to_node(self, exclude_subgraphs: bool = False) -> dict[str, NodeProto]:
        """The node that makes each value."""
        nodes = self.model.graph.node if exclude_subgraphs else self.nodes()
        return {name: node for node in nodes for name in node.output if name}

    def get_graphs_input_names(self) -> list[str]:
        return [value.name for graph in self.graphs() for value in graph.input]

    def get_graphs_output_names(self) -> list[str]:
        return [value.name for graph in self.graphs() for value in graph.output]

    def get_graph_by_node(self, node: NodeProto) -> GraphProto | None:
        """The graph that holds a node, else None."""
        return next((graph for graph in self.graphs() if node in graph.node), None)

    def get_graph_by_name(self, graph_name: str) -> GraphProto | None:
        return next((graph for graph in self.graphs() if graph.name == graph_name), None)

    def find_graph_input(self, input_name: str) -> ValueInfoProto | None:
        """An input of the main graph by name, else None."""
        return next((value for value in self.model.graph.input if value.name == input_name), None)

    def find_graph_output(self, output_name: str) -> ValueInfoProto | None:
        """An output of the main graph by name, else None."""
        return next((value for value in self.model.graph.output if value.name == output_name), None)

    def get_graph_inputs_excluding_initializers(self) -> list[ValueInfoProto]:
        """The inputs of the main graph that a caller has to give."""
        return [value for value in self.model.graph.input if self.get_initializer(value.name) is None]

    def create_node_name(self, op_type: str, name_prefix: str | None = None) -> str:
        """A name that no node has and that was not given out before: the prefix or the operator, and a number."""
        prefix = f"{(name_prefix or op_type).removesuffix('_')}_"
        if prefix not in self._last_suffix:
            tails = [node.name[len(prefix) :] for node in self.nodes() if node.name.startswith(prefix)]
            self._last_suffix[prefix] = max((int(tail) for tail in tails if tail.isdecimal()), default=-1)
        self._last_suffix[prefix] += 1
        return f"{prefix}{self._last_suffix[prefix]}"

    def get_opset_version(self) -> int:
        """The version of ONNX's own operators; RuntimeError for a model that does not say."""
        for entry in self.model.opset_import:
            if entry.domain in ("", "ai.onnx"):
                return int(entry.version)
        raise RuntimeError("ONNX model has no opset for default domain: add one to model.opset_import")

    def get_operator_statistics(self, include_domain: bool = False) -> dict[str, int]:
        """How many nodes each operator has, subgraphs included; also logged, most frequent first."""
        counts: dict[str, int] = {}
        for node in self.nodes():
            name = f"{node.domain}:{node.op_type}" if include_domain and node.domain else node.op_type
            counts[name] = counts.get(name, 0) + 1
        logger.info("Operators: %s", sorted(counts.items(), key=lambda item: (-item[1], item[0])))
        return counts

    def use_float16(self) -> bool:
        """Whether anything in the model is declared, stored or cast as float16."""
        return any(_uses_half(graph) for graph in self.graphs())

    # Constants

    def get_initializer(self, name: str) -> TensorProto | None:
        """An initializer of any graph, else None."""
        return next((tensor for graph in self.graphs() for tensor in graph.initializer if tensor.name == name), None)

    def get_constant_value(self, output_name: str) -> Array | None:
        """The contents of an initializer or of a Constant's result, else None."""
        for node in self.get_nodes_by_op_type("Constant"):
            if node.output[0] == output_name:
                for attribute in node.attribute:
                    if attribute.name == "value":
                        return np.asarray(numpy_helper.to_array(attribute.t))
                    return np.asarray(helper.get_attribute_value(attribute))
        tensor = self.get_initializer(output_name)
        return None if tensor is None else np.asarray(numpy_helper.to_array(tensor))

    def get_constant_input(self, node: NodeProto) -> tuple[int | None, Array | None]:
        """The first constant that a node reads: its index and its contents."""
        for index, name in enumerate(node.input):
            value = self.get_constant_value(name)
            if value is not None:
                return index, value
        return None, None

    def find_constant_input(self, node: NodeProto, expected_value: float, delta: float = 1e-6) -> int:
        """The index of the first constant input where that is one number, this one but for `delta`; else -1."""
        index, value = self.get_constant_input(node)
        if index is not None and value is not None and value.size == 1 and abs(value.item() - expected_value) < delta:
            return index
        return -1

    def has_constant_input(self, node: NodeProto, expected_value: float, delta: float = 1e-6) -> bool:
        return self.find_constant_input(node, expected_value, delta) >= 0

    def is_constant_with_specified_dimension(self, output_name: str, dimensions: int, description: str) -> bool:
        """Whether a value is a constant of this rank; the reason against it is logged under `description`."""
        value = self.get_constant_value(output_name)
        if value is None:
            logger.debug("%s %s is not a constant", description, output_name)
            return False
        if value.ndim != dimensions:
            logger.debug("%s %s has shape %s, not %d dimensions", description, output_name, value.shape, dimensions)
            return False
        return True

    @staticmethod
    def get_node_attribute(node: NodeProto, attribute_name: str) -> Any:
        """The value of a node's attribute, None where it is not given."""
        for attribute in node.attribute:
            if attribute.name == attribute_name:
                return helper.get_attribute_value(attribute)
        return None

    # Types and shapes

    def disable_shape_inference(self) -> None:
        """Use no types and shapes but those that the model states."""
        self.enable_shape_infer = False

    def infer_runtime_shape(
        self, dynamic_axis_mapping: Mapping[str, int] | None = None, update: bool = False
    ) -> SymbolicShapeInferenceHelper | None:
        """What inference finds where dimensions have the given sizes; None where it is disabled or not complete.

        What was found is kept until `update` asks for it anew. A model that contradicts itself disables inference.
        """
        if not self.enable_shape_infer:
            return None
        if self.shape_infer_helper is None or update:
            from sardonyx.transformers.shape_infer_helper import SymbolicShapeInferenceHelper

            self.shape_infer_helper = SymbolicShapeInferenceHelper(self.model)
        try:
            if self.shape_infer_helper.infer(dynamic_axis_mapping or {}):
                return self.shape_infer_helper
        except errors.OnnxRuntimeError as error:
            self.enable_shape_infer = False
            logger.warning("Shapes are not known, as inference failed: %s", error)
        return None

    @staticmethod
    def tensor_shape_to_list(tensor_type: Any) -> list[int | str]:
        """The dimensions of a tensor type: numbers and names, and ``?`` for those without either."""
        return [
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param if dim.HasField("dim_param") else "?"
            for dim in tensor_type.shape.dim
        ]

    def get_dtype(self, name: str, symbolic_shape_helper: SymbolicShapeInferenceHelper | None = None) -> int | None:
        """The element type of a value of the main graph, as declared or else as inferred; None where it is unknown."""
        if self._types is None:
            self._types = {tensor.name: tensor.data_type for tensor in self.model.graph.initializer}
            self._types.update((info.name, info.type.tensor_type.elem_type) for info in self._declarations())
        found = self._types.get(name)
        if found is None and symbolic_shape_helper is not None and name in symbolic_shape_helper.known_vi_:
            found = symbolic_shape_helper.known_vi_[name].type.tensor_type.elem_type
        return None if found is None else int(found)

    def get_shape(
        self, name: str, symbolic_shape_helper: SymbolicShapeInferenceHelper | None = None
    ) -> list[int | str] | None:
        """The dimensions of a value of the main graph, as declared or else as inferred; None where nobody knows."""
        if self._shapes is None:
            self._shapes = {tensor.name: list(tensor.dims) for tensor in self.model.graph.initializer}
            for info in self._declarations():
                if info.type.tensor_type.HasField("shape"):
                    dims = info.type.tensor_type.shape.dim
                    self._shapes[info.name] = [dim.dim_param or dim.dim_value for dim in dims]
        found = self._shapes.get(name)
        if found is None and symbolic_shape_helper is not None and name in symbolic_shape_helper.known_vi_:
            found = symbolic_shape_helper.shape_of(name)
        return found

    def _declarations(self) -> list[ValueInfoProto]:
        graph = self.model.graph
        return [*graph.value_info, *graph.input, *graph.output]


def _uses_half(graph: GraphProto) -> bool:
    half = TensorProto.FLOAT16
    for info in itertools.chain(graph.input, graph.output, graph.value_info):
        kind = info.type
        while kind.HasField("sequence_type"):
            kind = kind.sequence_type.elem_type
        if kind.tensor_type.elem_type == half:
            return True
    if any(tensor.data_type == half for tensor in graph.initializer):
        return True
    attributes = [(node.op_type, attribute) for node in graph.node for attribute in node.attribute]
    return any(
        (op_type == "Cast" and attribute.name == "to" and attribute.i == half)
        or (attribute.HasField("t") and attribute.t.data_type == half)
        or any(tensor.data_type == half for tensor in attribute.tensors)
        for op_type, attribute in attributes
    )

"""`ONNXModel`: a quantised model as a message, to look things up in, change and save."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper

from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.transformers.graph_order import captured, graphs_of, sort_nodes, subgraphs
from sardonyx.transformers.onnx_model import OnnxModel


class ONNXModel(OnnxModel):
    """A ModelProto, `model`. Unlike those of `OnnxModel`, its nodes and initializers are those of the main graph."""

    # Looking up

    def nodes(self) -> Any:
        """The nodes of the main graph, as the message holds them."""
        return self.model.graph.node

    def initializer(self) -> Any:
        """The initializers of the main graph, as the message holds them."""
        return self.model.graph.initializer

    def ir_version(self) -> int:
        return int(self.model.ir_version)

    def opset_import(self) -> Any:
        """The operator sets, as the message holds them."""
        return self.model.opset_import

    def get_initializer(self, name: str) -> TensorProto | None:
        """An initializer of the main graph, else None."""
        return next((tensor for tensor in self.model.graph.initializer if tensor.name == name), None)

    def get_initializer_name_set(self) -> set[str]:
        return {tensor.name for tensor in self.model.graph.initializer}

    def get_non_initializer_inputs(self) -> set[str]:
        """The names of the inputs that a caller has to give."""
        return {value.name for value in self.model.graph.input} - self.get_initializer_name_set()

    def get_tensor_type(self, tensor_name: str) -> Any:
        """The declared tensor type of a value, else None."""
        graph = self.model.graph
        for info in (*graph.value_info, *graph.input, *graph.output):
            if info.name == tensor_name:
                return info.type.tensor_type
        return None

    def is_graph_input(self, tensor_name: str) -> bool:
        return self.find_graph_input(tensor_name) is not None

    def is_graph_output(self, output_name: str) -> bool:
        return self.find_graph_output(output_name) is not None

    def find_node_by_name(
        self, node_name: str, new_nodes_list: Iterable[NodeProto], graph: GraphProto
    ) -> NodeProto | None:
        """A node of a graph or of a list by its name, else None."""
        return next((node for node in (*graph.node, *new_nodes_list) if node.name == node_name), None)

    @staticmethod
    def find_nodes_by_initializer(graph: GraphProto, initializer: TensorProto) -> list[NodeProto]:
        """The nodes of a graph that read an initializer."""
        return [node for node in graph.node if initializer.name in node.input]

    def get_largest_node_name_suffix(self, node_name_prefix: str) -> int:
        """The largest number that follows the prefix in the name of a node; -1 where none does."""
        return _largest_suffix(node_name_prefix, (node.name for node in self.nodes()))

    def get_largest_initializer_name_suffix(self, initializer_name_prefix: str) -> int:
        """The largest number that follows the prefix in the name of an initializer; -1 where none does."""
        return _largest_suffix(initializer_name_prefix, self.get_initializer_name_set())

    # Changing

    def set_opset_import(self, domain: str, version: int) -> None:
        """Import an operator set in this version."""
        for entry in self.model.opset_import:
            if entry.domain == domain:
                entry.version = version
                return
        self.model.opset_import.append(helper.make_opsetid(domain, version))

    def add_initializer(self, tensor: TensorProto, graph_name: str | None = None) -> None:
        """Add an initializer, unless there is one of its name."""
        if graph_name is not None or self.get_initializer(tensor.name) is None:
            super().add_initializer(tensor, graph_name)

    def initializer_extend(self, inits: Sequence[TensorProto]) -> None:
        """Add initializers; ValueError for none."""
        if not inits:
            raise InvalidQuantization("initializer_extend takes at least one initializer")
        self.model.graph.initializer.extend(inits)

    def remove_initializer(self, tensor: TensorProto) -> None:
        """Remove an initializer, and the input of its name."""
        graph = self.model.graph
        if tensor in graph.initializer:
            graph.initializer.remove(tensor)
            for value in [value for value in graph.input if value.name == tensor.name]:
                graph.input.remove(value)

    def remove_initializers(self, init_to_remove: Iterable[TensorProto]) -> None:
        for tensor in list(init_to_remove):
            self.remove_initializer(tensor)

    def replace_input_of_nodes(self, old_input_name: str, new_input_name: str, node_names_set: Collection[str]) -> None:
        """Let the nodes of these names read one value in the place of another."""
        for node in self.nodes():
            if node.name in node_names_set:
                self.replace_node_input(node, old_input_name, new_input_name)

    def replace_output_of_nodes(
        self, old_output_name: str, new_output_name: str, node_names_set: Collection[str]
    ) -> None:
        """Give what the nodes of these names make another name."""
        for node in self.nodes():
            if node.name in node_names_set:
                self.replace_node_output(node, old_output_name, new_output_name)

    def remove_unused_constant(self) -> None:
        """Remove Constants and initializers that nobody reads, bodies included."""
        super().remove_unused_constant()
        self.clean_initializers()

    def clean_initializers(self) -> tuple[GraphProto, set[str]]:
        """Remove the initializers that nobody reads: the graph, and the names that it reads and nobody makes."""
        for graph in graphs_of(self.model.graph):
            read = {name for node in graph.node for name in (*node.input, *captured(node))}
            read |= {value.name for value in graph.output}
            for tensor in [tensor for tensor in graph.initializer if tensor.name not in read]:
                graph.initializer.remove(tensor)
                for value in [value for value in graph.input if value.name == tensor.name]:
                    graph.input.remove(value)
        graph = self.model.graph
        known = {*(value.name for value in graph.input), *self.get_initializer_name_set(), ""}
        known |= {name for node in graph.node for name in node.output}
        wanted = {name for node in graph.node for name in (*node.input, *captured(node))}
        return graph, wanted - known

    def replace_gemm_with_matmul(self) -> None:
        """Let MatMul and Add do the work of each Gemm that only transposes its second operand, bodies included."""
        for graph in graphs_of(self.model.graph):
            weights = {tensor.name: tensor for tensor in graph.initializer}
            readers: dict[str, int] = {value.name: 1 for value in graph.output}
            for node in graph.node:
                for name in (*node.input, *captured(node)):
                    readers[name] = readers.get(name, 0) + 1
            nodes = [made for node in graph.node for made in _without_gemm(node, weights, readers)]
            del graph.node[:]
            graph.node.extend(nodes)
        self.all_graphs = None

    def topological_sort(self, is_deterministic: bool = False, dump_model_on_failure: bool = False) -> None:
        """Bring the nodes into an order in which each follows those it reads; RuntimeError where there is none."""
        sort_nodes(self.model.graph, by_name=is_deterministic)

    def save_model_to_file(
        self,
        output_path: str | os.PathLike[str],
        use_external_data_format: bool = False,
        all_tensors_to_one_file: bool = True,
        size_threshold: int = 1024,
        convert_attribute: bool = True,
    ) -> None:
        """Sort the nodes and write the model; with external data its weights go to ``<name>.data`` beside it.

        `errors.Fail` where a file cannot be written; then there is no part of one.
        """
        super().save_model_to_file(
            output_path, use_external_data_format, all_tensors_to_one_file, size_threshold, convert_attribute
        )


def _largest_suffix(prefix: str, names: Iterable[str]) -> int:
    tails = (name[len(prefix) :] for name in names if name.startswith(prefix))
    return max((int(tail) for tail in tails if tail.isdecimal()), default=-1)


def _without_gemm(node: NodeProto, weights: Mapping[str, TensorProto], readers: Mapping[str, int]) -> list[NodeProto]:
    """The nodes that do the work of a node; the node itself where it is no Gemm, or one that scales or transposes A."""
    given = {one.name: helper.get_attribute_value(one) for one in node.attribute if one.type != AttributeProto.GRAPH}
    scaled = given.get("alpha", 1.0) != 1.0 or given.get("beta", 1.0) != 1.0
    if node.op_type != "Gemm" or scaled or given.get("transA") or any(True for _ in subgraphs(node)):
        return [node]
    made = []
    operand = node.input[1]
    if given.get("transB"):
        tensor = weights.get(operand)
        if tensor is not None and readers[operand] == 1:
            name = tensor.name
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(numpy_helper.to_array(tensor).T), name))
        else:
            operand = f"{operand}_Transposed_{node.output[0]}"
            made.append(helper.make_node("Transpose", [node.input[1]], [operand], f"{node.name}_Transpose"))
    has_bias = len(node.input) > 2 and node.input[2]
    product = f"{node.output[0]}_MatMul" if has_bias else node.output[0]
    name = f"{node.name}_MatMul" if node.name else ""
    made.append(helper.make_node("MatMul", [node.input[0], operand], [product], name))
    if has_bias:
        name = f"{node.name}_Add" if node.name else ""
        made.append(helper.make_node("Add", [product, node.input[2]], [node.output[0]], name))
    return made

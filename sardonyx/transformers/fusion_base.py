"""`Fusion`: the base of fusions that callers write themselves, over the nodes of an `OnnxModel`."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper

from sardonyx.transformers.onnx_model import OnnxModel

logger = logging.getLogger(__name__)


class Fusion:
    """Looks at every node of some operators; `fuse` says what to add and what to remove, `apply` does it.

    A subclass appends to `nodes_to_add`, with the name of the graph of each in `node_name_to_graph_name`, and to
    `nodes_to_remove`, or sets `prune_graph` to have removed what is not needed any more.
    """

    def __init__(
        self, model: OnnxModel, fused_op_type: str, search_op_types: str | Sequence[str], description: str = ""
    ) -> None:
        self.model = model
        self.fused_op_type = fused_op_type
        self.search_op_types = [search_op_types] if isinstance(search_op_types, str) else list(search_op_types)
        self.description = f"{fused_op_type}({description})" if description else fused_op_type
        self.nodes_to_remove: list[NodeProto] = []
        self.nodes_to_add: list[NodeProto] = []
        self.prune_graph = False
        self.node_name_to_graph_name: dict[str, str] = {}
        self.this_graph_name: str | None = None
        self.fused_count: defaultdict[str, int] = defaultdict(int)

    def increase_counter(self, fused_op_name: str) -> None:
        """Count a fused operator, for the log."""
        self.fused_count[fused_op_name] += 1

    def fuse(
        self,
        node: NodeProto,
        input_name_to_nodes: Mapping[str, list[NodeProto]],
        output_name_to_node: Mapping[str, NodeProto],
    ) -> None:
        """Look at one node: a subclass says how."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it fuses: override fuse()")

    def apply(self) -> None:
        """Look at all nodes of the operators, then change the model."""
        readers, producers = self.model.input_name_to_nodes(), self.model.output_name_to_node()
        for op_type in self.search_op_types:
            for node in self.model.get_nodes_by_op_type(op_type):
                graph = self.model.get_graph_by_node(node)
                if graph is None:
                    raise RuntimeError(f"{node.name or op_type} is in no graph of the model")
                self.this_graph_name = graph.name
                self.fuse(node, readers, producers)
        made = self.fused_count or {self.description: sum(n.op_type == self.fused_op_type for n in self.nodes_to_add)}
        for name, count in made.items():
            if count:
                logger.info("Fused %s: %d", name, count)
        self.model.remove_nodes(self.nodes_to_remove)
        self.model.add_nodes(self.nodes_to_add, self.node_name_to_graph_name)
        if self.prune_graph:
            self.model.prune_graph()
        elif self.nodes_to_remove or self.nodes_to_add:
            self.model.update_graph()

    def add_initializer(
        self, name: str, data_type: int, dims: Sequence[int], vals: Any, raw: bool = True
    ) -> TensorProto:
        """Add an initializer to the graph of the current node; the tensor."""
        if raw:
            dtype = helper.tensor_dtype_to_np_dtype(data_type)
            vals = (vals if isinstance(vals, np.ndarray) else np.array(vals, dtype)).tobytes()
        tensor = helper.make_tensor(name, data_type, dims, vals, raw=raw)
        self.model.add_initializer(tensor, self.this_graph_name)
        return tensor

    def remove_initializer(self, tensor: TensorProto) -> None:
        self.model.remove_initializer(tensor)

    def add_nodes_to_remove(self, nodes: Sequence[NodeProto]) -> None:
        """Remember nodes to remove, each once: paths may share nodes."""
        self.add_nodes_to_remove_with_nodes_to_keep(nodes, ())

    def add_nodes_to_remove_with_nodes_to_keep(
        self, nodes: Sequence[NodeProto], nodes_to_keep: Collection[NodeProto]
    ) -> None:
        """The same but for some nodes."""
        for node in nodes:
            if node not in self.nodes_to_remove and node not in nodes_to_keep:
                self.nodes_to_remove.append(node)

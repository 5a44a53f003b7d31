"""Ways from node to node through a model: the part of `OnnxModel` that matches patterns."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from onnx import NodeProto

from sardonyx.transformers.model_graphs import ModelGraphs

Producers: TypeAlias = Mapping[str, NodeProto]
Readers: TypeAlias = Mapping[str, Sequence[NodeProto]]
Path: TypeAlias = tuple[Sequence[str], Sequence[int | None]]

logger = logging.getLogger(__name__)


class NodePaths(ModelGraphs):
    """Parents make what a node reads, children read what it makes.

    The maps of `output_name_to_node` and `input_name_to_nodes` may be passed in, as making them takes time.
    """

    def get_children(
        self, node: NodeProto, input_name_to_nodes: Readers | None = None, output_index: int | None = None
    ) -> list[NodeProto]:
        """The nodes that read the outputs of a node, or one of its outputs."""
        readers = self.input_name_to_nodes() if input_name_to_nodes is None else input_name_to_nodes
        outputs = list(node.output)
        if output_index is not None:
            outputs = outputs[output_index : output_index + 1]
        return [child for name in outputs for child in readers.get(name, ())]

    def get_parents(self, node: NodeProto, output_name_to_node: Producers | None = None) -> list[NodeProto]:
        """The nodes that make the inputs of a node, in the order of these."""
        producers = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        return [producers[name] for name in node.input if name in producers]

    def get_parent(self, node: NodeProto, i: int, output_name_to_node: Producers | None = None) -> NodeProto | None:
        """The node that makes input `i`; None where no node does."""
        producers = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        return producers.get(node.input[i]) if i < len(node.input) else None

    def match_first_parent(
        self,
        node: NodeProto,
        parent_op_type: str,
        output_name_to_node: Producers,
        exclude: Collection[NodeProto] = (),
    ) -> tuple[NodeProto | None, int | None]:
        """The first parent of an operator and the index of the input that it makes; (None, None) without one."""
        for index, name in enumerate(node.input):
            parent = output_name_to_node.get(name)
            if parent is not None and parent.op_type == parent_op_type and parent not in exclude:
                return parent, index
        return None, None

    def match_parent(
        self,
        node: NodeProto,
        parent_op_type: str,
        input_index: int | None = None,
        output_name_to_node: Producers | None = None,
        exclude: Collection[NodeProto] = (),
        return_indice: list[int | None] | None = None,
    ) -> NodeProto | None:
        """The parent at an input where it is of this operator, else None.

        Without `input_index` the first such parent of any input, whose index is appended to `return_indice`.
        """
        producers = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        if input_index is None:
            parent, index = self.match_first_parent(node, parent_op_type, producers, exclude)
            if return_indice is not None:
                return_indice.append(index)
            return parent
        parent = self.get_parent(node, input_index, producers)
        if parent is None or parent.op_type != parent_op_type or parent in exclude:
            found = "no node" if parent is None else parent.op_type
            logger.debug("input %d of %s: expected %s, found %s", input_index, node.name, parent_op_type, found)
            return None
        return parent

    def match_parent_path(
        self,
        node: NodeProto,
        parent_op_types: Sequence[str],
        parent_input_index: Sequence[int | None] | None = None,
        output_name_to_node: Producers | None = None,
        return_indice: list[int | None] | None = None,
    ) -> list[NodeProto] | None:
        """The nodes of a way upwards, each a parent of the one before; None where there is no such way.

        Which inputs the way takes is said by `parent_input_index`; None stands for the first that fits, whose index is
        appended to `return_indice`. ValueError for lists of different lengths.
        """
        indices = [None] * len(parent_op_types) if parent_input_index is None else list(parent_input_index)
        producers = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        found: list[NodeProto] = []
        for op_type, index in zip(parent_op_types, indices, strict=True):
            parent = self.match_parent(found[-1] if found else node, op_type, index, producers, (), return_indice)
            if parent is None:
                return None
            found.append(parent)
        return found

    def match_parent_paths(
        self, node: NodeProto, paths: Sequence[Path], output_name_to_node: Producers
    ) -> tuple[int, list[NodeProto] | None, list[int | None] | None]:
        """The first of several ways that is there: its number, its nodes and the chosen indices; -1 without one."""
        matches = self.match_parent_paths_all(node, paths, output_name_to_node)
        return next(zip(*matches, strict=True), (-1, None, None))

    def match_parent_paths_all(
        self, node: NodeProto, paths: Sequence[Path], output_name_to_node: Producers
    ) -> tuple[list[int], list[list[NodeProto]], list[list[int | None]]]:
        """All of several ways that are there: their numbers, nodes and chosen indices."""
        numbers: list[int] = []
        matches: list[list[NodeProto]] = []
        indices: list[list[int | None]] = []
        for number, (op_types, inputs) in enumerate(paths):
            chosen: list[int | None] = []
            nodes = self.match_parent_path(node, op_types, inputs, output_name_to_node, chosen)
            if nodes:
                numbers.append(number)
                matches.append(nodes)
                indices.append(chosen)
        return numbers, matches, indices

    def match_child_path(
        self,
        node: NodeProto,
        child_op_types: Sequence[str],
        edges: Sequence[tuple[int, int]] | None = None,
        input_name_to_nodes: Readers | None = None,
        exclude: Collection[NodeProto] = (),
    ) -> list[NodeProto] | None:
        """The nodes of a way downwards; `edges` are, for each step, the output it leaves by and the input it enters by.

        Where the first child that fits leads nowhere, the next one is tried. None where there is no such way.
        """
        if edges is not None and len(edges) != len(child_op_types):
            raise ValueError(f"{len(edges)} edges for {len(child_op_types)} operators: give one for each step")
        readers = self.input_name_to_nodes() if input_name_to_nodes is None else input_name_to_nodes

        def fits(parent: NodeProto, child: NodeProto, step: int) -> bool:
            if child.op_type != child_op_types[step] or child in exclude:
                return False
            if edges is None:
                return True
            leaves, enters = edges[step]
            return enters < len(child.input) and child.input[enters] == parent.output[leaves]

        def way(parent: NodeProto, step: int) -> list[NodeProto] | None:
            if step == len(child_op_types):
                return []
            for child in self.get_children(parent, readers, None if edges is None else edges[step][0]):
                if fits(parent, child, step):
                    rest = way(child, step + 1)
                    if rest is not None:
                        return [child, *rest]
            return None

        return way(node, 0)

    def find_first_child_by_type(
        self,
        node: NodeProto,
        child_type: str,
        input_name_to_nodes: Readers | None = None,
        recursive: bool = True,
    ) -> NodeProto | None:
        """The nearest node of an operator below a node, or among its children; None without one."""
        readers = self.input_name_to_nodes() if input_name_to_nodes is None else input_name_to_nodes
        return _first(node, child_type, lambda one: self.get_children(one, readers), recursive)

    def find_first_parent_by_type(
        self,
        node: NodeProto,
        parent_type: str,
        output_name_to_node: Producers | None = None,
        recursive: bool = True,
    ) -> NodeProto | None:
        """The nearest node of an operator above a node, or among its parents; None without one."""
        producers = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        return _first(node, parent_type, lambda one: self.get_parents(one, producers), recursive)

    def get_children_subgraph_nodes(
        self, root_node: NodeProto, stop_nodes: Collection[NodeProto], input_name_to_nodes: Readers | None = None
    ) -> list[NodeProto]:
        """All nodes below the first output of a node; those of `stop_nodes` and what is below them are left out."""
        readers = self.input_name_to_nodes() if input_name_to_nodes is None else input_name_to_nodes
        first = list(readers.get(root_node.output[0], ()))
        return _reached(first, stop_nodes, lambda one: self.get_children(one, readers))

    def get_parent_subgraph_nodes(
        self, node: NodeProto, stop_nodes: Collection[NodeProto], output_name_to_node: Producers | None = None
    ) -> list[NodeProto]:
        """All nodes above a node; those of `stop_nodes` and what is above them are left out."""
        producers = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        return _reached(self.get_parents(node, producers), stop_nodes, lambda one: self.get_parents(one, producers))

    def get_graph_inputs(self, current_node: NodeProto, recursive: bool = False) -> list[str]:
        """The inputs of the main graph that a node reads, or that reach it."""
        inputs = {value.name for value in self.model.graph.input}
        nodes = [current_node, *(self.get_parent_subgraph_nodes(current_node, []) if recursive else [])]
        return list(dict.fromkeys(name for node in nodes for name in node.input if name in inputs))

    @staticmethod
    def input_index(node_output: str, child_node: NodeProto) -> int:
        """The first place at which a node reads a value; -1 where it does not."""
        return next((index for index, name in enumerate(child_node.input) if name == node_output), -1)

    @staticmethod
    def is_safe_to_fuse_nodes(
        nodes_to_remove: Collection[NodeProto],
        keep_outputs: Collection[str],
        input_name_to_nodes: Readers,
        output_name_to_node: Producers,
    ) -> bool:
        """Whether nobody but these nodes reads what they make, but for `keep_outputs`."""
        for node in nodes_to_remove:
            for name in node.output:
                if name not in keep_outputs and any(
                    reader not in nodes_to_remove for reader in input_name_to_nodes.get(name, ())
                ):
                    logger.debug("%s of %s is read elsewhere", name, node.name)
                    return False
        return True


def _first(
    node: NodeProto, op_type: str, neighbours: Callable[[NodeProto], Sequence[NodeProto]], recursive: bool
) -> NodeProto | None:
    """The first node of an operator in breadth-first order, of the direct neighbours the last one first."""
    waiting = deque(reversed(neighbours(node)))
    seen: set[tuple[str, ...]] = set()
    while waiting:
        current = waiting.popleft()
        if current.op_type == op_type:
            return current
        key = tuple(current.output)
        if recursive and key not in seen:
            seen.add(key)
            waiting.extend(neighbours(current))
    return None


def _reached(
    first: Sequence[NodeProto],
    stop_nodes: Collection[NodeProto],
    neighbours: Callable[[NodeProto], Sequence[NodeProto]],
) -> list[NodeProto]:
    """All nodes that can be reached without passing those of `stop_nodes`, each once."""
    waiting = deque(reversed(first))
    found: list[NodeProto] = []
    seen: set[tuple[str, ...]] = set()
    while waiting:
        current = waiting.popleft()
        key = tuple(current.output)
        if key in seen or current in stop_nodes:
            continue
        seen.add(key)
        found.append(current)
        waiting.extend(neighbours(current))
    return found

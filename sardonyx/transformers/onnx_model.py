"""`OnnxModel`: a model to look things up in, change, tidy up, convert and save."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from sardonyx.transformers import large_weights
from sardonyx.transformers.graph_order import captured, sort_nodes, subgraphs
from sardonyx.transformers.half_conversion import convert_float_to_float16
from sardonyx.transformers.node_paths import NodePaths

logger = logging.getLogger(__name__)

_CONVERSION_OPTIONS = frozenset(
    {
        "keep_io_types",
        "min_positive_val",
        "max_finite_val",
        "op_block_list",
        "node_block_list",
        "force_fp16_initializers",
        "force_fp16_inputs",
        "use_bfloat16_as_blocked_nodes_dtype",
    }
)
# The types that hold every number of a type.
_WIDER: Mapping[int | None, Collection[int]] = {
    TensorProto.FLOAT16: (TensorProto.FLOAT, TensorProto.DOUBLE),
    TensorProto.BFLOAT16: (TensorProto.FLOAT, TensorProto.DOUBLE),
    TensorProto.FLOAT: (TensorProto.DOUBLE,),
    TensorProto.INT32: (TensorProto.INT64, TensorProto.DOUBLE),
}


class OnnxModel(NodePaths):
    """A ModelProto, `model`, with what graph tools do to it.

    Nodes may be added in any order; `topological_sort`, which saving includes, brings them into one that runs.
    """

    # Nodes and values

    def add_node(self, node: NodeProto, graph_name: str | None = None) -> None:
        """Add a node at the end of the main graph, or in a subgraph before the first node that reads it."""
        graph = self._graph_named(graph_name)
        if any(True for _ in subgraphs(node)):
            self.all_graphs = None
        if graph_name is None or graph_name == self.model.graph.name:
            graph.node.append(node)
        else:
            graph.node.insert(self.get_topological_insert_id(graph, node.output), node)

    def add_nodes(
        self, nodes_to_add: Iterable[NodeProto], node_name_to_graph_name: Mapping[str, str] | None = None
    ) -> None:
        """Add nodes to the main graph, or each to the graph that is named for its name."""
        for node in nodes_to_add:
            self.add_node(node, None if node_name_to_graph_name is None else node_name_to_graph_name[node.name])

    @staticmethod
    def get_topological_insert_id(graph: GraphProto, outputs: Collection[str]) -> int:
        """The place of the first node that reads one of these values, or the end of the graph."""
        places = (index for index, node in enumerate(graph.node) if any(name in outputs for name in node.input))
        return next(places, len(graph.node))

    def remove_node(self, node: NodeProto) -> None:
        """Remove a node from the graph that holds it; a warning where none does."""
        graph = self.get_graph_by_node(node)
        if graph is None:
            logger.warning("Failed to remove node %s: no graph holds it", node.name or node.op_type)
        else:
            graph.node.remove(node)
            if any(True for _ in subgraphs(node)):
                self.all_graphs = None

    def remove_nodes(self, nodes_to_remove: Iterable[NodeProto]) -> None:
        for node in nodes_to_remove:
            self.remove_node(node)

    def add_initializer(self, tensor: TensorProto, graph_name: str | None = None) -> None:
        self._graph_named(graph_name).initializer.append(tensor)

    def remove_initializer(self, tensor: TensorProto) -> None:
        """Remove an initializer from the graph that holds it; a warning where none does."""
        for graph in self.graphs():
            if tensor in graph.initializer:
                graph.initializer.remove(tensor)
                return
        logger.warning("Failed to remove initializer %s: no graph holds it", tensor.name)

    def add_input(self, input: ValueInfoProto, graph_name: str | None = None) -> None:
        self._graph_named(graph_name).input.append(input)

    def _graph_named(self, name: str | None) -> GraphProto:
        """The main graph for None; ValueError where no graph has the name."""
        if name is None or name == self.model.graph.name:
            return self.model.graph
        graph = self.get_graph_by_name(name)
        if graph is None:
            names = ", ".join(each.name for each in self.graphs())
            raise ValueError(f"The model has no graph named {name}; it has {names}")
        return graph

    @staticmethod
    def replace_node_input(node: NodeProto, old_input_name: str, new_input_name: str) -> None:
        """Let a node read one value in the place of another."""
        _rename(node.input, old_input_name, new_input_name)

    def replace_input_of_all_nodes(self, old_input_name: str, new_input_name: str) -> None:
        """Let all nodes that read one value read another."""
        for node in self.nodes():
            _rename(node.input, old_input_name, new_input_name)

    @staticmethod
    def replace_node_output(node: NodeProto, old_output_name: str, new_output_name: str) -> None:
        """Give what a node makes another name; its readers keep reading the old one."""
        _rename(node.output, old_output_name, new_output_name)

    def replace_output_of_all_nodes(self, old_output_name: str, new_output_name: str) -> None:
        """Give what a node of the main graph makes another name; its readers keep reading the old one."""
        for node in self.model.graph.node:
            _rename(node.output, old_output_name, new_output_name)

    def rename_graph_output(self, old_name: str, new_name: str) -> None:
        """Give an output of the model another name; RuntimeError where something has that name."""
        if new_name in self.output_name_to_node() or self.find_graph_input(new_name) is not None:
            raise RuntimeError(f"{new_name} exists in graph: choose another name for the output {old_name}")
        output = self.find_graph_output(old_name)
        if output is not None:
            self.replace_input_of_all_nodes(old_name, new_name)
            self.replace_output_of_all_nodes(old_name, new_name)
            output.name = new_name

    def add_prefix_to_names(self, prefix: str) -> None:
        """Put a prefix before the names of all values but the inputs and outputs of the model."""
        kept = {value.name for value in (*self.model.graph.input, *self.model.graph.output)} | {""}

        def renamed(name: str) -> str:
            return name if name in kept or prefix + name in kept else prefix + name

        for graph in self.graphs():
            for tensor in graph.initializer:
                tensor.name = renamed(tensor.name)
            for node in graph.node:
                node.input[:] = [renamed(name) for name in node.input]
                node.output[:] = [renamed(name) for name in node.output]
            inner = [] if graph is self.model.graph else [*graph.input, *graph.output]
            for info in (*graph.value_info, *inner):
                info.name = renamed(info.name)

    # Tidying up

    def prune_graph(self, outputs: Sequence[str] | None = None, allow_remove_graph_inputs: bool = True) -> None:
        """Remove what the outputs of the model, or those named, do not need: nodes, inputs, weights, other outputs."""
        graph = self.model.graph
        kept = [value.name for value in graph.output] if outputs is None else list(outputs)
        producers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
        waiting = [producers[name] for name in kept if name in producers]
        needed: set[int] = set()
        while waiting:
            index = waiting.pop()
            if index not in needed:
                needed.add(index)
                node = graph.node[index]
                waiting += [producers[name] for name in (*node.input, *captured(node)) if name in producers]
        left_out = len(graph.node) - len(needed)
        for index in reversed(range(len(graph.node))):
            if index not in needed:
                del graph.node[index]
        self.all_graphs = None
        for value in [value for value in graph.output if value.name not in kept]:
            graph.output.remove(value)
        if left_out:
            logger.info("Removed %d nodes that no output needs", left_out)
        self.update_graph(allow_remove_graph_inputs=allow_remove_graph_inputs)

    def update_graph(self, verbose: bool = False, allow_remove_graph_inputs: bool = False) -> None:
        """Remove weights and Constants that nobody reads, and inputs of the model where that is allowed."""
        self.remove_unused_constant()
        graph = self.model.graph
        read = {name for node in graph.node for name in (*node.input, *captured(node))}
        read |= {value.name for value in graph.output}
        if verbose:
            logger.debug("values that are read: %s", sorted(read))
        for index in reversed(range(len(graph.initializer))):
            if graph.initializer[index].name not in read:
                del graph.initializer[index]
        if allow_remove_graph_inputs:
            for value in [value for value in graph.input if value.name not in read]:
                graph.input.remove(value)

    def remove_unused_constant(self) -> None:
        """Remove Constants that nobody reads."""
        for graph in self.graphs():
            read = {name for node in graph.node for name in (*node.input, *captured(node))}
            read |= {value.name for value in graph.output}
            for index in reversed(range(len(graph.node))):
                node = graph.node[index]
                if node.op_type == "Constant" and node.output[0] not in read:
                    del graph.node[index]

    def clean_shape_infer(self) -> None:
        """Forget what the model says of its intermediate values."""
        del self.model.graph.value_info[:]

    def remove_cascaded_cast_nodes(self) -> None:
        """Let a Cast that reads one which has changed no number read what that one reads.

        A float that went through a narrower type or through integers has been rounded: such casts stay.
        """
        producers = self.output_name_to_node()
        known = self.infer_runtime_shape(update=True)
        changes = 0
        for node in self.get_nodes_by_op_type("Cast"):
            parent = self.get_parent(node, 0, producers)
            if parent is not None and parent.op_type == "Cast":
                source = self.get_dtype(parent.input[0], known)
                if self.get_node_attribute(parent, "to") in _WIDER.get(source, ()):
                    node.input[0] = parent.input[0]
                    changes += 1
        if changes:
            logger.info("Removed %d cascaded Cast nodes", changes)
            self.prune_graph(allow_remove_graph_inputs=False)

    def remove_useless_cast_nodes(self) -> None:
        """Remove casts to the type that their input has, but for those between an input and an output of the model."""
        known = self.infer_runtime_shape(update=True)
        kept = set(self.get_graphs_output_names())
        removed = 0
        for node in self.get_nodes_by_op_type("Cast"):
            source, result = node.input[0], node.output[0]
            if self.get_dtype(source, known) != self.get_node_attribute(node, "to"):
                continue
            if result not in kept:
                self.replace_input_of_all_nodes(result, source)
            elif source in self.output_name_to_node(exclude_subgraphs=True) and source not in kept:
                self.remove_node(node)
                self.replace_output_of_all_nodes(source, result)
                self.replace_input_of_all_nodes(source, result)
                removed += 1
                continue
            else:
                continue
            self.remove_node(node)
            removed += 1
        if removed:
            logger.info("Removed %d Cast nodes with output type same as input", removed)

    def remove_duplicated_initializer(self, cache: MutableMapping[str, int] | None = None) -> None:
        """Keep one of the initializers of the main graph that have the same type, shape and bytes.

        `cache` keeps the hashes of contents by name for later calls.
        """
        first: dict[tuple[Any, ...], str] = {}
        changes = 0
        for tensor in self.model.graph.initializer:
            digest = None if cache is None else cache.get(tensor.name)
            if digest is None:
                digest = self.to_data_hash(tensor)
                if cache is not None:
                    cache[tensor.name] = digest
            key = tensor.data_type, tuple(tensor.dims), digest
            same = first.setdefault(key, tensor.name)
            if same != tensor.name and self.has_same_value(self.get_initializer(same), tensor, rtol=0.0, atol=0.0):
                self.replace_input_of_all_nodes(tensor.name, same)
                changes += 1
        if changes:
            logger.info("Removed %d initializers with duplicated value", changes)
            self.update_graph()

    @staticmethod
    def to_data_hash(tensor: TensorProto, base_dir: str = "") -> int:
        """A hash of the contents of a tensor, which are read from `base_dir` where they are external.

        ValueError for a tensor in segments, TypeError for one without an element type.
        """
        if tensor.HasField("segment"):
            raise ValueError(f"{tensor.name}: tensors in segments are not supported")
        if tensor.data_type == TensorProto.UNDEFINED:
            raise TypeError(f"{tensor.name} has no element type")
        if tensor.data_type == TensorProto.STRING:
            return hash(tuple(tensor.string_data))
        if uses_external_data(tensor):
            load_external_data_for_tensor(tensor, base_dir)
        return hash(tensor.raw_data if tensor.HasField("raw_data") else numpy_helper.to_array(tensor).tobytes())

    @staticmethod
    def has_same_value(
        tensor1: TensorProto | None,
        tensor2: TensorProto | None,
        signature_cache1: MutableMapping[str, int] | None = None,
        signature_cache2: MutableMapping[str, int] | None = None,
        rtol: float = 1e-05,
        atol: float = 1e-08,
    ) -> bool:
        """Whether two tensors have the same type and shape, and contents that differ by no more than the tolerances.

        The caches take hashes of contents by name.
        """
        if tensor1 is None or tensor2 is None:
            return False
        if (tensor1.data_type, list(tensor1.dims)) != (tensor2.data_type, list(tensor2.dims)):
            return False
        for tensor, cache in ((tensor1, signature_cache1), (tensor2, signature_cache2)):
            if cache is not None and tensor.name not in cache:
                cache[tensor.name] = OnnxModel.to_data_hash(tensor)
        ours, theirs = numpy_helper.to_array(tensor1), numpy_helper.to_array(tensor2)
        if tensor1.data_type == TensorProto.STRING or (rtol, atol) == (0.0, 0.0):
            return bool(np.array_equal(ours, theirs))
        return bool(np.allclose(np.float64(ours), np.float64(theirs), rtol=rtol, atol=atol, equal_nan=True))

    # Types

    def change_graph_input_type(
        self, graph_input: ValueInfoProto, new_type: int
    ) -> tuple[NodeProto | None, list[NodeProto]]:
        """Give an input of the model another element type: the Cast that was added for its readers, and those removed.

        Casts of the input to the new type have nothing left to do and go; other Casts read the input as it is now.
        """
        old_type = graph_input.type.tensor_type.elem_type
        if self.find_graph_input(graph_input.name) is None:
            raise ValueError(f"{graph_input.name} is no input of the model")
        if old_type == int(new_type):
            return None, []
        readers = self.input_name_to_nodes().get(graph_input.name, [])
        added, removed = None, []
        others = [node for node in readers if node.op_type != "Cast"]
        if others or self.find_graph_output(graph_input.name) is not None:
            name = self.create_node_name("Cast")
            added = helper.make_node("Cast", [graph_input.name], [f"{name}_{graph_input.name}"], name=name, to=old_type)
            for node in others:
                self.replace_node_input(node, graph_input.name, added.output[0])
            self.model.graph.node.insert(0, added)
        for node in readers:
            unneeded = node.op_type == "Cast" and self.get_node_attribute(node, "to") == int(new_type)
            if unneeded and node.output[0] not in self.get_graphs_output_names():
                self.replace_input_of_all_nodes(node.output[0], graph_input.name)
                removed.append(node)
        self.remove_nodes(removed)
        graph_input.type.tensor_type.elem_type = int(new_type)
        self._types = None
        return added, removed

    def change_graph_output_type(self, graph_output: ValueInfoProto, new_type: int) -> NodeProto | None:
        """Give an output of the model another element type: the Cast that was added, None where it has that type."""
        name = graph_output.name
        if self.find_graph_output(name) is None:
            raise ValueError(f"{name} is no output of the model")
        if graph_output.type.tensor_type.elem_type == int(new_type):
            return None
        cast_name = self.create_node_name("Cast")
        before = f"{cast_name}_{name}"
        self.replace_output_of_all_nodes(name, before)
        self.replace_input_of_all_nodes(name, before)
        cast = helper.make_node("Cast", [before], [name], name=cast_name, to=int(new_type))
        self.model.graph.node.append(cast)
        graph_output.type.tensor_type.elem_type = int(new_type)
        self._types = None
        return cast

    def convert_float_to_float16(self, use_symbolic_shape_infer: bool = True, **kwargs: Any) -> None:
        """Make the model one of float16; the options are those of `float16.convert_float_to_float16`.

        Inputs and outputs stay float32 unless `keep_io_types` says otherwise. Types are inferred, those of
        com.microsoft's operators included, whatever `use_symbolic_shape_infer` says. Other options are ignored with a
        warning.
        """
        unknown = kwargs.keys() - _CONVERSION_OPTIONS
        if unknown:
            logger.warning("convert_float_to_float16 has no option %s, which is ignored", ", ".join(sorted(unknown)))
        kwargs.setdefault("keep_io_types", True)
        known = {name: value for name, value in kwargs.items() if name in _CONVERSION_OPTIONS}
        self.initialize(convert_float_to_float16(self.model, **known))
        self.remove_cascaded_cast_nodes()
        self.remove_useless_cast_nodes()

    def convert_model_float32_to_float16(self, cast_input_output: bool = True) -> None:
        """The former name of `convert_float_to_float16`."""
        logger.warning("convert_model_float32_to_float16 is deprecated: use convert_float_to_float16")
        self.convert_float_to_float16(keep_io_types=cast_input_output)

    # Order, saving

    @staticmethod
    def graph_topological_sort(graph: GraphProto, is_deterministic: bool = False) -> None:
        """Sort the nodes of a graph, see `topological_sort`."""
        sort_nodes(graph, by_name=is_deterministic)

    def topological_sort(self, is_deterministic: bool = False, dump_model_on_failure: bool = False) -> None:
        """Bring the nodes of all graphs into an order in which each follows those it reads.

        They keep their order where they may, or come in the order of their names with `is_deterministic`. RuntimeError
        where that cannot be; then `dump_model_on_failure` writes the model to ``_topo_sort_failed.onnx``.
        """
        try:
            sort_nodes(self.model.graph, by_name=is_deterministic)
        except RuntimeError:
            if dump_model_on_failure:
                logger.info("The model that cannot be sorted is written to _topo_sort_failed.onnx")
                OnnxModel.save(self.model, "_topo_sort_failed.onnx", save_as_external_data=True)
            raise
        finally:
            self.all_graphs = None

    @staticmethod
    def save(
        model: ModelProto,
        output_path: str | os.PathLike[str],
        save_as_external_data: bool = False,
        all_tensors_to_one_file: bool = True,
        size_threshold: int = 1024,
        convert_attribute: bool = False,
    ) -> None:
        """Write a model, whose folder is made where it does not exist; the model itself stays as it is.

        With external data, or where weights need it for their size, those of `size_threshold` bytes and more go to
        ``<output_path>.data``, or each to a file of its own, for which the folder must be empty: else RuntimeError.
        `convert_attribute` does so with tensors in attributes, too.
        """
        target = Path(output_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        apart = save_as_external_data and not all_tensors_to_one_file
        if apart and any(found.name != target.name for found in target.parent.iterdir()):
            raise RuntimeError(
                f"Output directory ({target.parent}) for external data is not empty: choose an empty one, or "
                "all_tensors_to_one_file=True"
            )
        domains = {entry.domain for entry in model.opset_import}
        if "com.microsoft" not in domains and any(node.domain == "com.microsoft" for node in OnnxModel(model).nodes()):
            model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        large_weights.write_model(
            model, target, save_as_external_data, all_tensors_to_one_file, size_threshold, convert_attribute
        )

    def save_model_to_file(
        self,
        output_path: str | os.PathLike[str],
        use_external_data_format: bool = False,
        all_tensors_to_one_file: bool = True,
        size_threshold: int = 1024,
        convert_attribute: bool = False,
    ) -> None:
        """Sort the nodes and write the model, see `save`."""
        self.topological_sort()
        OnnxModel.save(
            self.model,
            output_path,
            use_external_data_format,
            all_tensors_to_one_file,
            size_threshold,
            convert_attribute,
        )
        logger.info("Model saved to %s", output_path)


def _rename(names: Any, old: str, new: str) -> None:
    for index, name in enumerate(names):
        if name == old:
            names[index] = new

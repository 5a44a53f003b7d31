"""`Job`: one quantization of one model, which all formats share.

It holds the model as an `onnx_ir.Model` with the facts of its values, what the caller asked for, and the report. It
makes values, nodes and initializers under names that nothing else has. Weights stay where they lie until somebody
quantises them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import ModelProto

from sardonyx import errors
from sardonyx.graph.constants import graphs_of, nodes_of, tensor_array, tensor_of
from sardonyx.graph.load import LoadedModel, make_constant
from sardonyx.graph.saving import save_model, to_message
from sardonyx.graph.versions import stamp_versions
from sardonyx.ops.framework.facts import Dim
from sardonyx.ops.framework.inference import Inference, infer_model
from sardonyx.quantization.options import Options
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.report import QuantizationReport
from sardonyx.quantization.selection import Selection, require_float
from sardonyx.quantization.tensor_quant_overrides import TensorQuantOverridesHelper

Array = np.ndarray[Any, Any]

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16})
MICROSOFT = "com.microsoft"

PRODUCER, PRODUCER_VERSION = "onnx.quantize", "0.1.0"
# What onnxruntime's quantizers write beside the model, which tools look for.
INFERRED = ("onnx.infer", "onnxruntime.quant")
PRE_PROCESSED = ("onnx.quant.pre_process", "onnxruntime.quant")

_CONSTANTS: Mapping[str, Any] = {"value_float": np.float32, "value_floats": np.float32}


class Job:
    """The model, what was asked for, and what was done.

    `ranges` are the calibrated ranges by the names of values, `None` in dynamic mode. Element types are those of
    onnx-ir. The model is changed in place.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        options: Options,
        *,
        weight_type: ir.DataType,
        activation_type: ir.DataType,
        operators: Collection[str],
        per_channel: bool = False,
        reduce_range: bool = False,
        nodes_to_quantize: Collection[str] | None = None,
        nodes_to_exclude: Collection[str] | None = None,
        ranges: Mapping[str, Any] | None = None,
    ) -> None:
        self.loaded = loaded  # whose maps must live as long as the model
        self.model = loaded.model
        self.options = options
        self.weight_type = weight_type
        self.activation_type = activation_type
        self.per_channel = per_channel
        self.reduce_range = reduce_range
        self.ranges = ranges
        self.report = QuantizationReport()
        self.graph = self.model.graph
        require_float(self.graph)
        self.selection = Selection(
            self.graph, operators, nodes_to_quantize, nodes_to_exclude, bodies=options.enable_subgraph
        )
        self.inference: Inference = infer_model(self.model, lenient=True)
        self._values: set[str] = set()
        self._names: set[str] = set()
        for graph in graphs_of(self.graph):
            self._values.update(value.name or "" for value in (*graph.inputs, *graph.initializers.values()))
        for node in nodes_of(self.graph):
            self._values.update(value.name or "" for value in node.outputs)
            self._names.add(node.name or "")
            self.report.left(node, self.why_not(node) or "nothing that it reads or makes is quantised")
        self.report.bytes_before = self._weights()
        self.overrides = TensorQuantOverridesHelper(dict(options.tensor_quant_overrides))
        self.overrides.check(self._weight_shapes(), self._tensors(), activation_type, weight_type)

    # What is asked for and known

    @property
    def opset(self) -> int:
        """The version of ONNX's own operators."""
        return self.model.opset_imports.get("", 1)

    def why_not(self, node: ir.Node) -> str | None:
        """Why a node must be left as it is, in words for the report; None where it may be quantised.

        An operator's own rule may have more reasons, of which it tells the report.
        """
        reason = self.selection.why_not(node)
        if reason is None and not any(self.is_float(value) for value in node.inputs):
            kinds = sorted({kind.name for value in node.inputs if (kind := self.dtype(value)) is not None})
            reason = f"it reads no float32 or float16, but {', '.join(kinds) or 'nothing of a known type'}"
        return reason

    def nodes(self) -> list[ir.Node]:
        """The nodes that may be quantised, each before those inside it; nodes that are added later are not listed."""
        return [node for node in nodes_of(self.graph) if self.why_not(node) is None]

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """The element type of a tensor; that of `DefaultTensorType` where inference finds none."""
        if value is None:
            return None
        fact = self.inference.fact(value)
        found = (fact.dtype if fact is not None else None) or value.dtype
        if found is None and self.options.default_tensor_type is not None:
            return ir.DataType(self.options.default_tensor_type)
        return found

    def is_float(self, value: ir.Value | None) -> bool:
        """Whether a value is a tensor of a type that can be quantised."""
        is_tensor = value is not None and (value.type is None or isinstance(value.type, ir.TensorType))
        return is_tensor and self.dtype(value) in FLOATS

    def shape(self, value: ir.Value) -> tuple[Dim, ...] | None:
        """The dimensions of a value, as far as they are known; None where not even the rank is."""
        fact = self.inference.fact(value)
        if fact is not None and fact.shape is not None:
            return fact.shape
        return None if value.shape is None else tuple(value.shape)

    def constant(self, value: ir.Value | None) -> Array | None:
        """The contents of an initializer or of a Constant's tensor, not copied; None for any other value.

        What an Identity makes of one is one, too: exporters let equal biases share a tensor so. An initializer that
        callers may override counts as well: see `settle`.
        """
        tensor = self.tensor(value)
        return None if tensor is None else tensor_array(tensor)

    def tensor(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """The tensor of an initializer or of a Constant; None for any other value."""
        if value is None:
            return None
        if value.is_initializer():
            return value.const_value
        node = value.producer()
        if node is None or node.op_type not in ("Constant", "Identity") or node.domain not in ("", "ai.onnx"):
            return None
        if node.op_type == "Identity":
            return self.tensor(node.inputs[0])
        for name, attribute in node.attributes.items():
            if name == "value":
                held: ir.TensorProtocol = attribute.value  # `as_tensor` checks a protocol, which takes long
                return held
            if name in _CONSTANTS:
                return ir.Tensor(np.asarray(attribute.value, _CONSTANTS[name]), name=value.name)
        return None

    def is_constant(self, value: ir.Value | None) -> bool:
        """Whether `constant` gives something, without reading it."""
        return self.tensor(value) is not None

    def attribute(self, node: ir.Node, name: str, default: Any = None) -> Any:
        """The value of a node's attribute; strings as str, lists as tuples."""
        found = node.attributes.get(name)
        return default if found is None else found.value

    # Changes

    def settle(self, value: ir.Value) -> None:
        """Take a weight off the inputs, where callers could override it: it is stored quantised from now on."""
        if value.is_initializer() and value.is_graph_input():
            make_constant(value)
            self.report.note(f"{value.name} is quantised and no input of the model any more")

    def value_name(self, wanted: str) -> str:
        """The name, or one with a number behind it where a value has the name; nobody else gets it."""
        return _free(wanted, self._values)

    def node_name(self, wanted: str) -> str:
        """The name, or one with a number behind it where a node has the name; nobody else gets it."""
        return _free(wanted, self._names)

    def initializer(self, name: str, array: Array, dtype: ir.DataType | None = None) -> ir.Value:
        """A new initializer of the main graph, which bodies read as well."""
        free = self.value_name(name)
        kind = dtype or ir.DataType.from_numpy(array.dtype)
        value = ir.Value(
            name=free,
            type=ir.TensorType(kind),
            shape=ir.Shape(array.shape),
            const_value=tensor_of(array, kind, free),
        )
        self.graph.register_initializer(value)
        return value

    def value(self, name: str, dtype: ir.DataType, shape: Iterable[Dim] | None = None) -> ir.Value:
        """A new value for a node to make."""
        shaped = None if shape is None else ir.Shape(shape)
        return ir.Value(name=self.value_name(name), type=ir.TensorType(dtype), shape=shaped)

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        outputs: Sequence[ir.Value],
        name: str,
        attributes: Mapping[str, Any] | None = None,
        domain: str = "",
    ) -> ir.Node:
        """A new node, not in any graph yet; its domain is imported."""
        version = self.model.opset_imports.setdefault(domain, 1)
        given = [ir.convenience.convert_attribute(key, item) for key, item in (attributes or {}).items()]
        return ir.Node(domain, op_type, inputs, given, outputs=outputs, version=version, name=self.node_name(name))

    def insert_after(self, value: ir.Value, nodes: Sequence[ir.Node], near: ir.Graph | None = None) -> None:
        """Put nodes behind the one that makes a value; at the start of its graph, or of `near`, where none does."""
        producer = value.producer()
        if producer is not None and producer.graph is not None:
            producer.append(nodes)
            return
        graph = near or value.graph or self.graph
        first = next(iter(graph), None)
        if first is None:
            graph.extend(nodes)
        else:
            first.prepend(nodes)

    def replace_reads(self, old: ir.Value, new: ir.Value, where: Callable[[ir.Node, int], bool]) -> int:
        """Let inputs for which `where(node, index)` holds read another value: how many there were."""
        uses = [use for use in old.uses() if where(use.node, use.idx)]
        for use in uses:
            use.node.replace_input_with(use.idx, new)
        return len(uses)

    def remove(self, node: ir.Node) -> None:
        """Remove a node that nobody reads, and the constants that it alone read."""
        inputs = list(node.inputs)
        assert node.graph is not None
        node.graph.remove(node, safe=True)
        for value in inputs:
            if value is not None:
                self.release(value)

    def release(self, value: ir.Value) -> None:
        """Remove a constant that nobody reads; whatever else a value is, it stays."""
        if value.uses() or value.is_graph_output() or self.tensor(value) is None:
            return
        producer = value.producer()
        if producer is not None:
            self.remove(producer)
        elif value.graph is not None and not value.is_graph_input():
            assert value.name is not None
            del value.graph.initializers[value.name]

    # The result

    def require_nodes(self) -> None:
        """`InvalidQuantization` where no node may be quantised, by what is known before any is."""
        if not self.nodes():
            self._refuse()

    def finish(self) -> None:
        """Say who made the model, count its bytes, log the report; `InvalidQuantization` where all of it was left."""
        if not self.report.count:
            self._refuse()
        self.model.producer_name, self.model.producer_version = PRODUCER, PRODUCER_VERSION
        self.model.metadata_props.setdefault(*INFERRED)
        stamp_versions(self.model)
        self.report.bytes_after = self._weights()
        self.report.log()

    def save(self, path: str | os.PathLike[str], external: bool = False) -> None:
        """Write the model; with `external`, or beyond 2 GB, its weights to ``<name>.data`` beside it.

        `errors.Fail` where a file cannot be written; then there is no part of one.
        """
        target = Path(path)
        if not target.parent.is_dir():
            raise errors.Fail(f"Saving the model to {target} failed: there is no folder {target.parent}")
        save_model(self.model, target, f"{target.name}.data" if external else None)

    def message(self) -> ModelProto:
        """The model as a message, its weights inside."""
        return to_message(self.model)

    def _refuse(self) -> None:
        reasons = "; ".join(f"{count} nodes: {reason}" for reason, count in self.report.reasons().items())
        raise InvalidQuantization(f"No node of the model can be quantised as asked: {reasons or 'it has no nodes'}")

    def _weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the constants of all graphs, by name."""
        values = [value for graph in graphs_of(self.graph) for value in graph.initializers.values()]
        values += [value for node in nodes_of(self.graph) for value in node.outputs if node.op_type == "Constant"]
        found = ((value.name or "", self.tensor(value)) for value in values)
        return {name: tuple(tensor.shape.numpy()) for name, tensor in found if tensor is not None}

    def _tensors(self) -> dict[str, set[str]]:
        """The names of the nodes that read each value, by its name."""
        readers: dict[str, set[str]] = {}
        for graph in graphs_of(self.graph):
            made = [value for node in graph for value in node.outputs]
            for value in (*graph.inputs, *graph.initializers.values(), *made):
                readers.setdefault(value.name or "", set()).update(use.node.name or "" for use in value.uses())
        return readers

    def _weights(self) -> int:
        values = (value for graph in graphs_of(self.graph) for value in graph.initializers.values())
        size = sum(value.const_value.nbytes for value in values if value.const_value is not None)
        made = (node.outputs[0] for node in nodes_of(self.graph) if node.op_type == "Constant")
        constants = (self.tensor(value) for value in made)
        return size + sum(tensor.nbytes for tensor in constants if tensor is not None)


def _free(wanted: str, taken: set[str]) -> str:
    numbered = (f"{wanted}_{number}" for number in itertools.count(1))
    name = next(name for name in itertools.chain([wanted], numbered) if name and name not in taken)
    taken.add(name)
    return name

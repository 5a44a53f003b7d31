"""From a graph of floats to one of integer operators, a node at a time.

`Rewriting` knows the quantised form of each value that has one. A node that is quantised reads those forms; a node that
is left reads floats: the ones that are there, or those that a DequantizeLinear makes of what is stored. So no node that
is left reads a value through its quantised form while there is a float one, and what was excluded stays exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from sardonyx.graph.constants import graphs_of, nodes_of, subgraphs
from sardonyx.quantization.job import Job
from sardonyx.quantization.quantized_numbers import Parameters
from sardonyx.quantization.ranges import Ranges
from sardonyx.quantization.weights import QuantizedTensor, Weights

Array = np.ndarray[Any, Any]
# Puts the quantised form of a node in its place; says why it does not, having changed nothing then.
Handler: TypeAlias = Callable[["Rewriting", ir.Node], str | None]
Handlers: TypeAlias = Mapping[tuple[str, str], Handler]  # by domain and operator

MICROSOFT = "com.microsoft"
FLOAT = ir.DataType.FLOAT
_SCALES = np.dtype(np.float32)  # integer operators read no others


class Rewriting:
    """One job's rewriting; `static` tells whether ranges of activations are known, or found in each run."""

    def __init__(self, job: Job, static: bool) -> None:
        self.job = job
        self.static = static
        self.weights = Weights(job)
        self.ranges = Ranges(job)
        self.known: dict[ir.Value, QuantizedTensor] = {}
        self._homes: dict[ir.Value, ir.Graph] = {}  # of values whose float form nothing makes any more
        self._floats: dict[ir.Value, ir.Value] = {}  # float forms that a DequantizeLinear makes
        self._around = {inner: node for node in nodes_of(job.graph) for inner in subgraphs(node)}

    def run(self, handlers: Handlers) -> None:
        """Quantise what can be."""
        for node in list(nodes_of(self.job.graph)):
            reason = self.job.why_not(node)
            if reason is None:
                domain = "" if node.domain == "ai.onnx" else node.domain
                handler = handlers.get((domain, node.op_type))
                name = f"{node.op_type} of {domain or 'ONNX'}"
                reason = f"{name} has no form of integers" if handler is None else handler(self, node)
            if reason is not None:
                self.job.report.left(node, reason)
                self._read_floats(node, node)
        for graph in graphs_of(self.job.graph):
            for index, value in enumerate(graph.outputs):
                if value in self._homes:
                    graph.outputs[index] = self._float_of(value, graph)

    # What is known

    def is_constant(self, value: ir.Value | None) -> bool:
        """Whether a value is a constant, or the Transpose of one."""
        return value is not None and (self.job.is_constant(value) or self.transpose_of(value) is not None)

    def transpose_of(self, value: ir.Value) -> tuple[ir.Value, tuple[int, ...]] | None:
        """The constant that a value is the Transpose of, and its `perm`; None for any other value."""
        node = value.producer()
        if node is None or node.op_type != "Transpose" or node.domain not in ("", "ai.onnx"):
            return None
        source = node.inputs[0]
        if source is None or not self.job.is_constant(source) or self.job.why_not(node) is not None:
            return None
        rank = len(self.tensor_shape(source))
        return source, tuple(self.job.attribute(node, "perm", tuple(range(rank))[::-1]))

    def tensor_shape(self, value: ir.Value) -> tuple[int, ...]:
        """The shape of a constant, without reading it."""
        tensor = self.job.tensor(value)
        assert tensor is not None
        return tuple(int(size) for size in tensor.shape.numpy())

    def is_gone(self, value: ir.Value) -> bool:
        """Whether nothing makes the float form of a value any more."""
        return value in self._homes

    def array(self, value: ir.Value) -> Array:
        """The contents of a constant."""
        found = self.job.constant(value)
        assert found is not None
        return found

    # Quantised forms of inputs

    def activation(self, value: ir.Value, node: ir.Node) -> QuantizedTensor:
        """The quantised form of a float that `node` reads; what makes it comes before `node`, where it is not there.

        In a static rewriting the value has to be one of which `can_quantize` holds.
        """
        found = self.known.get(value)
        if found is not None:
            return found
        if self.job.is_constant(value):
            return self.constant(value)
        found = self._quantize_linear(value, node) if self.static else self._dynamic(value, node)
        self.known[value] = found
        return found

    def unsigned(self, value: ir.Value, node: ir.Node) -> QuantizedTensor:
        """As `activation`, in uint8, for operators that take nothing else: a value that is stored otherwise is made a
        float and quantised again."""
        found = self.known.get(value)
        if found is not None and found.dtype != ir.DataType.UINT8 and value in self._homes:
            return self.activation(self._float_of(value, node), node)
        return self.activation(value, node)

    def can_quantize(self, value: ir.Value) -> bool:
        """Whether `activation` can quantise a value."""
        name = value.name or ""
        has_range = name in self.ranges and not self.ranges.is_infinite(name)
        return value in self.known or not self.static or has_range or self.job.is_constant(value)

    def constant(self, value: ir.Value) -> QuantizedTensor:
        """A constant in the type of activations."""
        job = self.job
        dtype = job.activation_type
        symmetric = None if dtype == job.weight_type else job.options.activation_symmetric
        parameters = self.weights.parameters(value, dtype, symmetric=symmetric, reduced=False, kind=_SCALES)
        return self.weights.quantized(value, dtype, parameters=parameters)

    def parameters(
        self,
        value: ir.Value,
        axis: int | None = None,
        block_size: int = 0,
        *,
        dtype: ir.DataType | None = None,
        symmetric: bool | None = None,
        reduced: bool | None = None,
    ) -> Parameters:
        """How a weight is stored, with scales of float32."""
        return self.weights.parameters(
            value,
            dtype or self.job.weight_type,
            axis,
            block_size,
            symmetric=symmetric,
            reduced=reduced,
            kind=_SCALES,
        )

    def stored(self, value: ir.Value, parameters: Parameters, **how: Any) -> QuantizedTensor:
        """A weight as it is stored."""
        return self.weights.quantized(value, parameters.dtype, parameters=parameters, **how)

    def bias(
        self,
        value: ir.Value,
        form: QuantizedTensor,
        parameters: Parameters,
        *,
        factor: float = 1.0,
        multiplier: float = 1.0,
    ) -> ir.Value:
        """`multiplier` * a bias as int32, of the scale of an activation * that of a weight * `factor`."""
        assert form.parameters is not None
        found = self.weights.bias(value, float(form.parameters.scale), parameters, factor, multiplier=multiplier)
        for constant in (found.scale, found.zero_point):  # which the operators work out themselves
            self.job.release(constant)
        return found.values

    def output_parameters(self, value: ir.Value) -> Parameters | None:
        """How a result is stored; None where its range is not known, or infinite."""
        if self.ranges.is_infinite(value.name or ""):
            return None
        return self.ranges.parameters(value.name or "", kind=_SCALES)

    def _quantize_linear(self, value: ir.Value, node: ir.Node) -> QuantizedTensor:
        parameters = self.output_parameters(value)
        assert parameters is not None
        scale, zero_point = self.weights.scale_and_zero_point(value.name or "", parameters)
        values = self.like(value, f"{value.name}_quantized", parameters.dtype)
        wide, casts = self._widened(value)
        made = self.job.node("QuantizeLinear", [wide, scale, zero_point], [values], f"{value.name}_QuantizeLinear")
        self.insert_before(node, [*casts, made], self._home(value))
        return QuantizedTensor(values, scale, zero_point, parameters.dtype, parameters)

    def _dynamic(self, value: ir.Value, node: ir.Node) -> QuantizedTensor:
        kind = ir.DataType.UINT8
        values = self.like(value, f"{value.name}_quantized", kind)
        scale = self.job.value(f"{value.name}_scale", FLOAT, ())
        zero_point = self.job.value(f"{value.name}_zero_point", kind, ())
        wide, casts = self._widened(value)
        made = self.job.node(
            "DynamicQuantizeLinear", [wide], [values, scale, zero_point], f"{value.name}_QuantizeLinear"
        )
        self.insert_before(node, [*casts, made], self._home(value))
        return QuantizedTensor(values, scale, zero_point, kind)

    def _widened(self, value: ir.Value) -> tuple[ir.Value, list[ir.Node]]:
        """A value as float32, and the node that makes it where it is not."""
        if self.job.dtype(value) == FLOAT:
            return value, []
        wide = self.like(value, f"{value.name}_float32", FLOAT)
        return wide, [self.job.node("Cast", [value], [wide], f"{value.name}_widened", {"to": int(FLOAT)})]

    # Nodes and values

    def like(self, value: ir.Value, name: str, dtype: ir.DataType) -> ir.Value:
        """A new value of the shape of another one."""
        return self.job.value(name, dtype, self.job.shape(value))

    def successor(self, value: ir.Value) -> ir.Value:
        """A new value that takes the place, the name and the type of another one, once `replace` is told of it."""
        found = ir.Value(name=value.name, type=value.type, shape=value.shape)
        facts = self.job.inference.facts
        if value in facts:
            facts[found] = facts[value]
        return found

    def same(self, node: ir.Node, inputs: Sequence[ir.Value | None], outputs: Sequence[ir.Value]) -> ir.Node:
        """A node of the same operator, attributes and name, that takes the place of another one."""
        made = self.job.node(node.op_type, inputs, outputs, quantized_name(node), attributes(node))
        made.name = node.name
        made.version = node.version
        return made

    def insert_before(self, node: ir.Node, nodes: Sequence[ir.Node], home: ir.Graph | None = None) -> None:
        """Put nodes before another one; with `home` into that graph, before what `node` lies in there."""
        while home is not None and node.graph is not home:
            assert node.graph is not None
            node = self._around[node.graph]
        self._prepend(node, nodes)

    def _prepend(self, node: ir.Node, nodes: Sequence[ir.Node]) -> None:
        """Put nodes before another one; what floats they read, they find."""
        for made in nodes:
            self._read_floats(made, node)
        node.prepend(nodes)

    def _read_floats(self, reader: ir.Node, place: ir.Node) -> None:
        """Let a node that is, or will be, at `place` read floats for values that only exist quantised."""
        for index, value in enumerate(reader.inputs):
            if value in self._homes:
                reader.replace_input_with(index, self._float_of(value, place))

    def quantized(
        self, node: ir.Node, nodes: Sequence[ir.Node], outputs: Mapping[ir.Value, QuantizedTensor], how: str
    ) -> None:
        """Put `nodes` in the place of a node; they make the quantised forms of its outputs."""
        self._prepend(node, nodes)
        assert isinstance(node.graph, ir.Graph)
        for value, form in outputs.items():
            self.known[value] = form
            self._homes[value] = node.graph
        self._remove(node, how)

    def replace(self, node: ir.Node, nodes: Sequence[ir.Node], outputs: Mapping[ir.Value, ir.Value], how: str) -> None:
        """Put `nodes` in the place of a node; they make floats that stand for its outputs."""
        self._prepend(node, nodes)
        for old, new in outputs.items():
            ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        self._remove(node, how)

    def drop(self, node: ir.Node, how: str) -> None:
        """Remove a node whose output is what it reads, quantised already."""
        (output,) = node.outputs
        source = node.inputs[0]
        assert source is not None
        assert isinstance(node.graph, ir.Graph)
        self.known[output] = self.known[source]
        self._homes[output] = node.graph
        self._remove(node, how)

    def _remove(self, node: ir.Node, how: str) -> None:
        inputs = list(node.inputs)
        for index in range(len(inputs)):
            node.replace_input_with(index, None)
        assert node.graph is not None
        node.graph.remove(node)
        for value in inputs:
            if value is not None:
                self.release(value)
        self.job.report.quantized(node, how)

    def release(self, value: ir.Value) -> None:
        """Remove a constant that nobody reads any more, and a Transpose of one."""
        node = value.producer()
        if node is not None and node.op_type == "Transpose" and not value.uses() and not value.is_graph_output():
            if node.graph is not None and self.transpose_of(value) is not None:
                self.job.report.quantized(node, "a constant")
                self.job.remove(node)
            return
        self.job.release(value)

    def _home(self, value: ir.Value) -> ir.Graph:
        producer = value.producer()
        found = producer.graph if producer is not None else value.graph
        assert isinstance(found, ir.Graph)
        return found

    def _float_of(self, value: ir.Value, reader: ir.Node | ir.Graph) -> ir.Value:
        """The float form of a value that only exists quantised, made before its first reader; a graph reads its
        outputs at its end."""
        found = self._floats.get(value)
        if found is not None:
            return found
        form, home, kind = self.known[value], self._homes[value], self.job.dtype(value) or FLOAT
        found = self._floats[value] = self.successor(value)
        made = found if kind == FLOAT else self.like(value, f"{value.name}_float32", FLOAT)
        axis = form.parameters.axis if form.parameters is not None else None
        attributes = {} if axis is None or not np.ndim(form.parameters.scale) else {"axis": axis}  # type: ignore[union-attr]
        nodes = [
            self.job.node(
                "DequantizeLinear",
                [form.values, form.scale, form.zero_point],
                [made],
                f"{value.name}_DequantizeLinear",
                attributes,
            )
        ]
        if made is not found:
            nodes.append(self.job.node("Cast", [made], [found], f"{value.name}_narrowed", {"to": int(kind)}))
        if isinstance(reader, ir.Node):
            self.insert_before(reader, nodes, home)
        elif reader is home:
            home.extend(nodes)
        else:
            self.insert_before(self._around[reader], nodes, home)
        return found


def attributes(node: ir.Node, *, without: Sequence[str] = ()) -> dict[str, Any]:
    """The attributes of a node, but for some."""
    return {name: one for name, one in node.attributes.items() if name not in without}


def quantized_name(node: ir.Node) -> str:
    """The name of what a node becomes."""
    return f"{node.name or node.outputs[0].name}_quant"

"""What is stored quantised in the QDQ format, before anything is changed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import onnx_ir as ir

from sardonyx.quantization.job import Job
from sardonyx.quantization.quant_utils import ir_type
from sardonyx.quantization.quantized_numbers import FLOAT8, SIGNED, Parameters

logger = logging.getLogger(__name__)

Use: TypeAlias = tuple[ir.Node, int]

_KEY: TypeAlias = tuple[ir.Value, ir.DataType, int | None, int, bool, bool]


@dataclass(eq=False)
class Tensor:
    """A value of each run that is stored quantised.

    `made` says that the node that makes it asks for it, and not only nodes that read it: then it is stored so for an
    output of the model, too. `like` is an input whose parameters it takes.
    """

    value: ir.Value
    made: bool = False
    like: Use | None = None


@dataclass(eq=False)
class Constant:
    """A weight that is stored quantised for the inputs in `uses`; others may store it otherwise, or read it as it is.

    `axis` is that of its channels or blocks, None for one scale.
    """

    value: ir.Value
    dtype: ir.DataType
    axis: int | None
    block_size: int
    is_symmetric: bool
    is_weight: bool
    uses: list[Use] = field(default_factory=list)
    parameters: Parameters | None = None


@dataclass(frozen=True)
class Bias:
    """A bias that is stored as int32 with the product of the scales of an input and a weight: so kernels add it to sums
    of integers.

    `factor` multiplies its numbers. The channels of the weight lie along the axis `channels`; each of them is that of
    `groups` numbers of the bias.
    """

    node: ir.Node
    index: int
    weight: int
    channels: int | None
    factor: float = 1.0
    groups: int = 1

    @property
    def value(self) -> ir.Value:
        found = self.node.inputs[self.index]
        assert found is not None
        return found


class Plan:
    """The tensors, constants and biases that rules asked for, in the order in which they did."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.options = job.options
        self.tensors: dict[ir.Value, Tensor] = {}
        self.constants: dict[_KEY, Constant] = {}
        self.biases: list[Bias] = []
        self.clamps: list[ir.Node] = []
        self.readers: set[ir.Node] = set()  # the nodes that read something that is stored
        self._uses: dict[Use, Constant] = {}
        self._known: set[ir.Value] = set()

    # What rules ask for

    def is_quantized(self, value: ir.Value | None) -> bool:
        """Whether a value is stored quantised for some node, as far as is known by now."""
        return value in self.tensors or value in self._known

    def read(self, node: ir.Node, index: int) -> None:
        """A node reads an input stored as an activation; one that is no float tensor stays as it is."""
        value = _input(node, index)
        if value is None or not self.job.is_float(value):
            return
        self.readers.add(node)
        if self.job.is_constant(value):
            self._constant(node, index, self.job.activation_type, None, is_weight=False)
        elif _is_dequantized(value):
            self._known.add(value)
        else:
            self.tensors.setdefault(value, Tensor(value))

    def make(self, node: ir.Node, index: int = 0) -> None:
        """What a node makes is stored as an activation, unless its operator's outputs are to stay."""
        if self._may_make(node, index):
            self.tensors.setdefault(node.outputs[index], Tensor(node.outputs[index])).made = True

    def make_like(self, node: ir.Node, index: int = 0, source: int = 0) -> None:
        """What a node makes is stored as the input `source` is, with its parameters: the numbers are the same."""
        if self._may_make(node, index):
            tensor = self.tensors.setdefault(node.outputs[index], Tensor(node.outputs[index]))
            tensor.made, tensor.like = True, (node, source)
            self.readers.add(node)

    def weight(self, node: ir.Node, index: int, channels: int | None, blocks: int | None = None) -> None:
        """A node reads an input stored as a weight, with a scale for each place along the axis `channels` where the
        caller wants that, or in blocks along the axis `blocks`. What is no constant is an activation."""
        value = _input(node, index)
        if value is None or not self.job.is_float(value):
            return
        if not self.job.is_constant(value):
            self.read(node, index)
            return
        size = self.options.block_size
        if size and blocks is not None and self._rank(value) > 1:
            axis: int | None = 0 if self.options.ort_compatible else blocks
            self._constant(node, index, self.job.weight_type, axis, is_weight=True, block_size=size)
        else:
            self._constant(node, index, self.job.weight_type, self._channel_axis(node, value, channels), is_weight=True)

    def bias(
        self, node: ir.Node, index: int, *, channels: int | None = None, factor: float = 1.0, groups: int = 1
    ) -> None:
        """A node adds an input to the product of its first two inputs. It stays float where it is no constant,
        or where that was asked for."""
        value = _input(node, index)
        if value is None or not self.job.is_float(value):
            return
        if not self.job.is_constant(value):
            self.job.report.note(f"{node.op_type} {node.name}: its bias {value.name} is no constant and stays float")
            return
        if self.job.overrides.get(value.name or ""):
            self._constant(node, index, self.job.weight_type, self._channel_axis(node, value, 0), is_weight=True)
        elif self.options.quantize_bias and self.job.weight_type not in FLOAT8:
            self.biases.append(Bias(node, index, 1, channels, factor, groups))
            self._known.add(value)

    # What was asked for

    def constant_of(self, use: Use) -> Constant | None:
        """How the constant is stored that an input reads; None where it is no stored constant."""
        return self._uses.get(use)

    def reads_stored(self, node: ir.Node, value: ir.Value) -> bool:
        """Whether a node reads a tensor as it is stored: all do, quantised or not, but for those that the caller
        excluded and those in bodies that stay as they are, and but for whoever has no pair of its own where others do.
        """
        selection = self.job.selection
        if selection.is_excluded(node) or (node.graph is not self.job.graph and not self.options.enable_subgraph):
            return False
        return node in self.readers or not self.is_read_apart(value)

    def is_read_apart(self, value: ir.Value) -> bool:
        """Whether each node that is quantised gets a pair of its own for a tensor that it reads."""
        if not self.options.dedicated_qdq_pair:
            return False
        return len({use.node for use in value.uses() if use.node in self.readers}) > 1

    def forget(self, constant: Constant) -> None:
        """Let the readers of a constant read it as it is."""
        self.constants = {key: one for key, one in self.constants.items() if one is not constant}
        for use in constant.uses:
            del self._uses[use]

    def told(self, node: ir.Node) -> str:
        """How a node is quantised, in words: what of it is stored in which types; empty where nothing is."""
        parts = []
        for index, value in enumerate(node.inputs):
            constant = self.constant_of((node, index))
            if constant is not None and constant.parameters is not None:
                parameters = constant.parameters
                text = f"{constant.value.name} {parameters.dtype.name.lower()}"
                if parameters.axis is not None:
                    text += f" in blocks of {parameters.block_size}" if parameters.block_size else " per channel"
                parts.append(text)
            elif value is not None and value in self.tensors and self.reads_stored(node, value):
                parts.append(f"reads {value.name}")
        parts += [f"makes {value.name}" for value in node.outputs if value in self.tensors]
        return ", ".join(parts)

    def rename(self, old: ir.Value, new: ir.Value) -> None:
        """Let a value that a node makes take the place of another one, with parameters of its own."""
        del self.tensors[old]
        self.tensors[new] = Tensor(new, made=True)

    def _constant(
        self, node: ir.Node, index: int, dtype: ir.DataType, axis: int | None, *, is_weight: bool, block_size: int = 0
    ) -> None:
        value = node.inputs[index]
        assert value is not None
        own = (self.job.overrides.get(value.name or "") or [{}])[0]
        if "quant_type" in own:
            dtype = ir_type(own["quant_type"])
        if is_weight:
            symmetric = self.options.is_weight_symmetric(dtype in SIGNED)
        else:
            symmetric = self.options.activation_symmetric
        symmetric = own.get("symmetric", symmetric or (axis is not None and not block_size))
        key = value, dtype, axis, block_size, symmetric, is_weight
        constant = self.constants.setdefault(key, Constant(*key))
        constant.uses.append((node, index))
        self._uses[node, index] = constant
        self._known.add(value)

    def _channel_axis(self, node: ir.Node, value: ir.Value, channels: int | None) -> int | None:
        """The axis along which a weight has a scale for each place, counted from the front; None for one scale."""
        name = value.name or ""
        if self.job.overrides.has_per_tensor_overrides(name):
            return None
        axis = channels
        if self.job.overrides.has_per_channel_overrides(name):
            axis = self.job.overrides[name][0]["axis"]
        elif not self.job.per_channel or channels is None:
            return None
        rank = self._rank(value)
        assert axis is not None
        if not -rank <= axis < rank:
            logger.info("%s %s: %s of rank %d has no axis %d: one scale", node.op_type, node.name, name, rank, axis)
            return None
        return axis % rank

    def _may_make(self, node: ir.Node, index: int) -> bool:
        if node.op_type in self.options.op_types_to_exclude_output_quantization:
            return False
        return index < len(node.outputs) and self.job.is_float(node.outputs[index])

    def _rank(self, value: ir.Value) -> int:
        tensor = self.job.tensor(value)
        assert tensor is not None
        return len(tensor.shape)

    def asked_axes(self) -> Mapping[str, int]:
        """The axes of channels that the caller wants, by operator."""
        return self.options.qdq_op_type_per_channel_support_to_axis


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _is_dequantized(value: ir.Value) -> bool:
    """Whether a value comes of a weight that somebody stored quantised before."""
    producer = value.producer()
    return producer is not None and producer.op_type == "DequantizeLinear"


def is_own_output(value: ir.Value) -> bool:
    """Whether a value is an output of the graph that it is made in."""
    return any(output is value for output in graph_of(value).outputs)


def graph_of(value: ir.Value) -> ir.Graph:
    """The graph that a value is made in, or is an input or a constant of."""
    producer = value.producer()
    graph = value.graph if producer is None else producer.graph
    assert isinstance(graph, ir.Graph)
    return graph

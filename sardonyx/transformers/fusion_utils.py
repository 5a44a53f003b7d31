"""Small changes around nodes, for fusions that callers write themselves."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import NodeProto, TensorProto, helper, numpy_helper

from sardonyx.transformers.onnx_model import OnnxModel

Array = np.ndarray[Any, Any]

logger = logging.getLogger(__name__)

_TARGETS = {"int32": TensorProto.INT32, "float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


class FusionUtils:
    """Casts, checks and clean-ups over one `OnnxModel`."""

    def __init__(self, model: OnnxModel) -> None:
        self.model = model

    def cast_graph_input_to_int32(self, input_name: str) -> tuple[bool, str]:
        """Cast an input of the model of another type to int32: whether that was needed, and the name to read."""
        value = self.model.find_graph_input(input_name)
        if value is None or value.type.tensor_type.elem_type == TensorProto.INT32:
            return False, input_name
        return True, self.cast_input_to_int32(input_name)[0]

    def cast_input_to_int32(self, input_name: str) -> tuple[str, NodeProto]:
        return self.cast_input(input_name, "int32")

    def cast_input(self, input_name: str, target_type: str = "int32") -> tuple[str, NodeProto]:
        """Cast a value to int32, float32 or float16: the name of the result, and the node. ValueError for others."""
        if target_type not in _TARGETS:
            raise ValueError(f"Invalid target_type: {target_type}; choose one of {', '.join(_TARGETS)}")
        name = f"{input_name}_{target_type}"
        return name, self.add_cast_node(input_name, _TARGETS[target_type], name)

    def add_cast_node(
        self,
        input_name: str,
        to_type: int,
        output_name: str | None = None,
        output_name_to_node: MutableMapping[str, NodeProto] | None = None,
        graph_name: str | None = None,
    ) -> NodeProto:
        """Add a Cast of a value; where integers were cast to it already, of what these were cast from. The node."""
        producers = self.model.output_name_to_node() if output_name_to_node is None else output_name_to_node
        parent = producers.get(input_name)
        integers = TensorProto.INT32, TensorProto.INT64
        source = input_name
        if parent is not None and parent.op_type == "Cast" and to_type == TensorProto.INT32:
            source = parent.input[0] if self.model.get_node_attribute(parent, "to") in integers else input_name
        result = output_name or f"{input_name}_cast_to_{int(to_type)}"
        node = helper.make_node("Cast", [source], [result], name=self.model.create_node_name("Cast"), to=int(to_type))
        self.model.add_node(node, graph_name)
        return node

    def remove_cast_int32(self, input_name: str) -> None:
        """Let readers of casts of a value to int32 read the value itself."""
        for node in self.model.input_name_to_nodes().get(input_name, []):
            if node.op_type == "Cast" and self.model.get_node_attribute(node, "to") == TensorProto.INT32:
                self.model.remove_node(node)
                self.model.replace_input_of_all_nodes(node.output[0], input_name)

    @staticmethod
    def update_node_input(
        node: NodeProto, i: int, new_input_name: str, input_name_to_nodes: MutableMapping[str, list[NodeProto]]
    ) -> int:
        """Let a node read another value, also in the map of readers; how many readers the former one has left."""
        readers = input_name_to_nodes.get(node.input[i], [])
        if node in readers:
            readers.remove(node)
        node.input[i] = new_input_name
        input_name_to_nodes.setdefault(new_input_name, []).append(node)
        return len(readers)

    @staticmethod
    def skip_parent(
        model: OnnxModel,
        node: NodeProto,
        parent_node: NodeProto,
        input_name_to_nodes: MutableMapping[str, list[NodeProto]],
        node_input_index: int = 0,
        parent_input_index: int = 0,
    ) -> bool:
        """Let a node read what its parent reads; whether nobody needs the parent any more."""
        old = node.input[node_input_index]
        new = parent_node.input[parent_input_index]
        left = FusionUtils.update_node_input(node, node_input_index, new, input_name_to_nodes)
        return left == 0 and model.find_graph_output(old) is None

    def get_squeeze_or_unsqueeze_axes(self, node: NodeProto) -> Array | list[int] | None:
        """The axes of a Squeeze or Unsqueeze, given as input or as attribute; None where they are not known."""
        if node.op_type not in ("Squeeze", "Unsqueeze"):
            raise ValueError(f"{node.name} is a {node.op_type}, not a Squeeze or Unsqueeze")
        if len(node.input) > 1:
            return self.model.get_constant_value(node.input[1])
        axes: list[int] | None = self.model.get_node_attribute(node, "axes")
        return axes

    @staticmethod
    def check_node_attribute(
        node: NodeProto, attribute_name: str, expected_value: Any, default_value: Any = None
    ) -> bool:
        """Whether an attribute has a value; `default_value` stands for an absent one."""
        value = OnnxModel.get_node_attribute(node, attribute_name)
        return _equal(default_value if value is None else value, expected_value)

    def check_node_input_value(self, node: NodeProto, input_index: int, expected_value: Any) -> bool:
        """Whether an input is a constant of this value: a number, or a list of numbers."""
        return _equal(self.model.get_constant_value(node.input[input_index]), expected_value)

    @staticmethod
    def transpose_2d_int8_tensor(tensor: TensorProto) -> TensorProto:
        """Transpose a matrix of int8 in place. TypeError or ValueError for anything else."""
        if not isinstance(tensor, TensorProto):
            raise TypeError(f"Expected input type is an ONNX TensorProto but got {type(tensor)}")
        if len(tensor.dims) != 2 or tensor.data_type != TensorProto.INT8:
            raise ValueError(f"{tensor.name}: only INT8 2-D tensors can be transposed")
        array = numpy_helper.to_array(tensor).T
        tensor.ClearField("int32_data")
        tensor.dims[:] = array.shape
        tensor.raw_data = array.tobytes()
        return tensor

    @staticmethod
    def check_qdq_node_for_fusion(
        node: NodeProto, model: OnnxModel, allow_per_tensor_quantization_only: bool = True
    ) -> bool:
        """Whether a QuantizeLinear or DequantizeLinear has a constant scale, of one number, and zero as zero point."""
        scale = model.get_constant_value(node.input[1])
        if scale is None or (allow_per_tensor_quantization_only and scale.size != 1):
            return False
        if len(node.input) == 2 or not node.input[2]:
            return True
        zero = model.get_constant_value(node.input[2])
        return zero is not None and zero.ndim == scale.ndim and bool(np.all(zero == 0))

    def remove_identity_nodes(self) -> None:
        """Remove Identity nodes, but for those that make outputs."""
        kept = set(self.model.get_graphs_output_names())
        for node in self.model.get_nodes_by_op_type("Identity"):
            if node.output[0] not in kept:
                self.model.replace_input_of_all_nodes(node.output[0], node.input[0])
                self.model.remove_node(node)

    def remove_cascaded_cast_nodes(self) -> None:
        self.model.remove_cascaded_cast_nodes()

    def remove_useless_cast_nodes(self) -> None:
        self.model.remove_useless_cast_nodes()

    def remove_useless_reshape_nodes(self) -> None:
        """Remove Reshape nodes whose input and output have the same known shape, but for those that make outputs."""
        known = self.model.infer_runtime_shape(update=True)
        if known is None:
            return
        kept = set(self.model.get_graphs_output_names())
        for node in self.model.get_nodes_by_op_type("Reshape"):
            before, after = known.get_edge_shape(node.input[0]), known.get_edge_shape(node.output[0])
            if before and before == after and node.output[0] not in kept:
                self.model.replace_input_of_all_nodes(node.output[0], node.input[0])
                self.model.remove_node(node)


class NumpyHelper:
    """Contents of tensors."""

    @staticmethod
    def to_array(tensor: TensorProto, fill_zeros: bool = False) -> Array:
        """The contents of a tensor, bfloat16 included; zeros of its type and shape with `fill_zeros`."""
        if fill_zeros:
            return np.zeros(tuple(tensor.dims), helper.tensor_dtype_to_np_dtype(tensor.data_type))
        return np.asarray(ir.from_proto(tensor).numpy())


def _equal(value: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return isinstance(value, np.ndarray | list) and bool(np.array_equal(expected, value))
    return value is not None and bool(np.all(value == expected)) if expected is not None else value is None

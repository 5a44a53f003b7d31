"""How everything in a plan is stored: parameters of tensors, of constants, and of the biases that depend on both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.graph.types import numpy_dtype
from sardonyx.quantization.qdq.plan import Bias, Plan, Use, graph_of, is_own_output
from sardonyx.quantization.quantized_numbers import Parameters
from sardonyx.quantization.ranges import Ranges
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.weights import Weights


@dataclass(frozen=True)
class StoredBias:
    """A bias, and the scales whose product is its own."""

    bias: Bias
    input_scale: float
    weight: Parameters


class Stored:
    """The parameters of what a plan asks for; those of the plan's constants are set in it.

    What cannot be stored leaves the plan, with a note of why.
    """

    def __init__(self, plan: Plan, ranges: Ranges, weights: Weights) -> None:
        self.plan = plan
        self.job = plan.job
        self.ranges = ranges
        self.weights = weights
        self._found: dict[ir.Value, Parameters] = {}
        self._waiting: set[ir.Value] = set()
        self._constants()
        self._tensors()
        self.biases = self._biases()

    def source(self, value: ir.Value) -> Use | None:
        """The input whose parameters a tensor has; None where they are its own."""
        tensor = self.plan.tensors[value]
        return tensor.like if tensor.like is not None and self._of_input(tensor.like) is not None else None

    def of_tensor(self, value: ir.Value, converted: bool = False) -> Parameters | None:
        """The parameters of a tensor as it is made, or as it is converted; None where nothing is known."""
        if converted:
            return self.ranges.parameters(value.name or "", kind=self._kind(value), converted=True)
        if value in self._found:
            return self._found[value]
        if value in self._waiting:  # it has its own parameters after all
            return None
        self._waiting.add(value)
        try:
            like = self.plan.tensors[value].like
            found = None if like is None else self._of_input(like)
            found = found or self.ranges.parameters(value.name or "", kind=self._kind(value))
        finally:
            self._waiting.remove(value)
        if found is not None:
            self._found[value] = found
        return found

    def is_converted(self, value: ir.Value) -> bool:
        """Whether some readers get another type than the one that a tensor is made in."""
        return any("convert" in one for one in self.job.overrides.get(value.name or "") or ())

    def reads_converted(self, value: ir.Value, node: ir.Node) -> bool:
        """Whether a reader gets the other type."""
        if not self.is_converted(value):
            return False
        wanted = self.job.overrides[value.name or ""][0]["convert"].get("recv_nodes")
        return wanted is None or node.name in wanted

    def _kind(self, value: ir.Value) -> np.dtype[Any]:
        dtype = self.job.dtype(value)
        assert dtype is not None
        return numpy_dtype(dtype)

    def _of_input(self, use: Use) -> Parameters | None:
        """How a node reads an input; None where it reads floats."""
        node, index = use
        value = node.inputs[index]
        assert value is not None
        constant = self.plan.constant_of(use)
        if constant is not None:
            return constant.parameters
        if value in self.plan.tensors:
            return self.of_tensor(value, self.reads_converted(value, node))
        producer = value.producer()
        return None if producer is None or producer.op_type != "DequantizeLinear" else self._stored_before(producer)

    def _stored_before(self, node: ir.Node) -> Parameters | None:
        """The parameters of a weight that somebody stored quantised before."""
        scale = self.job.constant(node.inputs[1])
        if scale is None or scale.ndim > 1 or self.job.attribute(node, "block_size", 0):
            return None
        zero_point = self.job.constant(node.inputs[2]) if len(node.inputs) > 2 else None
        dtype = self.job.dtype(node.inputs[0])
        assert dtype is not None
        axis = self.job.attribute(node, "axis", 1) if scale.ndim and scale.size > 1 else None
        return Parameters(dtype, scale, np.zeros_like(scale) if zero_point is None else zero_point, axis)

    def _constants(self) -> None:
        for constant in list(self.plan.constants.values()):
            try:
                constant.parameters = self.weights.parameters(
                    constant.value,
                    constant.dtype,
                    constant.axis,
                    constant.block_size,
                    symmetric=constant.is_symmetric,
                )
            except InvalidQuantization as error:
                if constant.is_weight:
                    raise
                self.job.report.note(error.message)
                self.plan.forget(constant)

    def _tensors(self) -> None:
        """Find the parameters of all tensors that somebody reads as they are stored; `InvalidQuantization` for one that
        has none."""
        unknown = []
        for value, tensor in list(self.plan.tensors.items()):
            is_read = any(self.plan.reads_stored(use.node, value) for use in value.uses())
            if (not is_read and not (tensor.made and is_own_output(value))) or value.name in self.ranges.left:
                del self.plan.tensors[value]
                continue
            if self.of_tensor(value) is not None:
                continue
            del self.plan.tensors[value]
            if graph_of(value) is self.job.graph:
                raise InvalidQuantization(
                    f"No range is known of {value.name}, which a quantised node reads or makes: calibrate all "
                    "operators that are quantised, or give its rmin and rmax in TensorQuantOverrides"
                )
            unknown.append(value.name or "")
        if unknown:
            self.job.report.note(
                f"{', '.join(unknown[:3])}{f' and {len(unknown) - 3} more' if len(unknown) > 3 else ''} of bodies of "
                "control flow nodes have no range, as calibration looks at the main graph alone, and stay float: give "
                "their rmin and rmax in TensorQuantOverrides, or quantise dynamically"
            )

    def _biases(self) -> list[StoredBias]:
        """The biases that can be stored, for which scales of weights are raised where int32 asks for it."""
        raises = not self.job.options.qdq_disable_weight_adjust_for_int32_bias
        kept = []
        for bias in self.plan.biases:
            scale, reason = self._input_scale(bias), self._why_float(bias)
            if scale is None or reason is not None:
                reason = reason or "its input is not stored quantised"
                self._stays_float(bias, reason)
                continue
            constant = self.plan.constant_of((bias.node, bias.weight))
            if raises and constant is not None and constant.parameters is not None and bias.factor:
                constant.parameters = self.weights.raised(
                    constant.value, constant.parameters, bias.value, scale, 1 / bias.factor
                )
            kept.append((bias, scale))
        found = []
        for bias, scale in kept:
            weight = self._of_input((bias.node, bias.weight))
            assert weight is not None
            if bias.groups > 1 and weight.scale.ndim:
                weight = replace(weight, scale=np.tile(weight.scale, bias.groups))
            if self._fits(bias, scale, weight):
                found.append(StoredBias(bias, scale, weight))
            else:
                self._stays_float(bias, "int32 does not hold it with the scale of its input times that of its weight")
        return found

    def _input_scale(self, bias: Bias) -> float | None:
        if bias.node.inputs[0] is None:
            return None
        found = self._of_input((bias.node, 0))
        return None if found is None or found.scale.size != 1 else float(found.scale)

    def _why_float(self, bias: Bias) -> str | None:
        """Why the scales of a weight are none for a bias; None where they are."""
        weight = self._of_input((bias.node, bias.weight))
        if weight is None:
            return "its weight is not stored quantised"
        if weight.block_size:
            return "its weight is stored in blocks"
        array = self.job.constant(bias.value)
        assert array is not None
        if weight.scale.ndim and weight.scale.size > 1:
            if bias.channels is None or weight.axis is None:
                return "its weight has several scales"
            rank = len(self.job.shape(self._weight(bias)) or ())
            if weight.axis % max(rank, 1) != bias.channels:
                return f"the scales of its weight lie along axis {weight.axis}"
            if array.ndim == 0 or array.shape[-1] != weight.scale.size * bias.groups or array.size != array.shape[-1]:
                return f"it is of shape {array.shape}, beside {weight.scale.size * bias.groups} channels"
        return None

    def _weight(self, bias: Bias) -> ir.Value:
        value = bias.node.inputs[bias.weight]
        assert value is not None
        return value

    def _fits(self, bias: Bias, input_scale: float, weight: Parameters) -> bool:
        """Whether int32 and the type of the scale hold a bias."""
        array = self.job.constant(bias.value)
        assert array is not None
        if self.job.options.ort_compatible:
            return True
        scale = (np.float64(np.float32(input_scale)) * weight.scale.astype(np.float64)).astype(array.dtype)
        if (scale < np.finfo(array.dtype).tiny).any() or not np.isfinite(array).all():
            return False
        return bool((np.abs(array.astype(np.float64) * bias.factor / scale.astype(np.float64)) < 2.0**31 - 1).all())

    def _stays_float(self, bias: Bias, reason: str) -> None:
        node = bias.node
        self.job.report.note(f"{node.op_type} {node.name}: its bias {bias.value.name} stays float, {reason}")

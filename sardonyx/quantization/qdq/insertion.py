"""Writes the pairs of QuantizeLinear and DequantizeLinear of a plan into the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.quantization.job import MICROSOFT
from sardonyx.quantization.opset import AXES, FOUR, WIDE, needed_opset
from sardonyx.quantization.qdq.plan import Constant, Plan, Use, graph_of, is_own_output
from sardonyx.quantization.qdq.stored import Stored, StoredBias
from sardonyx.quantization.quant_utils import (
    add_dequant_output_suffix,
    add_dequant_suffix,
    add_quant_input_suffix,
    add_quant_output_suffix,
    add_quant_suffix,
)
from sardonyx.quantization.quantized_numbers import Parameters
from sardonyx.quantization.weights import Weights

_CONVERTED = "_convert"  # behind the names of the scale and the zero point of another type


@dataclass(frozen=True)
class Numbers:
    """Parameters, and the constants that hold them."""

    parameters: Parameters
    scale: ir.Value
    zero_point: ir.Value


class Insertion:
    """Takes the plan into effect; `domain` is that of the pairs."""

    def __init__(self, plan: Plan, stored: Stored, weights: Weights) -> None:
        self.plan = plan
        self.job = plan.job
        self.stored = stored
        self.weights = weights
        kinds = {self.job.activation_type, self.job.weight_type, *(one.dtype for one in plan.constants.values())}
        kinds |= {kind for value in plan.tensors for kind in self._kinds(value)}
        opset = self.job.opset
        older = needed_opset(opset, self.job.options, kinds) > opset or (opset < WIDE and bool(kinds & FOUR))
        older |= opset < AXES and any(constant.axis is not None for constant in plan.constants.values())
        self.domain = MICROSOFT if older or self.job.options.use_qdq_contrib_ops else ""
        self._numbers: dict[tuple[ir.Value, bool], Numbers] = {}
        self._of_constants: dict[Constant, Numbers] = {}
        self._sources: dict[ir.Value, Constant | tuple[ir.Value, bool] | None] = {}
        self._apart: set[ir.Value] = set()  # the tensors of which each reader has a pair of its own
        self._bias_results: dict[ir.Value, ir.Value] = {}

    def run(self) -> None:
        """Write everything: constants first, whose parameters tensors may take, then tensors, then biases."""
        tensors = list(self.plan.tensors)
        uses = {value: self._readers(value) for value in tensors}
        self._apart = {value for value in tensors if self.plan.is_read_apart(value)}
        for value in tensors:
            self._remember_sources(value)
        for constant in self.plan.constants.values():
            self._constant(constant)
        for value in tensors:
            self._numbers_of(value)
        for value in tensors:
            self._tensor(value, uses[value])
        for bias in self.stored.biases:
            self._bias(bias)

    def _kinds(self, value: ir.Value) -> set[ir.DataType]:
        found = [self.stored.of_tensor(value)]
        if self.stored.is_converted(value):
            found.append(self.stored.of_tensor(value, converted=True))
        dtype = self.job.dtype(value)
        return {one.dtype for one in found if one is not None} | ({dtype} if dtype is not None else set())

    # Constants

    def _constant(self, constant: Constant) -> None:
        value, parameters = constant.value, constant.parameters
        assert parameters is not None
        name = value.name or ""
        stays = self.job.options.add_qdq_pair_to_weight
        if stays:
            self.job.settle(value)
            scale, zero_point = self.weights.scale_and_zero_point(name, parameters)
        else:
            tensor = self.weights.quantized(value, parameters.dtype, parameters=parameters)
            scale, zero_point = tensor.scale, tensor.zero_point
        numbers = self._of_constants[constant] = Numbers(parameters, scale, zero_point)
        nodes = []
        if stays:
            quantize = self._quantize(value, numbers, name)
            nodes.append(quantize)
            stored = quantize.outputs[0]
        else:
            stored = tensor.values
        dequantize = self._dequantize(stored, numbers, value, name)
        self.job.insert_after(value, [*nodes, dequantize])
        for node, index in constant.uses:
            node.replace_input_with(index, dequantize.outputs[0])
        self.job.release(value)

    # Tensors

    def _readers(self, value: ir.Value) -> list[Use]:
        return [(use.node, use.idx) for use in value.uses() if self.plan.reads_stored(use.node, value)]

    def _remember_sources(self, value: ir.Value) -> None:
        """Find out whose parameters a tensor has, while inputs still are what they were."""
        source = self.stored.source(value)
        self._sources[value] = None
        if source is not None:
            node, index = source
            found = node.inputs[index]
            assert found is not None
            constant = self.plan.constant_of(source)
            if constant is not None:
                self._sources[value] = constant
            elif found in self.plan.tensors:
                self._sources[value] = found, self.stored.reads_converted(found, node)

    def _numbers_of(self, value: ir.Value, converted: bool = False) -> Numbers:
        """The constants of a tensor's parameters: those of its source where it has one."""
        key = value, converted
        found = self._numbers.get(key)
        if found is None:
            source = None if converted else self._sources[value]
            if isinstance(source, Constant):
                found = self._of_constants[source]
            elif source is not None:
                found = self._numbers_of(*source)
            else:
                parameters = self.stored.of_tensor(value, converted)
                assert parameters is not None
                name = value.name or ""
                scale = self.job.initializer(f"{name}_scale{_CONVERTED * converted}", parameters.scale)
                zero_point = self.job.initializer(
                    f"{name}_zero_point{_CONVERTED * converted}", parameters.zero_point, parameters.dtype
                )
                found = Numbers(parameters, scale, zero_point)
            self._numbers[key] = found
        return found

    def _tensor(self, value: ir.Value, readers: Sequence[Use]) -> None:
        is_output = self.plan.tensors[value].made and is_own_output(value)
        if value in self._apart:
            self._pairs_apart(value, readers)
        elif self.stored.is_converted(value):
            self._converted(value, readers, is_output)
        else:
            name = value.name or ""
            nodes, result = self._pair(value, self._numbers_of(value), name)
            self._put_behind(value, nodes, result, readers, is_output)

    def _pair(self, value: ir.Value, numbers: Numbers, name: str, postfix: str = "") -> tuple[list[ir.Node], ir.Value]:
        quantize = self._quantize(value, numbers, name, postfix)
        dequantize = self._dequantize(quantize.outputs[0], numbers, value, name, postfix)
        return [quantize, dequantize], dequantize.outputs[0]

    def _put_behind(
        self, value: ir.Value, nodes: Sequence[ir.Node], result: ir.Value, readers: Sequence[Use], is_output: bool
    ) -> None:
        """Put nodes behind what makes a value, and let readers read what they give, an output of the model as well."""
        self.job.insert_after(value, nodes)
        for node, index in readers:
            node.replace_input_with(index, result)
        if is_output:
            self._take_over(value, result)

    def _take_over(self, value: ir.Value, result: ir.Value) -> None:
        """Let a value be what another one was for callers: its name, type and place among the outputs."""
        name = value.name or ""
        outputs = graph_of(value).outputs
        for index, output in enumerate(outputs):
            if output is value:
                outputs[index] = result
        value.name = self.job.value_name(add_quant_input_suffix(name))
        result.name, result.shape = name, value.shape

    def _pairs_apart(self, value: ir.Value, readers: Sequence[Use]) -> None:
        name, numbers = value.name or "", self._numbers_of(value)
        for number, reader in enumerate(dict.fromkeys(node for node, _ in readers), 1):
            nodes, result = self._pair(value, numbers, name, f"_{number}")
            self._put_behind(value, nodes, result, [use for use in readers if use[0] is reader], False)

    def _converted(self, value: ir.Value, readers: Sequence[Use], is_output: bool) -> None:
        """Store a tensor in the type in which it is made, and, for some readers or all, in another one after it."""
        name = value.name or ""
        made, other = self._numbers_of(value), self._numbers_of(value, converted=True)
        others = [use for use in readers if self.stored.reads_converted(value, use[0])]
        first = [use for use in readers if use not in others]
        outputs_other = is_output and not first
        nodes, result = self._pair(value, made, name)
        again = result
        if first or (is_output and not outputs_other):
            copy = self._dequantize(
                nodes[0].outputs[0],
                made,
                value,
                f"{name}_convert_clone",
                output=add_quant_input_suffix(f"{name}_convert"),
            )
            nodes.append(copy)
            again = copy.outputs[0]
        more, converted = self._pair(again, other, f"{name}_convert")
        self.job.insert_after(value, [*nodes, *more])
        for uses, new in ((first, result), (others, converted)):
            for node, index in uses:
                node.replace_input_with(index, new)
        if is_output:
            self._take_over(value, converted if outputs_other else result)

    # Biases

    def _bias(self, bias: StoredBias) -> None:
        node, value = bias.bias.node, bias.bias.value
        name = value.name or ""
        factor = bias.bias.factor
        tensor = self.weights.bias(value, bias.input_scale, bias.weight, multiplier=factor)
        assert tensor.parameters is not None
        numbers = Numbers(tensor.parameters, tensor.scale, tensor.zero_point)
        known = self._bias_results.get(tensor.values)
        if known is None:
            dequantize = self._dequantize(tensor.values, numbers, value, name)
            self.job.insert_after(value, [dequantize])
            known = self._bias_results[tensor.values] = dequantize.outputs[0]
        node.replace_input_with(bias.bias.index, known)
        if "beta" in node.attributes:
            node.attributes["beta"] = ir.AttrFloat32("beta", 1.0)
        self.job.release(value)
        if value.graph is None:  # nobody reads it as it was: its name stands for what it is now
            known.name = name

    # Nodes

    def _quantize(self, value: ir.Value, numbers: Numbers, name: str, postfix: str = "") -> ir.Node:
        output = self.job.value(
            add_quant_output_suffix(name) + postfix, numbers.parameters.dtype, self.job.shape(value)
        )
        return self._node("QuantizeLinear", value, numbers, output, add_quant_suffix(name) + postfix)

    def _dequantize(
        self,
        stored: ir.Value,
        numbers: Numbers,
        like: ir.Value,
        name: str,
        postfix: str = "",
        output: str | None = None,
    ) -> ir.Node:
        dtype = self.job.dtype(like)
        assert dtype is not None
        made = self.job.value(output or add_dequant_output_suffix(name) + postfix, dtype, self.job.shape(like))
        return self._node("DequantizeLinear", stored, numbers, made, add_dequant_suffix(name) + postfix)

    def _node(self, operator: str, value: ir.Value, numbers: Numbers, output: ir.Value, name: str) -> ir.Node:
        parameters = numbers.parameters
        attributes = {} if parameters.axis is None else {"axis": parameters.axis}
        if parameters.block_size:
            attributes["block_size"] = parameters.block_size
        inputs = [value, numbers.scale, numbers.zero_point]
        return self.job.node(operator, inputs, [output], name, attributes, self.domain)

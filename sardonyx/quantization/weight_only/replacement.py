"""Quantised weights in a model: the constants and nodes that take the place of a MatMul or a Gather."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.ops.microsoft.packed_weights import pack
from sardonyx.quantization.job import MICROSOFT, Job
from sardonyx.quantization.weight_only.blocks import Array, QuantizedWeight
from sardonyx.quantization.weight_only.products import missing_rank

# Types of codes by their bits: unsigned, signed.
TYPES = {
    2: (ir.DataType.UINT2, ir.DataType.INT2),
    4: (ir.DataType.UINT4, ir.DataType.INT4),
    8: (ir.DataType.UINT8, ir.DataType.INT8),
}
_AXES_ARE_INPUTS = 13  # of Unsqueeze, from this operator set on
_NIBBLES_FORMAT = 10  # the version of ONNX's format that has INT4


@dataclass(frozen=True)
class Names:
    """What follows the name of a weight in those of its constants."""

    codes: str
    scales: str
    zeros: str


@dataclass(frozen=True)
class Stored:
    """The constants of a quantised weight, `zeros` None for the middle of all codes, and its sizes."""

    codes: ir.Value
    scales: ir.Value
    zeros: ir.Value | None
    rows: int
    length: int
    bits: int
    block: int

    @property
    def inputs(self) -> list[ir.Value]:
        return [self.codes, self.scales, *([] if self.zeros is None else [self.zeros])]


class Replacement:
    """Puts quantised nodes in the place of those of one job. What a weight is stored as, its readers share."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._stored: dict[tuple[Any, ...], Stored] = {}
        self._real: dict[Stored, ir.Value] = {}

    def stored(self, key: tuple[Any, ...], make: Callable[[], Stored]) -> Stored:
        """What is stored under a key, made when it is first asked for."""
        found = self._stored.get(key)
        if found is None:
            found = self._stored[key] = make()
        return found

    # How weights are stored

    def for_product(self, name: str, weight: QuantizedWeight, names: Names) -> Stored:
        """In the layout of MatMulNBits; the rows of the weight are the columns of the result."""
        bits, zeros = weight.form.bits, weight.zeros
        codes = weight.codes.reshape(weight.rows, weight.blocks, weight.block * bits // 8)
        if zeros is not None and zeros.dtype == np.uint8:
            zeros = pack(zeros, bits, filler=weight.form.middle)
        return Stored(
            self.job.initializer(f"{name}{names.codes}", codes),
            self.job.initializer(f"{name}{names.scales}", weight.scales),
            None if zeros is None else self.job.initializer(f"{name}{names.zeros}", zeros),
            weight.rows,
            weight.length,
            bits,
            weight.block,
        )

    def along_axis(self, name: str, weight: QuantizedWeight, shape: Sequence[int], axis: int, names: Names) -> Stored:
        """As a tensor of `shape` whose blocks lie along `axis`; without zero points its codes are signed."""
        form = weight.form
        moved = [*shape[:axis], *shape[axis + 1 :]]

        def turned(array: Array) -> Array:
            return np.ascontiguousarray(np.moveaxis(array.reshape(*moved, array.shape[-1]), -1, axis))

        codes, signed = turned(weight.unpacked()), weight.zeros is None
        if signed:
            codes ^= np.uint8(form.middle)  # the code less the middle, in two's complement
        kind = TYPES[form.bits][signed]
        zeros = None if weight.zeros is None else self._tensor(f"{name}{names.zeros}", turned(weight.zeros), kind)
        stored_codes = self._tensor(f"{name}{names.codes}", codes, kind)
        scales = self.job.initializer(f"{name}{names.scales}", turned(weight.scales))
        return Stored(stored_codes, scales, zeros, weight.rows, weight.length, form.bits, weight.block)

    def as_bytes(self, name: str, weight: QuantizedWeight, shape: Sequence[int], names: Names) -> Stored:
        """As a table of `shape` whose codes are packed in bytes along the last axis."""
        bits, head = weight.form.bits, tuple(shape[:-1])
        codes = weight.codes[:, : weight.length * bits // 8]
        zeros = None if weight.zeros is None else pack(weight.zeros, bits, filler=weight.form.middle)
        return Stored(
            self.job.initializer(f"{name}{names.codes}", np.ascontiguousarray(codes).reshape(*head, -1)),
            self.job.initializer(f"{name}{names.scales}", weight.scales.reshape(*head, -1)),
            None if zeros is None else self.job.initializer(f"{name}{names.zeros}", zeros.reshape(*head, -1)),
            weight.rows,
            weight.length,
            bits,
            weight.block,
        )

    def _tensor(self, name: str, codes: Array, kind: ir.DataType) -> ir.Value:
        """A constant of a type of few bits, from its codes in bytes."""
        bits = kind.bitwidth
        free = self.job.value_name(name)
        contents = pack(codes.reshape(-1), bits) if bits < 8 else codes
        tensor: ir.TensorProtocol
        if bits < 8:
            tensor = ir.PackedTensor(contents, kind, shape=ir.Shape(codes.shape), name=free)
            self.job.model.ir_version = max(self.job.model.ir_version, _NIBBLES_FORMAT)
        else:
            tensor = ir.Tensor(contents.view(kind.numpy()), dtype=kind, name=free)
        value = ir.Value(name=free, type=ir.TensorType(kind), shape=ir.Shape(codes.shape), const_value=tensor)
        self.job.graph.register_initializer(value)
        return value

    # What reads them

    def use_product(self, node: ir.Node, stored: Stored, accuracy_level: int | None) -> None:
        """Make a MatMulNBits of a MatMul."""
        a = node.inputs[0]
        attributes = {"K": stored.length, "N": stored.rows, "bits": stored.bits, "block_size": stored.block}
        if accuracy_level is not None:
            attributes["accuracy_level"] = int(accuracy_level)
        self.turn(node, "MatMulNBits", [a, *stored.inputs], f"_Q{stored.bits}", attributes, MICROSOFT)

    def use_table(self, node: ir.Node, stored: Stored, gather_axis: int, quantize_axis: int) -> None:
        """Make a GatherBlockQuantized of a Gather."""
        attributes = {"block_size": stored.block, "gather_axis": gather_axis, "quantize_axis": quantize_axis}
        if stored.codes.dtype == ir.DataType.UINT8:
            attributes["bits"] = stored.bits
        indices = node.inputs[1]
        inputs = [stored.codes, indices, *stored.inputs[1:]]
        self.turn(node, "GatherBlockQuantized", inputs, f"_Q{stored.bits}", attributes, MICROSOFT)

    def use_real(self, node: ir.Node, index: int, stored: Stored, axis: int, name: str) -> None:
        """Let input `index` of a node read what a DequantizeLinear makes of the stored weight."""
        real = self._real.get(stored)
        old = node.inputs[index]
        assert old is not None
        if real is None:
            job = self.job
            shape = stored.codes.shape
            real = job.value(f"{stored.codes.name}_output", stored.scales.dtype or ir.DataType.FLOAT, shape)
            attributes = {"axis": axis, "block_size": stored.block}
            made = job.node("DequantizeLinear", stored.inputs, [real], name, attributes)
            made.version = job.opset
            job.insert_after(stored.codes, [made])
            self._real[stored] = real
        node.replace_input_with(index, real)
        self.job.release(old)

    def give_rank(self, node: ir.Node, rank: int) -> None:
        """Put dimensions of 1 before those of a product's first input, so that a matrix does for a weight of `rank`."""
        job, a = self.job, node.inputs[0]
        missing = missing_rank(job, node, rank)
        if not missing:
            return
        assert a is not None
        axes = list(range(missing))
        name = f"{node.name}_unsqueeze" if node.name else ""
        wide = job.value(f"{a.name}_wide", job.dtype(a) or ir.DataType.FLOAT)
        if job.opset >= _AXES_ARE_INPUTS:
            constant = job.initializer(f"{a.name}_axes", np.array(axes, np.int64))
            made = job.node("Unsqueeze", [a, constant], [wide], name)
        else:
            made = job.node("Unsqueeze", [a], [wide], name, {"axes": axes})
        made.version = job.opset
        node.prepend(made)
        node.replace_input_with(0, wide)

    def turn(
        self,
        node: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        suffix: str,
        attributes: Mapping[str, Any],
        domain: str,
    ) -> None:
        """Make another operator of a node, which keeps its place and its results."""
        before = [value for value in node.inputs if value is not None]
        node.resize_inputs(len(inputs))
        for index, value in enumerate(inputs):
            node.replace_input_with(index, value)
        node.op_type, node.domain = op_type, domain
        node.version = self.job.model.opset_imports.setdefault(domain, 1)
        node.attributes.clear()
        for key, item in attributes.items():
            node.attributes.add(ir.convenience.convert_attribute(key, item))
        if node.name:
            node.name = self.job.node_name(f"{node.name}{suffix}")
        for value in before:
            self.job.release(value)


def matrix_of(weight: Array, axis: int) -> Array:
    """A view of a weight as rows along `axis`, where its layout allows one."""
    moved = np.moveaxis(weight, axis, -1)
    return moved.reshape(math.prod(moved.shape[:-1]), moved.shape[-1])

"""One weight-only quantization of a model, node by node."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import ModelProto

from sardonyx.graph.constants import nodes_of
from sardonyx.graph.load import LoadedModel, load_model
from sardonyx.quantization.job import Job
from sardonyx.quantization.opset import converted
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.selection import check_names
from sardonyx.quantization.weight_only import gptq, half_quadratic, k_quant, rounding
from sardonyx.quantization.weight_only.blocks import Array, Form, Method, QuantizedWeight, quantized
from sardonyx.quantization.weight_only.configs import (
    OPERATORS,
    DefaultWeightOnlyQuantConfig,
    GPTQWeightOnlyQuantConfig,
    HQQWeightOnlyQuantConfig,
    KQuantWeightOnlyQuantConfig,
    RTNWeightOnlyQuantConfig,
)
from sardonyx.quantization.weight_only.moments import samples, second_moments
from sardonyx.quantization.weight_only.products import is_batch, product_objection, shape_of, weight_objection
from sardonyx.quantization.weight_only.replacement import Names, Replacement, Stored, matrix_of
from sardonyx.quantization.weight_only.request import Request
from sardonyx.transformers.large_weights import load_proto

logger = logging.getLogger(__name__)

# The operator sets that have blocks, and codes of two bits.
_BLOCKS_OPSET, _TWO_BITS_OPSET = 21, 25
# Nodes that hold weights of few bits already.
_PACKED = frozenset({"MatMulNBits", "MatMulBnb4", "GatherBlockQuantized"})
_REAL_ZEROS = (2, 4)  # the bits at which products of all engines take real zero points


def open_model(source: ModelProto | Path) -> LoadedModel:
    """The model of a file, whose weights are mapped, or of a message."""
    return load_proto(source) if isinstance(source, ModelProto) else load_model(source, hard_links=True)


def quantize_weights(loaded: LoadedModel, source: ModelProto | Path, request: Request) -> ModelProto:
    """The model with its weights quantised; `InvalidQuantization` where none could be."""
    if request.is_qdq:
        loaded = _with_opset(loaded, _TWO_BITS_OPSET if _least_bits(request) == 2 else _BLOCKS_OPSET)
    _check_unpacked(loaded.model, request)
    operators = request.operators | _included_types(loaded.model, request)
    job = Job(
        loaded,
        request.options,
        weight_type=ir.DataType.UINT4,
        activation_type=ir.DataType.FLOAT,
        operators=operators,
        nodes_to_exclude=request.nodes_to_exclude,
    )
    run = _Run(job, request)
    nodes = [node for node in job.nodes() if run.is_asked(node)]
    if isinstance(request.config, GPTQWeightOnlyQuantConfig):
        run.with_moments(nodes, source, request.config)
    for node in nodes:
        run.quantize(node)
    job.finish()
    return job.message()


def _least_bits(request: Request) -> int:
    own = request.config.customized_weight_config or {}
    return min([request.bits, *(request.of_node(name).bits for name in own)])


def _with_opset(loaded: LoadedModel, needed: int) -> LoadedModel:
    opset = loaded.model.opset_imports.get("", 1)
    if opset >= needed:
        return loaded
    logger.warning("The model's opset %d has no DequantizeLinear of such weights: it becomes opset %d", opset, needed)
    return converted(loaded, needed)


def _check_unpacked(model: ir.Model, request: Request) -> None:
    """`InvalidQuantization` for a model of which nothing but packed weights is left."""
    types = {node.op_type for node in nodes_of(model.graph)}
    if types & _PACKED and not types & (request.operators | set(OPERATORS)):
        raise InvalidQuantization(
            f"The model's weights are quantised already: it has {', '.join(sorted(types & _PACKED))} and no MatMul. "
            "Quantise the float model that it was made from"
        )


def _included_types(model: ir.Model, request: Request) -> set[str]:
    """The operators of the nodes that were asked for by name."""
    named = {node.name: node.op_type for node in nodes_of(model.graph) if node.name}
    check_names("nodes_to_include", request.nodes_to_include, named)
    found = {named[name] for name in request.nodes_to_include if name in named}
    if wrong := sorted(found - set(OPERATORS)):
        raise InvalidQuantization(
            f"nodes_to_include: weights of {', '.join(wrong)} cannot be quantised alone; {' and '.join(OPERATORS)} are "
            "supported"
        )
    return found


class _Run:
    def __init__(self, job: Job, request: Request) -> None:
        self.job = job
        self.request = request
        self.replacement = Replacement(job)
        self.moments: dict[str, Array] = {}
        self._done: set[ir.Node] = set()

    def is_asked(self, node: ir.Node) -> bool:
        if node.op_type in self.request.operators or node.name in self.request.nodes_to_include:
            return True
        self.job.report.left(node, "not among op_types_to_quantize and nodes_to_include")
        return False

    def with_moments(self, nodes: list[ir.Node], source: Any, config: GPTQWeightOnlyQuantConfig) -> None:
        """Quantise the products of the main graph, those that read the same values together."""
        feeds = samples(config.calibration_data_reader)
        readers: dict[str, list[ir.Node]] = {}
        sizes: dict[str, int] = {}
        for node in nodes:
            if node.op_type == "MatMul" and node.graph is self.job.graph and self._objection(node) is None:
                a, b = node.inputs
                assert a is not None
                assert b is not None
                assert b.shape is not None
                readers.setdefault(a.name or "", []).append(node)
                sizes[a.name or ""] = int(b.shape.numpy()[-2])
        for name, moment in second_moments(source, feeds, sizes):
            self.moments[name] = moment
            for node in readers[name]:
                self.quantize(node)
            del self.moments[name]

    def quantize(self, node: ir.Node) -> None:
        """Quantise the weight of a node, or say in the report why not."""
        if node in self._done:
            return
        self._done.add(node)
        objection = self._objection(node)
        if objection is not None:
            self.job.report.left(node, objection)
            logger.info("%s %s stays as it is: %s", node.op_type, node.name, objection)
            return
        name = node.name or ""
        own, operator = self.request.of_node(name), node.op_type
        how = self._product(node, own) if operator == "MatMul" else self._table(node, own)
        self.job.report.quantized(node, how)
        logger.info("%s %s: %s", operator, name, how)

    def _objection(self, node: ir.Node) -> str | None:
        """Why a node stays as it is."""
        request = self.request.of_node(node.name or "")
        if node.op_type == "MatMul":
            return product_objection(self.job, node, batches=request.is_qdq)
        return weight_objection(self.job, node.inputs[0]) or self._table_objection(node, request)

    def _table_objection(self, node: ir.Node, request: Request) -> str | None:
        table = node.inputs[0]
        assert table is not None
        shape = shape_of(self.job, table)
        axis = request.axes["Gather"]
        if not -len(shape) <= axis < len(shape):
            return f"its table of shape {shape} has no axis {axis} for blocks"
        gather_axis, last = int(self.job.attribute(node, "axis", 0)) % len(shape), len(shape) - 1
        if request.is_qdq:
            return None
        if request.channel_wise:
            return "GatherBlockQuantized has no blocks of whole rows"
        as_bytes = axis % len(shape) == last and gather_axis == 0 and shape[-1] * request.bits % 8 == 0
        if request.bits != 4 and not as_bytes:
            return (
                f"a table of shape {shape} with {request.bits} bits has no form: GatherBlockQuantized takes 2 and 8 "
                "bits along the last axis, gathered along the first"
            )
        return None

    # One node

    def _product(self, node: ir.Node, request: Request) -> str:
        b = node.inputs[1]
        assert b is not None
        self.job.settle(b)
        shape = shape_of(self.job, b)
        inner = shape[-2]
        array = self.job.constant(b)
        assert array is not None
        if not is_batch(shape):
            self.replacement.give_rank(node, len(shape))
            array = array.reshape(shape[-2:])
        form = self._form(request, array.dtype, real_zeros=not request.is_qdq)
        a_name = node.inputs[0].name if node.inputs[0] is not None else ""

        def make() -> Stored:
            assert array is not None
            method, at_once = self._method(request, b.name or "", a_name or "", form)
            rows = matrix_of(array, array.ndim - 2)
            block = inner if request.channel_wise else request.block_size
            weight = quantized(rows, block, method, form, f"Weight '{b.name}'", *at_once)
            if not request.is_qdq:
                weight = in_smaller_blocks(weight, request.block_size)
                return self.replacement.for_product(b.name or "", weight, self._names(request, "product"))
            names = self._names(request, "pair")
            return self.replacement.along_axis(b.name or "", weight, array.shape, array.ndim - 2, names)

        key = (b, "MatMul", request.is_qdq, *self._key(request), a_name if self.moments else "")
        stored = self.replacement.stored(key, make)
        if request.is_qdq:
            name = f"{node.name}_DQ_Q{request.bits}" if node.name else ""
            self.replacement.use_real(node, 1, stored, array.ndim - 2, name)
        else:
            self.replacement.use_product(node, stored, request.accuracy_level)
        return self._how(request, inner)

    def _table(self, node: ir.Node, request: Request) -> str:
        table = node.inputs[0]
        assert table is not None
        self.job.settle(table)
        array = self.job.constant(table)
        assert array is not None
        rank = array.ndim
        axis, gather_axis = request.axes["Gather"] % rank, int(self.job.attribute(node, "axis", 0)) % rank
        form = self._form(request, array.dtype, real_zeros=False)
        as_bytes = not request.is_qdq and request.bits != 4

        def make() -> Stored:
            assert array is not None
            method, at_once = self._method(request, table.name or "", "", form)
            block = array.shape[axis] if request.channel_wise else request.block_size
            weight = quantized(matrix_of(array, axis), block, method, form, f"Table '{table.name}'", *at_once)
            names = self._names(request, "pair" if request.is_qdq else "table")
            if as_bytes:
                return self.replacement.as_bytes(table.name or "", weight, array.shape, names)
            return self.replacement.along_axis(table.name or "", weight, array.shape, axis, names)

        stored = self.replacement.stored((table, "Gather", request.is_qdq, axis, *self._key(request)), make)
        if request.is_qdq:
            name = f"{node.name}_DQ_Q{request.bits}" if node.name else ""
            self.replacement.use_real(node, 0, stored, axis, name)
        else:
            self.replacement.use_table(node, stored, gather_axis, axis)
        return self._how(request, array.shape[axis])

    def _form(self, request: Request, dtype: np.dtype[Any], real_zeros: bool) -> Form:
        is_hqq = isinstance(request.config, HQQWeightOnlyQuantConfig)
        symmetric = request.is_symmetric
        if symmetric and self.request.options.ort_compatible:
            symmetric = not isinstance(request.config, KQuantWeightOnlyQuantConfig)
        real = real_zeros and is_hqq and not symmetric and request.bits in _REAL_ZEROS
        return Form(request.bits, symmetric, dtype, real)

    def _method(self, request: Request, name: str, a_name: str, form: Form) -> tuple[Method, tuple[int, ...]]:
        """The method for a weight, and how many elements it works on at once where that is its own."""
        config, compatible = request.config, request.options.ort_compatible
        if isinstance(config, GPTQWeightOnlyQuantConfig) and a_name in self.moments:
            method = gptq.Gptq(
                self.moments[a_name],
                damping=config.percdamp,
                by_activity=config.actorder,
                searched=config.mse,
                per_channel=config.perchannel,
                lazy=config.block_size,
            )
            return method, (gptq.AT_ONCE,)
        if isinstance(config, RTNWeightOnlyQuantConfig):
            return rounding.RangeRounding(float(config.ratios.get(name, 1)), compatible), ()
        if isinstance(config, KQuantWeightOnlyQuantConfig):
            return (k_quant.search_with_real_zeros if compatible else k_quant.search), ()
        if isinstance(config, HQQWeightOnlyQuantConfig):
            return half_quadratic.half_quadratic, ()
        return rounding.round_to_nearest, ()

    @staticmethod
    def _names(request: Request, what: str) -> Names:
        """How onnxruntime calls the constants."""
        bits = request.bits
        config = request.config
        if what == "pair":
            return Names(f"_DQ_Q{bits}", "_DQ_scales", "_DQ_zero_points")
        if what == "product" and not isinstance(config, DefaultWeightOnlyQuantConfig | HQQWeightOnlyQuantConfig):
            return Names(f"_Q{bits}G{request.block_size}", "_scale", "_zp")
        return Names(f"_Q{bits}", "_scales", "_zero_points")

    @staticmethod
    def _key(request: Request) -> tuple[Any, ...]:
        return request.bits, request.block_size, request.is_symmetric, request.channel_wise

    def _how(self, request: Request, length: int) -> str:
        where = f"one scale for {length}" if request.channel_wise else f"blocks of {request.block_size}"
        scheme = "symmetric" if request.is_symmetric else "asymmetric"
        return f"{request.bits} bits, {where}, {scheme}, {request.config.algorithm}"


def in_smaller_blocks(weight: QuantizedWeight, block: int) -> QuantizedWeight:
    """A weight of one block a row with its parameters repeated for blocks of this size."""
    if weight.block == block:
        return weight
    assert weight.blocks == 1
    blocks = -(-weight.length // block)
    codes = np.zeros((weight.rows, blocks * block * weight.form.bits // 8), np.uint8)
    codes[:, : weight.codes.shape[1]] = weight.codes
    zeros = None if weight.zeros is None else np.repeat(weight.zeros, blocks, 1)
    return replace(weight, block=block, codes=codes, scales=np.repeat(weight.scales, blocks, 1), zeros=zeros)

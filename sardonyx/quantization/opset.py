"""Raises the operator set of a model where quantised types ask for it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace

import onnx
import onnx_ir as ir

from sardonyx import errors
from sardonyx.graph.load import LoadedModel
from sardonyx.graph.saving import to_message
from sardonyx.quantization.options import Options
from sardonyx.quantization.quant_utils import ir_type
from sardonyx.transformers.large_weights import load_proto

logger = logging.getLogger(__name__)

_OLDEST = 10  # that has QuantizeLinear
_USUAL = 11
AXES = 13  # whose pairs have a scale for each channel
_FLOAT8 = 19
WIDE = 21  # that has 16 and 4 bits, and blocks
_SMALL = 1024
_ATTRIBUTES = 6  # the last that broadcasts by attributes
_UNUSUAL = 1009  # from here on sizes that stand for symbols
_INITIALIZERS_ALONE = 4  # the version of the format since which initializers need not be inputs: here they are none

SIXTEEN = frozenset({ir.DataType.INT16, ir.DataType.UINT16})
FOUR = frozenset({ir.DataType.INT4, ir.DataType.UINT4})


def override_types(options: Options) -> Iterator[ir.DataType]:
    """The types that overrides of single tensors ask for, as far as these are well formed."""
    for many in options.tensor_quant_overrides.values():
        for one in many if isinstance(many, list) else ():
            convert = one.get("convert") if isinstance(one, dict) else None
            for part in (one, convert):
                if isinstance(part, dict) and "quant_type" in part:
                    yield ir_type(part["quant_type"])


def needed_opset(
    opset: int,
    options: Options,
    kinds: Iterable[ir.DataType],
    contrib: bool = False,
    per_channel: bool = False,
) -> int:
    """The operator set that a model of `opset` needs for these types: `opset` itself where that will do.

    Four bits alone raise nothing: their pairs are of com.microsoft in older models. With `contrib` nor do 16, or scales
    for each channel.
    """
    kinds = set(kinds)
    contrib = contrib or options.use_qdq_contrib_ops
    if opset < WIDE and (options.block_size or (kinds & SIXTEEN and not contrib)):
        return WIDE
    if opset < _FLOAT8 and ir.DataType.FLOAT8E4M3FN in kinds:
        return _FLOAT8
    if opset < _FLOAT8 and ir.DataType.FLOAT16 in kinds and not contrib:
        return _FLOAT8
    if opset < AXES and per_channel and not contrib:
        return AXES
    return opset if opset >= _OLDEST else _USUAL


def raise_opset(
    loaded: LoadedModel,
    options: Options,
    weight_type: ir.DataType,
    activation_type: ir.DataType,
    contrib: bool = False,
    per_channel: bool = False,
) -> LoadedModel:
    """The model with the operator set that its quantised types need; `errors.Fail` where it cannot be converted.

    `contrib` lets pairs of com.microsoft do where ONNX's own need a newer one.
    """
    opset = loaded.model.opset_imports.get("", 1)
    kinds = (weight_type, activation_type, *override_types(options), *_float_types(loaded.model.graph))
    target = needed_opset(opset, options, kinds, contrib, per_channel)
    if target == opset:
        return loaded
    logger.warning("The model's opset %d does not have what is asked for: it becomes opset %d", opset, target)
    if target != AXES:
        return converted(loaded, target)
    try:
        return converted(loaded, target)
    except errors.Fail as error:
        logger.warning("%s. Pairs with a scale for each channel are of com.microsoft instead", error.message)
        return raise_opset(loaded, options, weight_type, activation_type, contrib)


def _float_types(graph: ir.Graph) -> Iterator[ir.DataType]:
    """The types of the inputs and constants of a graph that are floats."""
    for value in (*graph.inputs, *graph.initializers.values()):
        if value.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
            yield value.dtype


def converted(loaded: LoadedModel, target: int) -> LoadedModel:
    """A model in another operator set, its large weights not copied.

    They take no part in the conversion: inputs stand for them.
    """
    model = loaded.model
    large = {
        name: value.const_value
        for name, value in model.graph.initializers.items()
        if value.const_value is not None and value.const_value.nbytes >= _SMALL and not value.is_graph_input()
    }
    for name in large:
        value = model.graph.initializers.pop(name)
        value.const_value = None
        model.graph.inputs.append(value)
    try:
        message = to_message(model)
        message.ir_version = max(message.ir_version, _INITIALIZERS_ALONE)
        proto = _convert(message, target)
    except Exception as error:  # the converter has errors of its own for each operator that it does not know
        opset = model.opset_imports.get("", 1)
        raise errors.Fail(
            f"The model cannot be converted from opset {opset} to {target}, which its quantised form needs: {error}. "
            f"Export it with opset {target}"
            + (", or ask for 8 bits and no blocks" if opset >= _OLDEST and target > AXES else "")
        ) from error
    proto.ir_version = max(proto.ir_version, model.ir_version, ir_version_of(target))
    after = replace(load_proto(proto), files=loaded.files, maps=loaded.maps)
    after.model.metadata_props.update(model.metadata_props)
    for value in list(after.model.graph.inputs):
        tensor = large.get(value.name or "")
        if tensor is None:
            continue
        after.model.graph.inputs.remove(value)
        if value.uses() or value.is_graph_output():
            value.const_value = tensor
            value.shape = ir.Shape(tensor.shape.numpy())
            after.model.graph.register_initializer(value)
    return after


def _convert(message: onnx.ModelProto, target: int) -> onnx.ModelProto:
    """The message in another operator set.

    Where broadcasting had attributes, the converter looks at sizes and takes no symbols: numbers stand for these, the
    same for one symbol. Inputs and outputs have their own types afterwards.
    """
    if max((entry.version for entry in message.opset_import if not entry.domain), default=1) > _ATTRIBUTES:
        return onnx.version_converter.convert_version(message, target)
    sized = onnx.ModelProto()
    sized.CopyFrom(message)
    del sized.graph.value_info[:]
    sizes: dict[str, int] = {}
    for info in (*sized.graph.input, *sized.graph.output):
        for dim in info.type.tensor_type.shape.dim:
            if not dim.HasField("dim_value"):
                dim.dim_value = sizes.setdefault(dim.dim_param or f" {len(sizes)}", _UNUSUAL + len(sizes))
    proto = onnx.version_converter.convert_version(sized, target)
    del proto.graph.value_info[:]
    kinds = {info.name: info.type for info in (*message.graph.input, *message.graph.output)}
    for info in (*proto.graph.input, *proto.graph.output):
        if info.name in kinds:
            info.type.CopyFrom(kinds[info.name])
    return proto


def ir_version_of(opset: int) -> int:
    """The version of ONNX's format in which an operator set appeared."""
    return int(min(row[1] for row in onnx.helper.VERSION_TABLE if row[2] >= opset))

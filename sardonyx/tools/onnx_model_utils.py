"""Fix dimensions of a model, read and raise its opsets, save it optimised."""

from __future__ import annotations

import logging
import os
import pathlib
from collections.abc import Sequence

import onnx
from onnx import GraphProto, ModelProto, ValueInfoProto

from sardonyx.api.enums import GraphOptimizationLevel
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.api.session import InferenceSession
from sardonyx.graph.saving import write_message

_LEVELS = {
    "disable": GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "layout": GraphOptimizationLevel.ORT_ENABLE_LAYOUT,
    "all": GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def get_opsets_imported(model: ModelProto) -> dict[str, int]:
    """The opset of each domain; ``ai.onnx`` for ONNX's own."""
    return {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}


def update_onnx_opset(
    model_path: pathlib.Path, opset: int, out_path: pathlib.Path | None = None, logger: logging.Logger | None = None
) -> ModelProto:
    """The model converted to an opset of ONNX; also written to `out_path` where that is given."""
    path = pathlib.Path(model_path).resolve(strict=True)
    if logger:
        logger.info("Updating %s to opset %d", path, opset)
    converted = onnx.version_converter.convert_version(onnx.load(str(path)), opset)
    if out_path:
        write_message(converted, out_path)
    return converted


def get_optimization_level(level: str) -> GraphOptimizationLevel:
    """The level called disable, basic, extended, layout or all; ValueError for another name."""
    if level not in _LEVELS:
        raise ValueError(f"Invalid optimization level of {level}: choose one of {', '.join(_LEVELS)}")
    return _LEVELS[level]


def optimize_model(
    model_path: pathlib.Path,
    output_path: pathlib.Path,
    level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_BASIC,
    log_level: int = 3,
    use_external_initializers: bool = False,
) -> None:
    """Write the model as a session with this level would run it."""
    options = SessionOptions()
    options.optimized_model_filepath = os.fspath(output_path)
    options.graph_optimization_level = level
    options.log_severity_level = log_level
    if use_external_initializers:
        name = pathlib.Path(output_path).stem + ".data"
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", name)
    InferenceSession(os.fspath(model_path), options, providers=["CPUExecutionProvider"])


def make_dim_param_fixed(graph: GraphProto, param_name: str, value: int) -> None:
    """Replace a symbolic dimension by a number everywhere in the graph and its subgraphs."""
    for info in [*graph.input, *graph.output, *graph.value_info]:
        if info.type.HasField("tensor_type"):
            for dim in info.type.tensor_type.shape.dim:
                if dim.HasField("dim_param") and dim.dim_param == param_name:
                    dim.dim_value = value
    for node in graph.node:
        for attribute in node.attribute:
            for subgraph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                make_dim_param_fixed(subgraph, param_name, value)


def make_input_shape_fixed(graph: GraphProto, input_name: str, fixed_shape: Sequence[int]) -> None:
    """Give an input a fixed shape; ValueError where it contradicts the model or the input does not exist.

    Symbolic dimensions of the input become numbers wherever they occur in the graph.
    """
    found = next((value for value in graph.input if value.name == input_name), None)
    if found is None:
        names = ", ".join(value.name for value in graph.input)
        raise ValueError(f"Input {input_name} was not found in graph inputs. Valid input names are: {names}")
    shape = found.type.tensor_type.shape
    if not found.type.tensor_type.HasField("shape"):
        for size in fixed_shape:
            shape.dim.add().dim_value = size
        return
    if len(shape.dim) != len(fixed_shape):
        raise ValueError(f"Rank mismatch. Existing:{len(shape.dim)} Replacement:{len(fixed_shape)}")
    for index, (dim, size) in enumerate(zip(shape.dim, fixed_shape, strict=True)):
        if dim.HasField("dim_value") and dim.dim_value > 0:
            if dim.dim_value != size:
                raise ValueError(
                    f"Can't replace existing fixed size of {dim.dim_value} with {size} for dimension {index + 1}"
                )
        elif dim.HasField("dim_param"):
            make_dim_param_fixed(graph, dim.dim_param, size)
            dim.dim_value = size
        else:
            dim.dim_value = size


def fix_output_shapes(model: ModelProto) -> None:
    """Give outputs the shapes that inference finds, now that inputs are fixed."""
    inferred = {value.name: value for value in onnx.shape_inference.infer_shapes(model).graph.output}
    for output in model.graph.output:
        if not is_fixed_size_tensor(output):
            output.type.tensor_type.shape.CopyFrom(inferred[output.name].type.tensor_type.shape)


def is_fixed_size_tensor(value: ValueInfoProto) -> bool:
    """Whether a value is a tensor all of whose dimensions are positive numbers; scalars are too."""
    tensor = value.type.tensor_type
    return (
        value.type.HasField("tensor_type")
        and tensor.HasField("shape")
        and all(dim.HasField("dim_value") and dim.dim_value > 0 for dim in tensor.shape.dim)
    )


def remove_invalid_dim_values(graph: GraphProto) -> None:
    """Make dimensions below 1 unknown, in the graph and its subgraphs."""
    for info in [*graph.input, *graph.output, *graph.value_info]:
        if info.type.HasField("tensor_type"):
            for dim in info.type.tensor_type.shape.dim:
                if dim.HasField("dim_value") and dim.dim_value < 1:
                    dim.Clear()
    for node in graph.node:
        for attribute in node.attribute:
            for subgraph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                remove_invalid_dim_values(subgraph)

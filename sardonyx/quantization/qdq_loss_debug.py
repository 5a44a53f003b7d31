"""Where a quantised model loses accuracy: its weights and activations beside those of the float model.

The names are those of ``onnxruntime.quantization.qdq_loss_debug``. Models of its quantizers are understood as well.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from sardonyx.api.enums import GraphOptimizationLevel
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.api.session import InferenceSession
from sardonyx.quantization.calibration import augmented_model, tensors
from sardonyx.quantization.calibration.readers import as_reader, samples_of
from sardonyx.quantization.quant_utils import DEQUANT_OUTPUT_SUFFIX, QUANT_INPUT_SUFFIX
from sardonyx.quantization.quantized_weights import dequantized_weights
from sardonyx.quantization.refusal import InvalidQuantization

Array: TypeAlias = np.ndarray[Any, Any]
Arrays: TypeAlias = Sequence[Array]
Model: TypeAlias = str | os.PathLike[str]

_SAVED = "_ReshapedSavedOutput"
_SHAPE = "sardonyx_saved_output_shape"
_DEQUANTISED = re.compile(f"(.+){DEQUANT_OUTPUT_SUFFIX}(?:_[0-9]+)?")
_EPSILON = float(np.finfo(np.float64).eps)


def modify_model_output_intermediate_tensors(
    input_model_path: Model,
    output_model_path: Model,
    op_types_for_saving: Sequence[str] | None = None,
    save_as_external_data: bool = False,
) -> None:
    """Write a model that gives its float tensors as outputs too, flattened: for `collect_activations`.

    `op_types_for_saving` are the operators whose inputs and results are given, all by default. Weights that lie in
    files of their own stay there, whatever `save_as_external_data` says, so the new file must be in the folder of the
    model then. The errors of loading a model; `errors.Fail` where the file cannot be written.
    """
    source, target = Path(input_model_path), Path(output_model_path)
    model = augmented_model.read_structure(source)
    folders = {augmented_model.folder_of(source), augmented_model.folder_of(target)}
    if augmented_model.has_external_data(model, source.name) and len(folders) > 1:
        raise InvalidQuantization(
            f"The weights of {source} lie in files of their own: write the new model into its folder, not to {target}"
        )
    graph = model.graph
    infos = tensors.infos_of(graph)
    makers = {name: number for number, node in enumerate(graph.node) for name in node.output}
    flat = helper.make_tensor(_SHAPE, TensorProto.INT64, [1], [-1])
    nodes: dict[int, list[NodeProto]] = {-1: [helper.make_node("Constant", [], [_SHAPE], value=flat)]}
    outputs: list[ValueInfoProto] = []
    for name in tensors.calibrated(graph, op_types_for_saving):
        result = name + _SAVED
        reshape = helper.make_node("Reshape", [name, _SHAPE], [result], name=result)
        nodes.setdefault(makers.get(name, -1), []).append(reshape)
        outputs.append(helper.make_tensor_value_info(result, tensors.element_type(infos[name]), [None]))
    has_operators = any(entry.domain in ("", "ai.onnx") for entry in model.opset_import)
    augmented_model.write_with(source, target, nodes, outputs, has_operators)


def collect_activations(
    augmented_model: Model,
    input_reader: Any,
    session_options: SessionOptions | None = None,
    execution_providers: Sequence[Any] | None = None,
) -> dict[str, list[Array]]:
    """The activations of a model that `modify_model_output_intermediate_tensors` wrote: an array [elements] for each
    sample of the reader, by the names of tensors.

    Without `session_options` nothing is rewritten, so that what runs is what the model says. `errors.InvalidArgument`
    where there are no samples, or where they do not fit.
    """
    if session_options is None:
        session_options = SessionOptions()
        session_options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    providers = ["CPUExecutionProvider"] if execution_providers is None else list(execution_providers)
    session = InferenceSession(os.fspath(augmented_model), session_options, providers=providers)
    wanted = [output.name for output in session.get_outputs() if output.name.endswith(_SAVED)]
    found: dict[str, list[Array]] = {}
    for sample in samples_of(as_reader(input_reader)):
        for name, array in zip(wanted, session.run(wanted, dict(sample)), strict=True):
            found.setdefault(name.removesuffix(_SAVED), []).append(array)
    if not found:
        raise InvalidQuantization("No activations are collected: the reader gives no sample, or the model no tensor")
    return found


def create_activation_matching(
    qdq_activations: Mapping[str, Arrays], float_activations: Mapping[str, Arrays] | None = None
) -> dict[str, dict[str, Arrays]]:
    """Of each tensor that is quantised: its values before (`pre_qdq`) and after (`post_qdq`) that, and those in the
    float model (`float`), where these are given and have it.

    Both arguments are what `collect_activations` gives.
    """
    found: dict[str, dict[str, Arrays]] = {}
    before: Arrays | None
    after: Arrays | None
    for name, values in qdq_activations.items():
        if name.endswith(QUANT_INPUT_SUFFIX):
            tensor = name.removesuffix(QUANT_INPUT_SUFFIX)
            before, after = values, qdq_activations.get(tensor)
        elif matched := _DEQUANTISED.fullmatch(name):
            tensor = matched.group(1)
            before, after = qdq_activations.get(tensor), values
        else:
            continue
        if before is not None and after is not None and tensor not in found:
            found[tensor] = {"pre_qdq": before, "post_qdq": after}
            if float_activations is not None and tensor in float_activations:
                found[tensor]["float"] = float_activations[tensor]
    return found


def create_weight_matching(float_model_path: Model, qdq_model_path: Model) -> dict[str, dict[str, Array]]:
    """Of each weight that is quantised: its values in the float model (`float`), and what the quantised one computes
    with (`dequantized`). The errors of loading a model."""
    return {
        name: {"float": values, "dequantized": dequantized}
        for name, values, dequantized in dequantized_weights(float_model_path, qdq_model_path)
    }


def compute_signal_to_quantization_noice_ratio(x: Arrays | Array, y: Arrays | Array) -> float:
    """The norm of `x` over that of ``x - y``, in decibels; both are arrays, or as many arrays.

    Norms count as the epsilon of float64 at least, so equal arrays have a finite ratio. `errors.InvalidArgument`, also
    a ValueError, for unequal numbers or shapes of arrays.
    """
    signal, noise = 0.0, 0.0
    left, right = ([one] if isinstance(one, np.ndarray) else list(one) for one in (x, y))
    if len(left) != len(right) or not left:
        raise InvalidQuantization(f"{len(left)} arrays cannot be compared with {len(right)}: give as many of both")
    for one, other in zip(left, right, strict=True):
        if np.shape(one) != np.shape(other):
            raise InvalidQuantization(f"An array {np.shape(one)} cannot be compared with one {np.shape(other)}")
        wide = np.asarray(one, np.float64)
        signal += float(np.square(wide).sum())
        noise += float(np.square(wide - np.asarray(other, np.float64)).sum())
    return 20 * math.log10(max(math.sqrt(signal), _EPSILON) / max(math.sqrt(noise), _EPSILON))


def compute_weight_error(
    weights_match: Mapping[str, Mapping[str, Array]],
    err_func: Callable[[Array, Array], float] = compute_signal_to_quantization_noice_ratio,
) -> dict[str, float]:
    """The error of each weight of `create_weight_matching`: by default the ratio of signal to noise in decibels."""
    return {name: err_func(one["float"], one["dequantized"]) for name, one in weights_match.items()}


def compute_activation_error(
    activations_match: Mapping[str, Mapping[str, Arrays]],
    err_func: Callable[[Arrays, Arrays], float] = compute_signal_to_quantization_noice_ratio,
) -> dict[str, dict[str, float]]:
    """The errors of each tensor of `create_activation_matching`: `qdq_err`, of its own quantization, and, where the
    values of the float model are there, `xmodel_err`, of all that is quantised before it."""
    found: dict[str, dict[str, float]] = {}
    for name, one in activations_match.items():
        found[name] = {"qdq_err": err_func(one["pre_qdq"], one["post_qdq"])}
        if "float" in one:
            found[name]["xmodel_err"] = err_func(one["float"], one["post_qdq"])
    return found

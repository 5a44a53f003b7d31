"""Models made ready for quantization for QNN."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Sequence

import onnx_ir as ir
from onnx import ModelProto

from sardonyx.graph.constants import nodes_of
from sardonyx.graph.load import load_model, make_constant
from sardonyx.passes.base import Level
from sardonyx.passes.pipeline import by_rules
from sardonyx.passes.rules.activations import FuseGelu
from sardonyx.passes.rules.layer_norm import FuseLayerNormalization
from sardonyx.quantization.execution_providers.qnn import fusions
from sardonyx.quantization.execution_providers.qnn.channel_last import inputs_to_channel_last, outputs_to_channel_last
from sardonyx.quantization.execution_providers.qnn.fixed_shapes import fix_input_shapes
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.shape_inference import infer_shapes, leave_out_imports, write_prepared
from sardonyx.transformers import rewriting
from sardonyx.transformers.large_weights import load_proto

logger = logging.getLogger(__name__)

_PRE_PROCESSED = ("onnx.infer", "onnxruntime.tools.qnn.preprocess")  # which tools look for
# Weights keep their names and stay apart: overrides tell them by name, and each is quantised as its node needs it.
_SHARING = "ConstantSharing"
_LAYER_NORMALIZATION = 17  # the operator set that has it


def qnn_preprocess_model(
    model_input: str | os.PathLike[str] | ModelProto,
    model_output: str | os.PathLike[str],
    exclude_initializer_from_input: bool = False,
    fuse_layernorm: bool = False,
    save_as_external_data: bool = False,
    all_tensors_to_one_file: bool = False,
    external_data_location: str | None = None,
    external_data_size_threshold: int = 1024,
    external_data_convert_attribute: bool = False,
    inputs_to_make_channel_last: Sequence[str] | None = None,
    outputs_to_make_channel_last: Sequence[str] | None = None,
    dynamic_input_shapes: Sequence[tuple[str, str]] | None = None,
) -> bool:
    """Write a model with the operators that QNN has in the place of sequences of nodes; whether there was any need to.

    - The parts of GELU become Gelu (that of com.microsoft before opset 20), vectors over their lengths
      LpNormalization, blocks of an image that are moved into its channels SpaceToDepth, and with `fuse_layernorm` the
      parts of LayerNormalization that, from opset 17 on.
    - Nodes without names get some, by which settings of quantization tell them apart.
    - `exclude_initializer_from_input` takes weights off the inputs, where callers could override them.
    - `inputs_to_make_channel_last` and `outputs_to_make_channel_last`, of at least three dimensions, become
      (N, D1, ..., Dn, C), with a Transpose beside them.
    - `dynamic_input_shapes` gives inputs their sizes: pairs of a name and the sizes with commas between them.

    Where there is nothing to do, no file is written. Where there is, constants are folded as well, and the shapes of
    all values written. `save_as_external_data` puts weights of `external_data_size_threshold` bytes and more into files
    of their own, or with `all_tensors_to_one_file` into one, `external_data_location` or ``<name>.data``; with
    `external_data_convert_attribute` those in attributes, too.

    `InvalidQuantization`, also a ValueError, for arguments that do not fit the model; the errors of loading a model;
    `errors.Fail` where a file cannot be written.
    """
    if not isinstance(model_input, str | os.PathLike | ModelProto):
        raise InvalidQuantization(f"model_input must be a path or a ModelProto, not {type(model_input).__name__}")
    loaded = load_proto(model_input) if isinstance(model_input, ModelProto) else load_model(os.fspath(model_input))
    graph = loaded.model.graph
    changed = fix_input_shapes(loaded.model, dynamic_input_shapes or ())
    if exclude_initializer_from_input:
        changed |= _take_off_inputs(graph)
    changed |= _name_nodes(graph)
    wanted = {FuseGelu.name}
    opset = loaded.model.opset_imports.get("", 1)
    if fuse_layernorm and opset < _LAYER_NORMALIZATION:
        logger.warning(
            "fuse_layernorm: the model is of opset %d, and LayerNormalization came with 17; raise the opset first",
            opset,
        )
    elif fuse_layernorm:
        wanted.add(FuseLayerNormalization.name)
    reports = by_rules(loaded.model, fusions.RULES)
    reports += rewriting.fused(loaded, Level.BASIC, rewriting.fusion_names(wanted) | {_SHARING})
    fused = wanted | {rule.name for rule in fusions.RULES}
    changed |= any(report.changes for report in reports if report.name in fused)
    infer_shapes(loaded)
    changed |= inputs_to_channel_last(graph, inputs_to_make_channel_last or ())
    changed |= outputs_to_channel_last(graph, outputs_to_make_channel_last or ())
    if not changed:
        return False
    leave_out_imports(loaded.model)
    loaded.model.metadata_props.setdefault(*_PRE_PROCESSED)
    write_prepared(
        loaded.model,
        model_output,
        save_as_external_data,
        all_tensors_to_one_file,
        external_data_location,
        external_data_size_threshold,
        external_data_convert_attribute,
    )
    return True


def _take_off_inputs(graph: ir.Graph) -> bool:
    """Leave the inputs that have a weight for a default out of the inputs."""
    found = [value for value in graph.inputs if value.is_initializer()]
    for value in found:
        make_constant(value)
    return bool(found)


def _name_nodes(graph: ir.Graph) -> bool:
    """Name the nodes that have no name."""
    taken = {node.name for node in nodes_of(graph)}
    numbered = (f"qnn_preproc_node_{number}" for number in itertools.count())
    nameless = [node for node in nodes_of(graph) if not node.name]
    for node in nameless:
        node.name = next(name for name in numbered if name not in taken)
    return bool(nameless)

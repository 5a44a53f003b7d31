"""Models made ready for quantization: simplified, and with the shapes of all their values."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import onnx_ir as ir
from onnx import ModelProto

from sardonyx.graph.load import LoadedModel, load_model
from sardonyx.graph.saving import save_model, to_message
from sardonyx.ops.framework.inference import infer_model
from sardonyx.passes.base import Level
from sardonyx.quantization.job import PRE_PROCESSED
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.transformers import rewriting
from sardonyx.transformers.large_weights import load_proto, write_model

logger = logging.getLogger(__name__)


def quant_pre_process(
    input_model: str | os.PathLike[str] | ModelProto | None = None,
    output_model_path: str | os.PathLike[str] | None = None,
    skip_optimization: bool = False,
    skip_onnx_shape: bool = False,
    skip_symbolic_shape: bool = False,
    auto_merge: bool = False,
    int_max: int = 2**31 - 1,
    guess_output_rank: bool = False,
    verbose: int = 0,
    save_as_external_data: bool = False,
    all_tensors_to_one_file: bool = False,
    external_data_location: str | None = None,
    external_data_size_threshold: int = 1024,
    **deprecated_kwargs: object,
) -> None:
    """Write a model with constants folded, redundant nodes taken out and BatchNormalization part of the convolution
    before it, so that fewer and simpler nodes are quantised, and with the shapes of its values.

    - `input_model` is a path (once called `input_model_path`), or a message with its weights; of any size.
    - `skip_optimization` leaves the nodes as they are. The shapes of all operators, those of com.microsoft included,
      come from one inference, which is left out where both `skip_onnx_shape` and `skip_symbolic_shape` say so.
      `auto_merge`, `int_max` and `guess_output_rank` have no effect: nothing is guessed.
    - `verbose` above 0 lists the values whose rank is not known.
    - `save_as_external_data` puts weights of `external_data_size_threshold` bytes and more into files beside the
      model: one for each, or with `all_tensors_to_one_file` (or the name of it, `external_data_location`) one for all.
      A model of more than 2 GB gets such a file in any case.

    The model imports no operators that it does not use. `errors.InvalidArgument`, also a ValueError, where a path is
    missing; the errors of loading a model; `errors.Fail` where a file cannot be written, of which no part is left then.
    """
    source = deprecated_kwargs.pop("input_model_path", None) if input_model is None else input_model
    if deprecated_kwargs:
        raise TypeError(f"quant_pre_process() has no argument {next(iter(deprecated_kwargs))!r}")
    if source is None:
        raise InvalidQuantization("quant_pre_process needs input_model: the path of a model, or a ModelProto")
    if output_model_path is None:
        raise InvalidQuantization("quant_pre_process needs output_model_path: the path of the file to write")
    if not isinstance(source, str | os.PathLike | ModelProto):
        raise InvalidQuantization(f"input_model must be a path or a ModelProto, not {type(source).__name__}")
    loaded = load_proto(source) if isinstance(source, ModelProto) else load_model(os.fspath(source))
    if not skip_optimization:
        rewriting.at_level(loaded, Level.BASIC)
    if not (skip_onnx_shape and skip_symbolic_shape):
        infer_shapes(loaded, verbose)
    leave_out_imports(loaded.model)
    loaded.model.metadata_props.setdefault(*PRE_PROCESSED)
    write_prepared(
        loaded.model,
        output_model_path,
        save_as_external_data,
        all_tensors_to_one_file,
        external_data_location,
        external_data_size_threshold,
    )


def write_prepared(
    model: ir.Model,
    path: str | os.PathLike[str],
    external: bool,
    all_tensors_to_one_file: bool,
    external_data_location: str | None,
    least: int,
    attributes: bool = False,
) -> None:
    """Write a model as `quant_pre_process` says; with `attributes`, weights in those lie outside the model as well."""
    usual = f"{Path(path).name}.data"
    one_file = all_tensors_to_one_file or external_data_location is not None
    if external and (attributes or not one_file):
        if one_file and external_data_location not in (None, usual):
            raise InvalidQuantization(
                f"external_data_location: weights in attributes go to '{usual}' or to files of their own, not to "
                f"'{external_data_location}'; leave it or external_data_convert_attribute out"
            )
        write_model(to_message(model), path, True, one_file=one_file, least=least, attributes=attributes)
        return
    save_model(model, path, (external_data_location or usual) if external else None, least)


def infer_shapes(loaded: LoadedModel, verbose: int = 0) -> None:
    """Write the types and shapes of all values into a model."""
    inference = infer_model(loaded.model)
    values = [value for node in loaded.model.graph for value in node.outputs]
    for value in values:
        fact = inference.fact(value)
        if fact is not None and isinstance(fact.type, ir.TensorType):
            value.type = fact.type
            value.shape = None if fact.shape is None else ir.Shape(fact.shape)
    unknown = [value.name for value in values if value.name and value.shape is None]
    if verbose > 0 and unknown:
        logger.warning("The rank of %d values is not known: %s", len(unknown), unknown[:20])


def leave_out_imports(model: ir.Model) -> None:
    """Leave out operator sets other than ONNX's own that no node takes an operator from."""
    used = {node.domain for node in ir.traversal.RecursiveGraphIterator(model.graph)} | {""}
    for domain in [domain for domain in model.opset_imports if domain not in used]:
        del model.opset_imports[domain]

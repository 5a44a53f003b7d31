"""``python -m sardonyx.transformers.optimizer``: write a transformer model with fused operators.

The rules are those by which sessions rewrite what they run (`sardonyx.passes`). A saved model has the operators of
com.microsoft that onnxruntime fuses such models to, and runs there, too.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import onnx
from onnx import ModelProto

from sardonyx import errors
from sardonyx._version import __version__
from sardonyx.graph.load import LoadedModel, load_model
from sardonyx.graph.saving import save_model
from sardonyx.passes.base import Level
from sardonyx.transformers import rewriting
from sardonyx.transformers.fusion_options import FusionOptions
from sardonyx.transformers.large_weights import load_proto
from sardonyx.transformers.onnx_model import OnnxModel
from sardonyx.transformers.onnx_model_bart import BartOnnxModel
from sardonyx.transformers.onnx_model_bert import BertOnnxModel
from sardonyx.transformers.onnx_model_bert_keras import BertOnnxModelKeras
from sardonyx.transformers.onnx_model_bert_tf import BertOnnxModelTF
from sardonyx.transformers.onnx_model_clip import ClipOnnxModel
from sardonyx.transformers.onnx_model_conformer import ConformerOnnxModel
from sardonyx.transformers.onnx_model_gpt2 import Gpt2OnnxModel
from sardonyx.transformers.onnx_model_mmdit import MmditOnnxModel
from sardonyx.transformers.onnx_model_phi import PhiOnnxModel
from sardonyx.transformers.onnx_model_sam2 import Sam2OnnxModel
from sardonyx.transformers.onnx_model_t5 import T5OnnxModel
from sardonyx.transformers.onnx_model_tnlr import TnlrOnnxModel
from sardonyx.transformers.onnx_model_unet import UnetOnnxModel
from sardonyx.transformers.onnx_model_vae import VaeOnnxModel

Model: TypeAlias = str | os.PathLike[str] | ModelProto

logger = logging.getLogger(__name__)

# Of each kind of model: its class, the tool that exports it, and the level at which it is optimised by default.
MODEL_TYPES: dict[str, tuple[type[BertOnnxModel], str, int]] = {
    "bart": (BartOnnxModel, "pytorch", 1),
    "bert": (BertOnnxModel, "pytorch", 1),
    "bert_tf": (BertOnnxModelTF, "tf2onnx", 0),
    "bert_keras": (BertOnnxModelKeras, "keras2onnx", 0),
    "clip": (ClipOnnxModel, "pytorch", 1),
    "conformer": (ConformerOnnxModel, "pytorch", 1),
    "gpt2": (Gpt2OnnxModel, "pytorch", 1),
    "gpt2_tf": (Gpt2OnnxModel, "tf2onnx", 0),
    "gpt_neox": (BertOnnxModel, "pytorch", 0),
    "phi": (PhiOnnxModel, "pytorch", 0),
    "qwen3": (Gpt2OnnxModel, "pytorch", 0),
    "sam2": (Sam2OnnxModel, "pytorch", 1),
    "swin": (BertOnnxModel, "pytorch", 1),
    "tnlr": (TnlrOnnxModel, "pytorch", 1),
    "t5": (T5OnnxModel, "pytorch", 2),
    "unet": (UnetOnnxModel, "pytorch", 1),
    "vae": (VaeOnnxModel, "pytorch", 1),
    "vit": (BertOnnxModel, "pytorch", 1),
    "mmdit": (MmditOnnxModel, "pytorch", 1),
}

_LEVELS = (0, 1, 2, 3, 99)


def optimize_model(
    input: Model,
    model_type: str = "bert",
    num_heads: int = 0,
    hidden_size: int = 0,
    optimization_options: FusionOptions | None = None,
    opt_level: int | None = None,
    use_gpu: bool = False,
    only_onnxruntime: bool = False,
    verbose: bool = False,
    *,
    provider: str | None = None,
) -> OnnxModel:
    """The model, given as a message or as a path, with fused operators.

    - `model_type` chooses the class of the result and the defaults of `optimization_options`; a model of another type
      comes back as it is, with a warning.
    - `num_heads` and `hidden_size` of attention are found in the graph, whatever is given.
    - `opt_level` 0 and 1 simplify and fuse, 2, 3 and 99 add what a session of that level does to quantised models;
      None is the default of the type. With `only_onnxruntime` the model is rewritten as a session of that level does,
      and nothing else is fused.
    - `use_gpu` and `provider` change nothing: the rules hold for every provider.

    ValueError for another level, `errors.OnnxRuntimeError` for a model that is wrong in itself.
    """
    _check_level(opt_level, (None, *_LEVELS))
    if verbose:
        logging.getLogger("sardonyx.transformers").setLevel(logging.DEBUG)
    if model_type not in MODEL_TYPES:
        logger.warning("Unsupported model type: %s for optimization, directly return model.", model_type)
        return OnnxModel(input if isinstance(input, ModelProto) else onnx.load(os.fspath(input)))
    level = Level(MODEL_TYPES[model_type][2] if opt_level is None else opt_level)
    if only_onnxruntime and level == Level.DISABLED:
        logger.warning("Please specify a positive value for opt_level when only_onnxruntime is True")
    _note_device(use_gpu, provider)
    loaded = _loaded(input)
    if only_onnxruntime:
        rewriting.at_level(loaded, level)
        return MODEL_TYPES[model_type][0](rewriting.message(loaded), num_heads, hidden_size)
    return _fused(loaded, model_type, num_heads, hidden_size, optimization_options, level)


def optimize_by_fusion(
    model: ModelProto,
    model_type: str = "bert",
    num_heads: int = 0,
    hidden_size: int = 0,
    optimization_options: FusionOptions | None = None,
) -> OnnxModel:
    """The model with fused operators, see `optimize_model`; the message itself stays as it is."""
    if model_type not in MODEL_TYPES:
        logger.warning("Unsupported model type: %s for graph fusion, directly return model.", model_type)
        return OnnxModel(model)
    return _fused(load_proto(model), model_type, num_heads, hidden_size, optimization_options, Level.DISABLED)


def optimize_by_onnxruntime(
    onnx_model: Model | None = None,
    use_gpu: bool = False,
    optimized_model_path: str | None = None,
    opt_level: int | None = 99,
    disabled_optimizers: Collection[str] = (),
    verbose: bool = False,
    save_as_external_data: bool = False,
    external_data_filename: str = "",
    external_data_file_threshold: int = 1024,
    *,
    provider: str | None = None,
    **deprecated_kwargs: Any,
) -> str:
    """Write the model as a session of a level (1, 2, 3 or 99) rewrites it; the path of the file.

    By default that is ``<name>_o<level>_cpu.onnx`` beside the model, or ``optimized_model_o…`` in the working directory
    for a message. With `save_as_external_data` weights of `external_data_file_threshold` bytes and more go to
    `external_data_filename`, by default the name of the model with ``.data`` behind it. ValueError for another level.
    """
    source = deprecated_kwargs.pop("onnx_model_path", None) if onnx_model is None else onnx_model
    if source is None:
        raise ValueError("optimize_by_onnxruntime needs onnx_model: a ModelProto, or the path of a model")
    _check_level(opt_level, _LEVELS[1:])
    if verbose:
        logging.getLogger("sardonyx.transformers").setLevel(logging.DEBUG)
    _note_device(use_gpu, provider)
    if optimized_model_path is None:
        prefix = "optimized_model" if isinstance(source, ModelProto) else str(Path(source).with_suffix(""))
        optimized_model_path = f"{prefix}_o{opt_level}_{'gpu' if use_gpu else 'cpu'}.onnx"
    loaded = _loaded(source)
    rewriting.at_level(loaded, Level(opt_level or 0), disabled_optimizers)
    external = external_data_filename or f"{os.path.basename(optimized_model_path)}.data"
    save_model(
        loaded.model,
        optimized_model_path,
        external if save_as_external_data else None,
        external_data_file_threshold,
    )
    return optimized_model_path


def get_fusion_statistics(optimized_model_path: str | os.PathLike[str]) -> dict[str, int]:
    """How many nodes of each fused operator the model in a file has."""
    return BertOnnxModel(
        onnx.load(os.fspath(optimized_model_path), load_external_data=False)
    ).get_fused_operator_statistics()


def _check_level(level: int | None, known: Collection[int | None]) -> None:
    if level not in known:
        names = ", ".join(str(item) for item in known)
        raise ValueError(f"opt_level={level}: choose one of {names}")


def _note_device(use_gpu: bool, provider: str | None) -> None:
    if use_gpu or provider is not None:
        logger.info("The rules hold for every provider: use_gpu and provider change nothing")


def _loaded(source: Model) -> LoadedModel:
    return load_proto(source) if isinstance(source, ModelProto) else load_model(os.fspath(source))


def _fused(
    loaded: LoadedModel,
    model_type: str,
    num_heads: int,
    hidden_size: int,
    options: FusionOptions | None,
    level: Level,
) -> BertOnnxModel:
    cls, producer, _ = MODEL_TYPES[model_type]
    found = loaded.model.producer_name
    if found and found != producer:
        logger.warning(
            'Model producer not matched: Expected "%s", Got "%s". Please specify correct --model_type parameter.',
            producer,
            found,
        )
    optimizer = cls(ModelProto(), num_heads, hidden_size)
    optimizer.optimize_loaded(loaded, options or FusionOptions(model_type), level)
    optimizer.model.producer_name = "sardonyx.transformers"
    optimizer.model.producer_version = __version__
    return optimizer


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Write a transformer model with fused operators.")
    parser.add_argument("--input", required=True, help="model to read")
    parser.add_argument("--output", required=True, help="model to write")
    parser.add_argument(
        "--model_type",
        type=str.lower,
        default="bert",
        choices=list(MODEL_TYPES),
        help=f"kind of model: {', '.join(MODEL_TYPES)}",
    )
    parser.add_argument("--num_heads", type=int, default=0, help="heads of attention; 0 finds them in the graph")
    parser.add_argument("--hidden_size", type=int, default=0, help="width of attention; 0 finds it in the graph")
    parser.add_argument("--input_int32", action="store_true", help="make inputs of int64 such of int32")
    parser.add_argument(
        "--float16", action="store_true", help="make the model one of float16, inputs and outputs apart"
    )
    FusionOptions.add_arguments(parser)
    parser.add_argument("--verbose", action="store_true", help="tell what was left alone, and why")
    parser.add_argument("--use_gpu", action="store_true", help="accepted: the rules hold for every provider")
    parser.add_argument("--provider", help="accepted: the rules hold for every provider")
    parser.add_argument("--only_onnxruntime", action="store_true", help="rewrite as a session of opt_level does, only")
    parser.add_argument("--opt_level", type=int, choices=_LEVELS, help="level; by default that of the kind of model")
    parser.add_argument("--use_external_data_format", action="store_true", help="write weights to a file of their own")
    parser.add_argument("--disable_symbolic_shape_infer", action="store_true", help="for --convert_to_packing_mode")
    parser.add_argument("--convert_to_packing_mode", action="store_true", help="refused: for GPUs alone")
    parser.add_argument("--convert_attribute", action="store_true", help="write tensors in attributes there, too")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    args = _arguments(arguments)
    logging.basicConfig(format="%(funcName)20s: %(message)s", level=logging.DEBUG if args.verbose else logging.INFO)
    if os.path.realpath(args.input) == os.path.realpath(args.output):
        logger.warning("Specified the same input and output path. Note that this may overwrite the original model")
    optimizer = optimize_model(
        args.input,
        args.model_type,
        args.num_heads,
        args.hidden_size,
        FusionOptions.parse(args),
        args.opt_level,
        args.use_gpu,
        args.only_onnxruntime,
        provider=args.provider,
    )
    if not isinstance(optimizer, BertOnnxModel):
        raise errors.InvalidArgument(f"model type {args.model_type} has no class of fused models")
    if args.float16:
        optimizer.convert_float_to_float16(keep_io_types=True)
    if args.input_int32:
        optimizer.change_graph_inputs_to_int32()
    optimizer.get_operator_statistics()
    counts = optimizer.get_fused_operator_statistics()
    full = "bert" in args.model_type and optimizer.is_fully_optimized(counts)
    logger.info("The model has been %soptimized.", "fully " if full else "")
    if args.convert_to_packing_mode:
        optimizer.convert_to_packing_mode(not args.disable_symbolic_shape_infer)
    optimizer.save_model_to_file(args.output, args.use_external_data_format, convert_attribute=args.convert_attribute)


if __name__ == "__main__":
    main()

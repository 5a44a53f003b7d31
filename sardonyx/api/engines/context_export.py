"""Compiled models in ONNX: one EPContext node, which carries an engine or names the file that holds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper

from sardonyx import errors
from sardonyx._version import __version__
from sardonyx.api.options.config_keys import is_on
from sardonyx.api.options.ep_context import OrtEpContextData
from sardonyx.graph.context_model import DOMAIN, OPERATOR, SOURCE
from sardonyx.runtime.files.opening import READABLE, open_private, replacing, scratch_folder
from sardonyx.runtime.files.own_files import ENGINE

if TYPE_CHECKING:
    from sardonyx import log
    from sardonyx.api.building.model_loading import Source
    from sardonyx.api.options.session_options import SessionOptions

ENABLE = "ep.context_enable"
PATH = "ep.context_file_path"
EMBED = "ep.context_embed_mode"
PREFIX = "ep.context_node_name_prefix"

_IR_VERSION, _OPSET = 9, 17
_LARGEST_MESSAGE = 2**31 - 1

# What takes the name of an engine beside a model, and its bytes.
Write = Callable[[str, OrtEpContextData], None]


def path_of(source: Source, options: SessionOptions) -> Path:
    """Where the options want a compiled model: at their path, or beside the model.

    The errors are those of onnxruntime: InvalidArgument for no place or a folder, `Fail` for a file that is there.
    """
    named = options._config.get(PATH, "")
    if not named and not isinstance(source, str):
        raise errors.InvalidArgument("Both ep_context_path and model_path are empty.")
    path = Path(named) if named else default_path(Path(str(source)))
    if path.is_dir():
        raise errors.InvalidArgument("context_file_path should not point to a folder.")
    if path.exists():
        raise errors.Fail(
            f"Failed to generate EP context model since the file '\"{path}\"' exists already. Please remove the EP "
            "context model if you want to re-generate it."
        )
    return path


def default_path(model: Path) -> Path:
    """Beside a model, under the name that onnxruntime gives to what was compiled of it."""
    return model.with_name(f"{model.stem}_ctx.onnx")


def export(source: Source, options: SessionOptions, path: Path, write: Write | None = None) -> None:
    """Compile a model to an ONNX file; its engine lies inside or beside that, or goes to `write`.

    The errors of `compile_engine`, and `Fail` where the result is larger than a model file can be.
    """
    engine = path.with_name(f"{path.stem}{ENGINE}")
    embeds = is_on(options._config, EMBED)
    try:
        if not embeds and write is None:
            _write_model(path, _compiled_to(source, options, engine), options, engine.name.encode(), embeds)
            return
        with scratch_folder(path.parent) as folder:
            draft = Path(folder) / engine.name
            content = _compiled_to(source, options, draft)
            with open_private(draft) as file:
                data = file.read()
        if embeds or write is None:
            _write_model(path, content, options, data, embeds)
        else:
            write(engine.name, OrtEpContextData(data))
            _write_model(path, content, options, engine.name.encode(), embeds)
    except OSError as error:
        raise errors.Fail(f"the compiled model {path} cannot be written: {error.strerror or error}") from error


def export_if_asked(source: Source, options: SessionOptions, logger: log.Logger) -> None:
    """Write the compiled model of a session whose options ask for one; nothing, as from onnxruntime where no provider
    compiles, for a model that cannot be compiled ahead."""
    if not is_on(options._config, ENABLE):
        return
    from sardonyx.api.engines.engine_compiler import NotCompilableError

    path = path_of(source, options)
    try:
        export(source, options, path)
    except NotCompilableError as error:
        logger.warning(f"no compiled model is written to {path}: {error.message}", "engine")


def _compiled_to(source: Source, options: SessionOptions, engine: Path) -> Mapping[str, Any]:
    from sardonyx.api.engines.engine_compiler import compile_engine

    return compile_engine(source, engine, options).content


def _write_model(path: Path, content: Mapping[str, Any], options: SessionOptions, carried: bytes, embeds: bool) -> None:
    """The model of one node; `content` describes the engine."""
    if len(carried) > _LARGEST_MESSAGE - (1 << 20):
        raise errors.Fail(
            f"the engine takes {len(carried)} bytes, more than a model file can hold: set {EMBED} to 0, so that it "
            "gets a file of its own"
        )
    signature = content["signature"]
    name = signature["metadata"]["graph_name"] or "model"
    prefix = options._config.get(PREFIX, "")
    inputs, outputs = ([_value_info(*one) for one in signature[group]] for group in ("inputs", "outputs"))
    node = helper.make_node(
        OPERATOR,
        [value.name for value in inputs],
        [value.name for value in outputs],
        name=f"{prefix}{SOURCE}_{name}_0",
        domain=DOMAIN,
        main_context=1,
        embed_mode=int(embeds),
        ep_sdk_version=__version__,
        hardware_architecture=content["machine"],
        partition_name=f"{SOURCE}_{name}_0",
        source=SOURCE,
        ep_cache_context=carried,
    )
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(
        helper.make_graph([node], name, inputs, outputs), opset_imports=opsets, ir_version=_IR_VERSION
    )
    metadata = signature["metadata"]
    model.producer_name, model.domain = metadata["producer_name"], metadata["domain"]
    model.doc_string, model.graph.doc_string = metadata["description"], metadata["graph_description"]
    helper.set_model_props(model, dict(metadata["custom_metadata_map"]))
    with replacing(path, READABLE) as file:
        file.write(model.SerializeToString())


def _value_info(name: str, kind: Sequence[Any], dims: Any) -> onnx.ValueInfoProto:
    return helper.make_value_info(name, _type_proto(kind, dims))


def _type_proto(kind: Sequence[Any], dims: Any) -> onnx.TypeProto:
    """The type that a signature describes; the dimensions are those of the tensor in it."""
    form, _, dtype, item, key = kind
    if form == "tensor":
        return helper.make_tensor_type_proto(_element_type(dtype), dims)
    if form == "sparse_tensor":
        return helper.make_sparse_tensor_type_proto(_element_type(dtype), dims)
    if form == "map":
        return helper.make_map_type_proto(_element_type(key), _type_proto(item, dims))
    inner = _type_proto(item, dims)
    return helper.make_sequence_type_proto(inner) if form == "sequence" else helper.make_optional_type_proto(inner)


def _element_type(dtype: str) -> int:
    kind = np.dtype(dtype)
    return int(onnx.TensorProto.STRING if kind.hasobject else helper.np_dtype_to_tensor_dtype(kind))

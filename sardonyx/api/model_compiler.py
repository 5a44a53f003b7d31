"""Compile a model ahead of time.

As from onnxruntime without a provider that compiles, the model comes out checked, and as it was. Where the session
options ask for a compiled one (`ep.context_enable`), it is a model of one node, which carries an engine.
"""

from __future__ import annotations

import operator
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from sardonyx import errors
from sardonyx.api.arguments import wrong_argument
from sardonyx.api.device_enums import OrtCompileApiFlags
from sardonyx.api.engines.context_export import EMBED, ENABLE, default_path, export
from sardonyx.api.enums import GraphOptimizationLevel
from sardonyx.api.options.config_keys import is_on
from sardonyx.api.options.environment import global_thread_pool_sizes
from sardonyx.api.options.ep_context import OrtEpContextData, OrtExternalInitializerInfo
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.api.values.core_value import CoreValue
from sardonyx.api.values.ort_value import OrtValue
from sardonyx.runtime.files.opening import open_private, replacing

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

Locate = Callable[[str, OrtValue, OrtExternalInitializerInfo | None], OrtExternalInitializerInfo | None]
PathText = str | os.PathLike[str]

_NOTHING_COMPILED = (
    "Unable to compile any nodes. Check that the session EPs support compilation and can execute at least one subgraph "
    "in the model."
)

# Messages of protocol buffers end at 2 GiB.
_LARGEST_MESSAGE = 2**31 - 1


class ModelCompiler:
    """Write a model as sessions load it at once, if its options have `ep.context_enable`; else as it is."""

    def __init__(
        self,
        sess_options: SessionOptions,
        input_model_path_or_bytes: PathText | bytes,
        embed_compiled_data_into_model: bool = False,
        external_initializers_file_path: PathText | None = None,
        external_initializers_size_threshold: int = 1024,
        flags: int | OrtCompileApiFlags = OrtCompileApiFlags.NONE,
        graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_DISABLE_ALL,
        get_initializer_location_func: Locate | None = None,
    ) -> None:
        """Prepare the compilation of a file or of a serialised model.

        Initializers larger than the threshold go to `external_initializers_file_path` (relative to the output model),
        or where `get_initializer_location_func(name, value, place)` has put them; it returns None for one that stays in
        the model. `place` is where an initializer of the input lies outside of it, None for others.
        """
        if not isinstance(sess_options, SessionOptions):
            raise wrong_argument("ModelCompiler", "SessionOptions", sess_options)
        if external_initializers_file_path and get_initializer_location_func:
            raise ValueError(
                "Cannot initialize ModelCompiler with both `external_initializers_file_path` and "
                "`get_initializer_location_func`"
            )
        self._input = _input(input_model_path_or_bytes)
        self._options = sess_options._copy()
        self._compiled_options = self._options._copy()
        if graph_optimization_level != GraphOptimizationLevel.ORT_DISABLE_ALL:
            self._compiled_options.graph_optimization_level = graph_optimization_level
        self._compiled_options._config[EMBED] = "1" if embed_compiled_data_into_model else "0"
        self._compiles = is_on(self._options._config, ENABLE)
        self._options._config.pop(ENABLE, None)
        self._options.graph_optimization_level = graph_optimization_level
        self._write: Callable[[str, OrtEpContextData], None] | None = None
        self._external_path = os.fspath(external_initializers_file_path) if external_initializers_file_path else None
        self._threshold = operator.index(external_initializers_size_threshold)
        self._flags = OrtCompileApiFlags(int(flags))
        self._locate = get_initializer_location_func

    def set_ep_context_data_write_func(self, write_func: Callable[[str, OrtEpContextData], None]) -> None:
        """Let `write_func(name, data)` take the engine that a compiled model names, in place of a file beside it."""
        if not callable(write_func):
            raise RuntimeError("EPContext data write callback must not be None.")
        self._write = write_func

    def clear_ep_context_data_write_func(self) -> None:
        """Let engines be files again."""
        self._write = None

    def compile_to_file(self, output_model_path: PathText | None = None) -> None:
        """Write the model to a file; without a path to ``<model>_ctx.onnx`` beside the input."""
        if output_model_path is None:
            if isinstance(self._input, bytes):
                raise errors.InvalidArgument("Output model path must not be empty: the input has no path of its own.")
            output_model_path = self._input.with_name(f"{self._input.stem}_ctx.onnx")
        path = os.fspath(output_model_path)
        if not path:
            raise errors.InvalidArgument("Output model path must not be empty.")
        if OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS in self._flags and os.path.exists(path):
            raise errors.Fail(
                f"Failed to generate EP context model since the file '{path}' exists already. Please remove the EP "
                "context model if you want to re-generate it."
            )
        if self._compiles and not Path(path).parent.is_dir():
            raise errors.InvalidArgument(f'open file "{path}" failed: No such file or directory')
        if self._compiles and self._export(Path(path)):
            return
        content = self._compile(Path(path).parent)
        try:
            with replacing(path) as file:
                file.write(content)
        except OSError as error:
            raise errors.InvalidArgument(f'open file "{path}" failed: {error.strerror}') from error

    def compile_to_bytes(self) -> bytes:
        """The model as bytes.

        A compiled one carries its engine inside or hands it to the function for that; InvalidArgument for neither.
        """
        if not self._compiles:
            return self._compile(Path())
        if self._write is None and not is_on(self._compiled_options._config, EMBED):
            raise errors.InvalidArgument(
                "a compiled model in bytes has no place for its engine: set embed_compiled_data_into_model, or a "
                "function with set_ep_context_data_write_func"
            )
        with tempfile.TemporaryDirectory() as folder:
            path = default_path(self._input if isinstance(self._input, Path) else Path("model.onnx"))
            path = Path(folder) / path.name
            if not self._export(path):
                return self._compile(Path())
            with open_private(path) as file:
                return file.read()

    def compile_to_stream(self, write_function: Callable[[bytes], None]) -> None:
        """Hand the model's bytes to a function; `Fail` where it raises."""
        if not callable(write_function):
            raise wrong_argument("compile_to_stream", "a function that takes bytes", write_function)
        _call("the function of compile_to_stream", write_function, self.compile_to_bytes())

    def _export(self, path: Path) -> bool:
        """Write the compiled model; whether the model can be compiled ahead."""
        from sardonyx.api.engines.engine_compiler import NotCompilableError

        self._check_input()
        try:
            export(self._source, self._compiled_options, path, self._write)
        except NotCompilableError as error:
            if OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED in self._flags:
                raise errors.Fail(f"{_NOTHING_COMPILED} {error.message}") from error
            return False
        return True

    @property
    def _source(self) -> str | bytes:
        return self._input if isinstance(self._input, bytes) else str(self._input)

    def _check_input(self) -> None:
        if isinstance(self._input, Path) and not self._input.exists():
            raise errors.InvalidArgument(f'Input model path does not exist: "{self._input}"')

    def _compile(self, folder: Path) -> bytes:
        """The serialised output, its external file written into `folder`."""
        from sardonyx.api.session import InferenceSession

        self._check_input()
        with tempfile.TemporaryDirectory() as scratch:
            optimized = Path(scratch) / "model.onnx"
            if self._options.graph_optimization_level != GraphOptimizationLevel.ORT_DISABLE_ALL:
                self._options.optimized_model_filepath = str(optimized)
            self._options.use_per_session_threads = global_thread_pool_sizes() is None
            InferenceSession(self._source, self._options)
            if OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED in self._flags:
                raise errors.Fail(_NOTHING_COMPILED)
            model = _load(optimized if optimized.exists() else self._input)
        self._externalize(model, folder)
        if model.ByteSize() > _LARGEST_MESSAGE:
            raise errors.Fail(
                f"The model takes {model.ByteSize()} bytes, more than a model file can hold. Give "
                "external_initializers_file_path so that its weights go to a file of their own."
            )
        serialized: bytes = model.SerializeToString()
        return serialized

    def _externalize(self, model: ModelProto, folder: Path) -> None:
        """Move large initializers out of `model`."""
        if self._locate is not None:
            places = _places(self._input, model)
            for tensor in model.graph.initializer:
                value = OrtValue(CoreValue(onnx.numpy_helper.to_array(tensor)))
                what = f"get_initializer_location_func for {tensor.name!r}"
                place = _call(what, self._locate, tensor.name, value, places.get(tensor.name))
                if place is None:
                    continue
                if not isinstance(place, OrtExternalInitializerInfo):
                    raise errors.Fail(f"{what} gave {place!r}, which is neither an OrtExternalInitializerInfo nor None")
                _point_to(tensor, place)
        elif self._external_path is not None:
            if os.path.isabs(self._external_path):
                raise errors.Fail(
                    "external_file_path.is_relative() was false: external_initializers_file_path is relative to the "
                    f"output model, not {self._external_path}"
                )
            large = [tensor for tensor in model.graph.initializer if len(_bytes(tensor)) > self._threshold]
            if not large:
                return
            with replacing(folder / self._external_path) as file:
                for tensor in large:
                    content = _bytes(tensor)
                    place = OrtExternalInitializerInfo(self._external_path, file.tell(), len(content))
                    file.write(content)
                    _point_to(tensor, place)


def make_get_initializer_location_func_wrapper(locate: Locate) -> Locate:
    """The function as the compiler calls it: here the caller's own."""
    return locate


def _input(source: PathText | bytes) -> Path | bytes:
    if isinstance(source, bytes):
        if not source:
            raise ValueError("Input model bytes array is empty")
        return source
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"Unable to load from type '{type(source)}'")
    if not os.fspath(source):
        raise ValueError("Input model path is empty")
    return Path(source)


def _load(source: Path | bytes) -> ModelProto:
    """The model with all its weights inside; `Fail` where onnx does not take where they lie."""
    try:
        return onnx.load_model_from_string(source) if isinstance(source, bytes) else onnx.load_model(str(source))
    except (onnx.checker.ValidationError, OSError) as error:
        raise errors.Fail(f"Load model from {source!r} failed: {error}") from error


def _call(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a caller's function gives; `Fail`, with its error's words, where it raises."""
    try:
        return function(*arguments)
    except Exception as error:  # whatever a caller's function raises
        raise errors.Fail(f"{type(error).__name__}: {error}\n(raised by {what})") from error


def _places(source: Path | bytes, output: ModelProto) -> dict[str, OrtExternalInitializerInfo]:
    """Where the initializers of `output` lie that are external in the model `source` and the same there."""
    if isinstance(source, bytes):
        return {}
    original = onnx.load_model(str(source), load_external_data=False)
    entries = {
        tensor.name: {entry.key: entry.value for entry in tensor.external_data}
        for tensor in original.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    }
    if not entries:
        return {}
    contents = {tensor.name: _bytes(tensor) for tensor in output.graph.initializer if tensor.name in entries}
    return {
        tensor.name: OrtExternalInitializerInfo(
            entries[tensor.name]["location"],
            int(entries[tensor.name].get("offset", "0")),
            len(contents[tensor.name]),
        )
        for tensor in _load(source).graph.initializer
        if tensor.name in contents and _bytes(tensor) == contents[tensor.name]
    }


def _bytes(tensor: TensorProto) -> bytes:
    """A tensor's bytes as an external file holds them; none for texts, which stay in the model."""
    if tensor.data_type == onnx.TensorProto.STRING:
        return b""
    if not tensor.HasField("raw_data"):
        tensor = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor))
    return tensor.raw_data  # type: ignore[no-any-return]


def _point_to(tensor: TensorProto, place: OrtExternalInitializerInfo) -> None:
    """Let a tensor's bytes be those at `place`."""
    shape, kind, name = list(tensor.dims), tensor.data_type, tensor.name
    tensor.Clear()
    tensor.dims.extend(shape)
    tensor.data_type, tensor.name = kind, name
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", place.filepath), ("offset", place.file_offset), ("length", place.byte_size)):
        tensor.external_data.add(key=key, value=str(value))

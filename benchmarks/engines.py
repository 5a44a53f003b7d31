"""The engines that the benchmarks compare, each behind the same two calls: load, then run.

`load` gives a function from named arrays to the list of outputs. Engines are imported when first used, so that
one that is not installed costs the others nothing.
"""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.zoo import registry

Inputs = Mapping[str, np.ndarray]
Run = Callable[[Inputs], list[np.ndarray]]


class UnsupportedError(Exception):
    """This engine is not installed, or cannot take this model."""


class Engine(Protocol):
    def load(self, model: registry.Model, path: Path, threads: int, static: bool) -> Run:
        """Make a session of the ONNX file `path` with `threads` threads.

        `static` fixes the symbolic dimensions to the model's usual sizes while the session is made.
        """

    def warm_import(self) -> str:
        """Import what the engine needs and return its version."""


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UnsupportedError(f"{module} is not installed ({error})") from error


@dataclass(frozen=True)
class OnnxRuntime:
    """onnxruntime, or a module with its API, with session config entries and without some rewrites."""

    module: str = "onnxruntime"
    config: Mapping[str, str] = field(default_factory=dict)
    disabled_optimizers: Sequence[str] = ()

    def warm_import(self) -> str:
        return self.module_itself().__version__

    def module_itself(self) -> Any:
        """The module, imported."""
        return _import(self.module)

    def options(self, threads: int) -> Any:
        """Session options with the config entries."""
        options = self.module_itself().SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors: a warning in every run would be timed as well
        for name, value in self.config.items():
            options.add_session_config_entry(name, value)
        return options

    def session(
        self, path: Path | str | bytes, threads: int, fixed: Mapping[str, int] | None = None, profile: str = ""
    ) -> Any:
        """A session; `fixed` gives symbolic dimensions their sizes, `profile` is the beginning of a profile's name."""
        options = self.options(threads)
        if profile:
            options.enable_profiling = True
            options.profile_file_prefix = profile
        for name, size in (fixed or {}).items():
            options.add_free_dimension_override_by_name(name, size)
        model = path if isinstance(path, bytes) else str(path)
        return self.module_itself().InferenceSession(
            model, options, providers=["CPUExecutionProvider"], disabled_optimizers=list(self.disabled_optimizers)
        )

    def load(self, model: registry.Model, path: Path, threads: int, static: bool) -> Run:
        fixed: dict[str, int] = {}
        if static:
            for tensor in model.inputs:
                sized = tensor.sized(model.sizes)
                fixed |= {name: sized[axis] for axis, name in tensor.symbolic_axes().items()}
        session = self.session(path, threads, fixed)
        return lambda inputs: session.run(None, dict(inputs))


@dataclass(frozen=True)
class CompiledAhead(OnnxRuntime):
    """Our engine with files that were compiled of the models, as `sardonyx compile` does, for their usual sizes."""

    def compiled(self, model: registry.Model, path: Path, threads: int, folder: Path) -> Path:
        """The file for `threads` threads, which is made in `folder`."""
        from sardonyx.api.engines.engine_compiler import compile_engine

        target = folder / f"{model.name}.engine"
        compile_engine(str(path), target, self.options(threads), None, dict(model.sizes))
        return target

    def load(self, model: registry.Model, path: Path, threads: int, static: bool) -> Run:
        """As ever; an ONNX file is compiled first. `static` says nothing more than the compiled sizes."""
        if path.suffix == ".engine":
            return super().load(model, path, threads, False)
        with tempfile.TemporaryDirectory() as folder:
            return super().load(model, self.compiled(model, path, threads, Path(folder)), threads, False)


@dataclass(frozen=True)
class OpenVino:
    """OpenVINO's CPU plugin with the latency hint; `precision` is the arithmetic that it may use for float32."""

    precision: str

    def warm_import(self) -> str:
        return _import("openvino").__version__

    def request(self, path: Path, threads: int, fixed: Mapping[str, Sequence[int]] | None = None) -> Any:
        """An inference request; `fixed` gives inputs their shapes."""
        openvino = _import("openvino")
        core = openvino.Core()
        graph = core.read_model(path)
        if fixed:
            graph.reshape(dict(fixed))
        settings = {
            "INFERENCE_PRECISION_HINT": self.precision,
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
        }
        return core.compile_model(graph, "CPU", settings).create_infer_request()

    def load(self, model: registry.Model, path: Path, threads: int, static: bool) -> Run:
        fixed = {tensor.name: tensor.sized(model.sizes) for tensor in model.inputs} if static else None
        request = self.request(path, threads, fixed)

        def run(inputs: Inputs) -> list[np.ndarray]:
            results = request.infer(dict(inputs), share_inputs=True)
            return [results[index] for index in range(len(model.outputs))]

        return run


@dataclass(frozen=True)
class Torch:
    """The torch module that the model was exported from, as it is or through `torch.compile`."""

    compile_module: bool = False

    def warm_import(self) -> str:
        if self.compile_module and not _has_cpp_compiler():
            raise UnsupportedError("torch.compile needs a C++ compiler, and there is none (CXX, g++ or clang++)")
        return _import("torch").__version__

    def load(self, model: registry.Model, path: Path, threads: int, static: bool) -> Run:
        if not model.architecture or model.source:
            raise UnsupportedError("has no torch module")
        torch = _import("torch")
        torch.set_num_threads(threads)
        module = registry.torch_module(model)
        if self.compile_module:
            module = torch.compile(module, dynamic=not static and bool(model.sizes))

        @torch.inference_mode()
        def run(inputs: Inputs) -> list[np.ndarray]:
            result = module(*(torch.from_numpy(value) for value in inputs.values()))
            return [tensor.numpy() for tensor in (result if isinstance(result, tuple) else (result,))]

        return run


def _has_cpp_compiler() -> bool:
    return any(shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++") if name)


BASELINE = "onnxruntime"
OURS = "sardonyx"
KEPT = (
    "sardonyx-kept"  # with the engines that earlier sessions of a model keep; OURS makes every session from the model
)
COMPILED = "sardonyx-compiled"  # with a file that was compiled ahead
_FROM_MODEL = {"sardonyx.engine_cache": "0"}
BEST_OF = (BASELINE, "openvino")  # the float32 peers, of which the quicker one on each model is the one to beat
ENGINES: Mapping[str, Engine] = {
    BASELINE: OnnxRuntime(),
    "openvino": OpenVino("f32"),
    "openvino-bf16": OpenVino("bf16"),
    "torch": Torch(),
    "torch-compile": Torch(compile_module=True),
    OURS: OnnxRuntime(OURS, _FROM_MODEL),
    KEPT: OnnxRuntime(OURS),
    COMPILED: CompiledAhead(OURS),
    "sardonyx-bf16": OnnxRuntime(OURS, {**_FROM_MODEL, "sardonyx.cpu.precision": "bfloat16"}),
}
DEFAULT_ENGINES = (BASELINE, "openvino", "openvino-bf16", "torch", OURS, "sardonyx-bf16")

"""The engines that the benchmark compares, each behind the same two calls: load, then run.

`load` gives a function from named arrays to the list of outputs. Engines are imported when first used, so that
one that is not installed costs the others nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
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


class OnnxRuntime:
    """onnxruntime, or a module with its API."""

    def __init__(self, module: str = "onnxruntime") -> None:
        self.module = module

    def warm_import(self) -> str:
        return _import(self.module).__version__

    def load(self, model: registry.Model, path: Path, threads: int, static: bool) -> Run:
        ort = _import(self.module)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        if static:
            for tensor in model.inputs:
                for axis, dim in tensor.symbolic_axes().items():
                    options.add_free_dimension_override_by_name(dim, tensor.sized(model.sizes)[axis])
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return lambda inputs: session.run(None, dict(inputs))


class OpenVino:
    """OpenVINO's CPU plugin with the latency hint; `precision` is the arithmetic that it may use for float32."""

    def __init__(self, precision: str) -> None:
        self.precision = precision

    def warm_import(self) -> str:
        return _import("openvino").__version__

    def load(self, model: registry.Model, path: Path, threads: int, static: bool) -> Run:
        openvino = _import("openvino")
        core = openvino.Core()
        graph = core.read_model(path)
        if static:
            graph.reshape({tensor.name: tensor.sized(model.sizes) for tensor in model.inputs})
        compiled = core.compile_model(
            graph,
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": self.precision,
                "INFERENCE_NUM_THREADS": threads,
                "PERFORMANCE_HINT": "LATENCY",
                "NUM_STREAMS": 1,
            },
        )
        request = compiled.create_infer_request()

        def run(inputs: Inputs) -> list[np.ndarray]:
            results = request.infer(dict(inputs), share_inputs=True)
            return [results[index] for index in range(len(model.outputs))]

        return run


class Torch:
    """The torch module that the model was exported from, as it is or through `torch.compile`."""

    def __init__(self, compile_module: bool = False) -> None:
        self.compile_module = compile_module

    def warm_import(self) -> str:
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


BASELINE = "onnxruntime"
ENGINES: Mapping[str, Engine] = {
    BASELINE: OnnxRuntime(),
    "openvino": OpenVino("f32"),
    "openvino-bf16": OpenVino("bf16"),
    "torch": Torch(),
    "torch-compile": Torch(compile_module=True),
    "sardonyx": OnnxRuntime("sardonyx"),
}

"""Builds one model of the zoo, checks it, and writes its folder."""

from __future__ import annotations

import collections
import functools
import json
import warnings
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort

from benchmarks.zoo import macs, registry, test_data
from benchmarks.zoo.inputs import make_inputs

if TYPE_CHECKING:
    from torch import nn

Arrays = dict[str, np.ndarray]

# Largest error against torch, as a share of the largest reference value. Quantised models are compared by
# direction instead: cosine of the angle between both outputs, all values taken as one vector.
FLOAT_TOLERANCE = 1e-4
QUANTISED_COSINE = 0.9


def make(model: registry.Model, folder: Path, target: Path) -> None:
    """Build one model into the folder `target`; `folder` holds the built model that a quantised one is made from.

    AssertionError where the model is not what it should be: see `check`.
    """
    warnings.filterwarnings("ignore", module="torch|transformers|onnxscript|copyreg")
    target.mkdir(parents=True)
    path = target / "model.onnx"
    write_model(model, folder, path)
    onnx.checker.check_model(str(path))

    error = 0.0
    for index, sizes in enumerate((model.sizes, model.other_sizes) if model.other_sizes else (model.sizes,)):
        inputs = make_inputs(model, sizes)
        outputs = expected_outputs(model, path, inputs)
        error = max(error, check(model, path, inputs, outputs))
        test_data.save(target / f"test_data_set_{index}", inputs, outputs)
    (target / "info.json").write_text(json.dumps(describe(model, path, make_inputs(model), error), indent=1) + "\n")


def write_model(model: registry.Model, folder: Path, path: Path) -> None:
    if model.maker == "onnx.helper":
        made_by(model).build(model, path)
    elif model.source:
        from benchmarks.zoo import quantized

        quantized.build(model, folder / model.source / "model.onnx", path)
    else:
        from benchmarks.zoo import export

        export.export(model, torch_module(model.name), path)


def made_by(model: registry.Model) -> ModuleType:
    """What builds a model node by node, and knows its answers."""
    from benchmarks.zoo import tiny, trees

    return trees if model.name.startswith("trees") else tiny


def expected_outputs(model: registry.Model, path: Path, inputs: Arrays) -> Arrays:
    """What the model must answer.

    A float model must answer what its torch module does. A quantised one must answer what its own nodes say,
    which onnxruntime computes with its optimisations off; `check` holds that against the torch module too.
    """
    follows_torch = model.architecture and not model.source
    values = run_torch(model, inputs) if follows_torch else run_onnx(path, inputs)
    return dict(zip((tensor.name for tensor in model.outputs), values, strict=True))


@functools.lru_cache(maxsize=1)
def torch_module(name: str) -> nn.Module:
    """The torch module of a model, kept for the next caller: drawing the weights takes a while."""
    return registry.torch_module(registry.get(name))


def run_torch(model: registry.Model, inputs: Arrays) -> list[np.ndarray]:
    import torch

    with torch.inference_mode():
        result = torch_module(model.name)(*(torch.from_numpy(value) for value in inputs.values()))
    return [tensor.numpy() for tensor in (result if isinstance(result, tuple) else (result,))]


def run_onnx(path: Path, inputs: Arrays) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, inputs)


def check(model: registry.Model, path: Path, inputs: Arrays, outputs: Arrays) -> float:
    """Raise if an output is not finite, constant, or far from torch's; return the error (see the head)."""
    for name, value in outputs.items():
        if not np.isfinite(value).all() or (value.size > 1 and value.std() == 0):
            raise AssertionError(f"{model.name}: output {name} is not finite or is constant")
    if not model.architecture:
        (found,) = outputs.values()
        expected = made_by(model).answer(model, *inputs.values())
        error = float(np.abs(found - expected).max() / np.abs(expected).max())
        limit = FLOAT_TOLERANCE
    elif model.source:
        error = max(
            1.0 - cosine(found, wanted)
            for found, wanted in zip(outputs.values(), run_torch(model, inputs), strict=True)
        )
        limit = 1.0 - QUANTISED_COSINE
    else:
        results = run_onnx(path, inputs)
        error = max(
            float(np.abs(value - wanted).max() / np.abs(wanted).max())
            for value, wanted in zip(results, outputs.values(), strict=True)
        )
        limit = FLOAT_TOLERANCE
    if not error <= limit:
        raise AssertionError(f"{model.name}: error {error:.3g} is above {limit:.3g}")
    return error


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.ravel().astype(np.float64), b.ravel().astype(np.float64)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def describe(model: registry.Model, path: Path, inputs: Arrays, error: float) -> dict[str, Any]:
    """What `info.json` holds."""
    graph = onnx.load(path, load_external_data=False)
    operators = collections.Counter(
        f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in graph.graph.node
    )
    return {
        "name": model.name,
        "maker": model.maker,
        "opset": next(entry.version for entry in graph.opset_import if entry.domain in ("", "ai.onnx")),
        "sizes": dict(model.sizes),
        "inputs": {tensor.name: list(tensor.shape) for tensor in model.inputs},
        "outputs": {tensor.name: list(tensor.shape) for tensor in model.outputs},
        "parameters": parameters(model, graph),
        "macs": macs.count_macs(path, inputs),
        "nodes": sum(operators.values()),
        "operators": dict(operators.most_common()),
        "bytes": sum(file.stat().st_size for file in path.parent.glob("model.onnx*")),
        "error": error,
        "onnx": onnx.__version__,
        "onnxruntime": ort.__version__,
    }


def parameters(model: registry.Model, graph: onnx.ModelProto) -> int:
    """Parameters of the torch module, tied ones once (the exporters may write them twice, or fold some)."""
    if not model.architecture:
        return sum(int(np.prod(tensor.dims)) for tensor in graph.graph.initializer)
    return sum(parameter.numel() for parameter in torch_module(model.name).parameters())

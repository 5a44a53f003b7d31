"""Every model of the zoo, at its real size, answers what its PyTorch module answers; some are known in their symbols.

The models are built on first use, with PyTorch's outputs beside them, at the usual sizes of the symbolic dimensions
and at others.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as ort
from sardonyx.ops.framework import dims
from tests.ops.test_symbolic_inference import infer

pytest.importorskip("torch", reason="the extra `models` is not installed")

from benchmarks.zoo import registry, store, test_data

pytestmark = pytest.mark.models

# The largest error of a float model, relative to the largest value of the output.
TOLERANCE = 1e-4
# A quantised model rounds at many places, where engines differ by one step, and one step at the input of a ReLU
# changes many after it: outputs are compared by direction. onnxruntime with and without its optimisations: 0.9976.
QUANTISED_COSINE = 0.995
# Where onnxruntime with and without its optimisations is further apart than that itself: SiLU in two roundings.
OWN_COSINE = {"efficientnet-b0-int8-qdq": 0.985}


def relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found.astype(np.float64) - wanted).max() / np.abs(wanted).max())


def cosine(found: np.ndarray, wanted: np.ndarray) -> float:
    a, b = found.ravel().astype(np.float64), wanted.ravel().astype(np.float64)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def free(name: str) -> None:
    """With SARDONYX_ZOO_FREE set, delete a model after its test, and with it the float model that it was made from."""
    if os.environ.get("SARDONYX_ZOO_FREE") and all(model.source != name for model in registry.MODELS.values()):
        for used in filter(None, (name, registry.get(name).source)):
            store.free(used, store.default_folder())


def grouped(names: Iterable[str]) -> list[Any]:
    """Tests of a model run in one process, also those of the model that it is made from: it is built once."""
    return [pytest.param(name, marks=pytest.mark.xdist_group(registry.get(name).source or name)) for name in names]


@pytest.mark.parametrize(
    "name", grouped(["bert-base", "gpt2-decode", "whisper-small-decoder-step", "vit-base", "yolov5s"])
)
def test_shapes_are_known_in_symbols(name: str) -> None:
    folder = store.ensure(name, store.default_folder())
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    facts = infer(model)
    inputs, expected = test_data.load(folder / "test_data_set_0")
    symbols: dict[str, int] = {}
    for key, array in inputs.items():
        for dim, size in zip(facts[key].shape or (), array.shape, strict=True):
            if not isinstance(dim, int) and dim.value is not None and dim.value.isidentifier():
                symbols[dim.value] = size
    computed = [facts[output] for item in model.graph.node for output in item.output if output]
    sizes = [[dims.evaluate(dim, symbols) for dim in fact.shape] for fact in computed if fact.shape is not None]
    assert sum(None not in shape for shape in sizes) >= 0.99 * len(computed)
    for key, array in expected.items():
        assert tuple(dims.evaluate(dim, symbols) for dim in facts[key].shape or ()) == array.shape


# Here a model may be deleted: nothing that needs it comes later. A quantised one comes after the one it is made from.
@pytest.mark.parametrize("name", grouped(registry.names()))
def test_model_agrees_with_pytorch(name: str) -> None:
    model = registry.get(name)
    folder: Path = store.ensure(name, store.default_folder())
    session = ort.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    shapes = {tensor.name: list(tensor.shape) for tensor in model.inputs}
    assert {node.name: node.shape for node in session.get_inputs()} == shapes
    sets = sorted(folder.glob("test_data_set_*"))
    assert sets
    for data in sets:
        inputs, expected = test_data.load(data)
        outputs = session.run(list(expected), inputs)
        for found, wanted in zip(outputs, expected.values(), strict=True):
            assert found.shape == wanted.shape
            assert found.dtype == wanted.dtype
            if model.source:
                assert cosine(found, wanted) >= OWN_COSINE.get(name, QUANTISED_COSINE)
            else:
                assert relative_error(found, wanted) <= TOLERANCE
    del session
    gc.collect()
    free(name)

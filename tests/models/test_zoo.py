"""Every model of the zoo, at its real size, answers what its PyTorch module answers.

The models are built on first use, with PyTorch's outputs beside them, at the usual sizes of the symbolic dimensions
and at others.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest

import sardonyx as ort

pytest.importorskip("torch", reason="the extra `models` is not installed")

from benchmarks.zoo import registry, store, test_data

pytestmark = pytest.mark.models

# The largest error of a float model, relative to the largest value of the output.
TOLERANCE = 1e-4
# A quantised model rounds at many places, where engines differ by one step, and one step at the input of a ReLU
# changes many after it: outputs are compared by direction. onnxruntime with and without its optimisations: 0.9976.
QUANTISED_COSINE = 0.995


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


# A quantised model comes after the float one that it is made from, in the same process.
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.xdist_group(registry.get(name).source or name)) for name in registry.names()],
)
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
                assert cosine(found, wanted) >= QUANTISED_COSINE
            else:
                assert relative_error(found, wanted) <= TOLERANCE
    del session
    gc.collect()
    free(name)

"""A model for engines (rows of a table by their numbers, times weights, plus a bias), and sessions that keep them."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as ort
from sardonyx.api.engines import engine_keeper, engine_store, kept_engine, live_models
from sardonyx.runtime import file_state
from sardonyx.runtime.files.engine_file import SealedEngine, map_sealed
from sardonyx.runtime.files.opening import open_file

ROWS, WIDTH, OUT = 50, 24, 40

IDS = np.random.default_rng(9).integers(0, ROWS, 70)


def write_model(path: Path, seed: int = 0, *, external: str = "") -> dict[str, np.ndarray]:
    """Write the model; its constants."""
    rng = np.random.default_rng(seed)
    constants = {
        "table": rng.standard_normal((ROWS, WIDTH)).astype(np.float32),
        "weights": rng.standard_normal((WIDTH, OUT)).astype(np.float32),
        "bias": rng.standard_normal(OUT).astype(np.float32),
    }
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], name="look_up"),
        helper.make_node("MatMul", ["rows", "weights"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["y"]),
        helper.make_node("ReduceMax", ["y"], ["most"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "words",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", OUT]),
            helper.make_tensor_value_info("most", TensorProto.FLOAT, []),
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model.producer_name = "a test"
    if external:
        onnx.save_model(model, path, save_as_external_data=True, location=external, size_threshold=0)
    else:
        onnx.save(model, path)
    return constants


def expected(constants: dict[str, np.ndarray], ids: np.ndarray) -> np.ndarray:
    """Its first output in float64."""
    return np.maximum(constants["table"][ids].astype(np.float64) @ constants["weights"] + constants["bias"], 0)


def keeps_every_engine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines and trust records lie here; every model has one, however young and quickly made, and no session takes
    what another one has in memory, or makes plans for sizes that nobody asks for."""
    monkeypatch.setenv("SARDONYX_CACHE", str(folder))
    monkeypatch.setattr(engine_store, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(file_state, "SETTLED_SECONDS", -3600.0)
    monkeypatch.setattr(engine_keeper, "GATHER_SECONDS", 0.0)
    monkeypatch.setattr(live_models, "find", lambda store: None)
    monkeypatch.setattr(engine_keeper, "wants_sizes", lambda request: False)
    monkeypatch.setattr(kept_engine, "wants_sizes", lambda request: False)


def engines_in(cache: Path) -> Path:
    """Where engines lie if `cache` is what ``SARDONYX_CACHE`` names."""
    return cache / "sardonyx" / "kernels" / "engines"


def sealed_in(path: Path) -> SealedEngine:
    """The engine of a file."""
    with open_file(path) as file:
        return map_sealed(file, str(path))


def is_stored(made: ort.InferenceSession) -> bool:
    return made._session()._is_stored


def wait() -> None:
    """Until every engine is written."""
    for thread in threading.enumerate():
        if thread.name == "sardonyx-engine":
            thread.join(60)

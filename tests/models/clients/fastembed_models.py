"""FastEmbed with a model of the user's own, in a folder. Run by test_clients.py.

Prints JSON: how far its vectors are from those of PyTorch, and from those of `SentenceEncoder` on the same folder.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

if importlib.util.find_spec("torchvision") is not None:
    importlib.import_module("benchmarks.zoo.architectures")  # makes torchvision's import succeed beside a CPU torch

import numpy as np
import onnxruntime
import small_models
import torch
import transformers
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType

from sardonyx import models

TEXTS = ["the cat sees a big dog", "it was very good", "red house on the blue", "they", "we runs " * 40]


def main(folder: Path) -> None:
    small_models.write("features", folder)
    small_models.export_states(folder, folder / "model.onnx")
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    with torch.inference_mode():
        tokens = tokenizer(TEXTS, padding=True, truncation=True, return_tensors="pt")
        states = transformers.AutoModel.from_pretrained(folder)(**tokens).last_hidden_state.double().numpy()
    mask = tokens["attention_mask"].numpy()[..., None]
    exact = {"mean": (states * mask).sum(1) / mask.sum(1), "cls": states[:, 0]}
    found = {}
    for name, pooling in (("mean", PoolingType.MEAN), ("cls", PoolingType.CLS)):
        for normalize in (True, False):
            model = f"of-mine/{name}-{normalize}"
            TextEmbedding.add_custom_model(
                model=model,
                pooling=pooling,
                normalization=normalize,
                sources=ModelSource(hf="of-mine/none"),
                dim=32,
                model_file="model.onnx",
            )
            embedding = TextEmbedding(model, specific_model_path=str(folder), threads=1)
            vectors = np.stack(list(embedding.embed(TEXTS, batch_size=2)))
            wanted = exact[name] / np.linalg.norm(exact[name], axis=1, keepdims=True) if normalize else exact[name]
            found[f"{name}, {normalize}"] = apart(vectors, wanted)
            found[f"{name}, {normalize}, query"] = apart(next(iter(embedding.query_embed(TEXTS[0]))), wanted[0])
            encoder = models.SentenceEncoder(folder, pooling=name, normalize=normalize)
            found[f"{name}, {normalize}, encoder"] = apart(encoder.encode(TEXTS), wanted)
    print(json.dumps({"onnxruntime": onnxruntime.__file__, "models": found}))


def apart(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> float:
    """The largest difference over the largest number."""
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max()) if ours.shape == theirs.shape else float("inf")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

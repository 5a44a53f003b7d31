"""Counting what optimisers of saved models fuse."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from benchmarks import fusion_counts
from tests.passes.test_saved_models import LAYERS, encoder

WANTED = {"embeddings": 1, "attention": LAYERS, "norms": 1 + 2 * LAYERS, "skip": 2 * LAYERS, "gelu": LAYERS}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(encoder().model(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_a_small_encoder_is_counted_by_kind(path: Path) -> None:
    counts = fusion_counts.of_sardonyx(str(path), "bert", 2, 8)
    assert fusion_counts.by_column(counts) == WANTED
    line = fusion_counts.line("small", "sardonyx", fusion_counts.by_column(counts))
    assert line.split() == ["small", "sardonyx", *map(str, WANTED.values())]


def test_the_count_comes_from_a_process_of_its_own(path: Path) -> None:
    assert fusion_counts.by_column(fusion_counts.count("sardonyx", path, ("bert", 2, 8))) == WANTED


def test_every_model_of_the_table_is_in_the_zoo() -> None:
    assert [name for name in fusion_counts.KINDS if name not in fusion_counts.registry.MODELS] == []

"""Magika's model, from the PyPI package that carries it, on real bytes: the answers of onnxruntime."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import sardonyx

onnxruntime = pytest.importorskip("onnxruntime")
SPEC = importlib.util.find_spec("magika")
if SPEC is None or SPEC.origin is None:
    pytest.skip("the extra `demo` is not installed", allow_module_level=True)

pytestmark = pytest.mark.models

PACKAGE = Path(SPEC.origin).parent
MODEL = sorted((PACKAGE / "models").glob("*/model.onnx"))[-1]
BLOCK = 1024  # bytes from the beginning and from the end; 256 stands for padding


def features(path: Path) -> list[int]:
    content = path.read_bytes()
    head, tail = list(content[:BLOCK]), list(content[-BLOCK:])
    return head + [256] * (BLOCK - len(head)) + [256] * (BLOCK - len(tail)) + tail


def test_answers_of_onnxruntime() -> None:
    files = [path for path in sorted(PACKAGE.rglob("*")) if path.is_file() and path.stat().st_size][:40]
    batch = np.array([features(path) for path in files], np.int32)
    ours = sardonyx.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    theirs = onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    assert [str(node) for node in ours.get_inputs()] == [str(node) for node in theirs.get_inputs()]
    assert [str(node) for node in ours.get_outputs()] == [str(node) for node in theirs.get_outputs()]
    (found,) = ours.run(["target_label"], {"bytes": batch.tolist()})
    (wanted,) = theirs.run(["target_label"], {"bytes": batch})
    # The model takes variances as differences of large sums: in float32 either engine is up to 7e-4 off float64.
    np.testing.assert_allclose(found, wanted, atol=2e-3)
    assert (found.argmax(1) == wanted.argmax(1)).all()

"""That a rewritten model means the same: in sardonyx at both ends of its levels, and in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx

Array = np.ndarray[Any, Any]


def outputs_of(model: onnx.ModelProto, feeds: Mapping[str, Array], level: int = 0) -> list[Array]:
    """What sardonyx computes, by default without any rewrite."""
    options = sardonyx.SessionOptions()
    options.graph_optimization_level = sardonyx.GraphOptimizationLevel(level)
    session = sardonyx.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def outputs_of_onnxruntime(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def assert_agrees(
    before: onnx.ModelProto, after: onnx.ModelProto, feeds: Mapping[str, Array], rtol: float = 1e-5, atol: float = 1e-5
) -> None:
    """The model, its rewritten form and a session with all rewrites give what onnxruntime gives for both forms."""
    wanted = outputs_of(before, feeds)
    others = (
        outputs_of(after, feeds),
        outputs_of(before, feeds, 99),
        outputs_of_onnxruntime(before, feeds),
        outputs_of_onnxruntime(after, feeds),
    )
    for found in others:
        assert len(found) == len(wanted)
        for ours, theirs in zip(found, wanted, strict=True):
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)

"""Runs a model at every optimisation level, and by NumPy in the place of native code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx

# Levels, each with native code; then one with NumPy alone.
FORMS = ((0, ""), (1, ""), (2, ""), (99, ""), (99, "numpy"))


def session(model: onnx.ModelProto, level: int, kernels: str) -> sardonyx.InferenceSession:
    options = sardonyx.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = sardonyx.GraphOptimizationLevel(level)
    options.add_session_config_entry("sardonyx.cpu.kernels", kernels)
    return sardonyx.InferenceSession(model.SerializeToString(), options)


def sessions(model: onnx.ModelProto) -> Iterator[tuple[str, sardonyx.InferenceSession]]:
    """A session of each form, under the words that failures show."""
    for level, kernels in FORMS:
        yield f"level {level} {kernels}".rstrip(), session(model, level, kernels)


def assert_results(
    model: onnx.ModelProto,
    feeds: Sequence[Mapping[str, Any]],
    wanted: Sequence[Sequence[Any]],
    tolerance: float = 1e-5,
) -> None:
    """Each form gives what is wanted for all feeds in turn: types, shapes and numbers (NaN equals NaN)."""
    for label, running in sessions(model):
        for number, (feed, expected) in enumerate(zip(feeds, wanted, strict=True)):
            for output, have, want in zip(running.get_outputs(), running.run(None, dict(feed)), expected, strict=True):
                where = f"{label}, feed {number}, {output.name}"
                assert have.dtype == want.dtype, where
                assert have.shape == want.shape, where
                wide = have.astype(np.float64), want.astype(np.float64)
                np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance, err_msg=where)


def assert_refused(model: onnx.ModelProto, feeds: Mapping[str, Any], words: str) -> None:
    """Each form refuses the model or its feeds by a typed error that has these words."""
    for level, kernels in FORMS:
        with pytest.raises(sardonyx.errors.OnnxRuntimeError) as caught:
            session(model, level, kernels).run(None, dict(feeds))
        assert words in str(caught.value), f"level {level} {kernels}"

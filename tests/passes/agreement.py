"""That a rewritten model means the same: in sardonyx at both ends of its levels, and in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

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


def outputs_in_double(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """What a model of ONNX's operators gives when everything in single precision is in double."""
    wide = onnx.ModelProto.FromString(model.SerializeToString())
    for tensor in wide.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    for value in (*wide.graph.input, *wide.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in wide.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
            if attribute.name == "value" and attribute.t.data_type == TensorProto.FLOAT:
                attribute.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t).astype(np.float64)))
    given = {name: feed.astype(np.float64) if feed.dtype == np.float32 else feed for name, feed in feeds.items()}
    return list(ReferenceEvaluator(wide).run(None, given))


def assert_agrees_with_double(
    before: onnx.ModelProto, after: onnx.ModelProto, feeds: Mapping[str, Array], tolerance: float = 2e-5
) -> None:
    """The rewritten form gives in sardonyx, with and without rewrites, and in onnxruntime what double precision does.

    The tolerance is relative to the largest number of each output.
    """
    wanted = outputs_in_double(before, feeds)
    for found in (outputs_of(after, feeds), outputs_of(after, feeds, 99), outputs_of_onnxruntime(after, feeds)):
        assert len(found) == len(wanted)
        for ours, theirs in zip(found, wanted, strict=True):
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * float(np.abs(theirs).max()))

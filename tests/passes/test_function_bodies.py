"""Operators without a kernel that ONNX defines by others."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import sardonyx as ort
from sardonyx.passes.function_bodies import NAME


def test_a_definition_takes_the_place_of_an_operator_and_keeps_its_defaults_and_names() -> None:
    nodes = [
        helper.make_node(
            "NegativeLogLikelihoodLoss", ["x", "target", "weight"], ["loss"], "the loss", reduction="none"
        ),
        helper.make_node("HannWindow", ["size"], ["window"]),
    ]
    graph = helper.make_graph(
        nodes,
        "bodies",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 5]),
            helper.make_tensor_value_info("target", TensorProto.INT64, ["n"]),
            helper.make_tensor_value_info("weight", TensorProto.FLOAT, [5]),
            helper.make_tensor_value_info("size", TensorProto.INT64, []),
        ],
        [
            helper.make_tensor_value_info("loss", TensorProto.FLOAT, ["n"]),
            helper.make_tensor_value_info("window", TensorProto.FLOAT, None),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    rng = np.random.default_rng(3)
    feeds = {
        "x": rng.standard_normal((4, 5)).astype(np.float32),
        "target": rng.integers(0, 5, 4),
        "weight": rng.random(5).astype(np.float32),
        "size": np.array(9),
    }
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == ["loss", "window"]
    assert {report.name: report.changes for report in session._session().passes}[NAME] == 2
    for found, wanted in zip(session.run(None, feeds), ReferenceEvaluator(model).run(None, feeds), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def test_attention_whose_scores_are_read_is_written_out_and_others_are_not() -> None:
    def session(outputs: list[str]) -> ort.InferenceSession:
        attention = helper.make_node("Attention", ["q", "q", "q"], outputs)
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs if name]
        graph = helper.make_graph(
            [attention], "scores", [helper.make_tensor_value_info("q", TensorProto.FLOAT, [1, 2, "s", 8])], values
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
        return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    q = np.random.default_rng(4).standard_normal((1, 2, 6, 8)).astype(np.float32)
    plain, scored = session(["y"]), session(["y", "", "", "scores"])
    for one, changes in ((plain, 0), (scored, 1)):
        assert {report.name: report.changes for report in one._session().passes}[NAME] == changes
    y, scores = scored.run(None, {"q": q})
    np.testing.assert_allclose(y, plain.run(None, {"q": q})[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scores, q @ q.swapaxes(2, 3) / np.sqrt(8), rtol=1e-5, atol=1e-6)

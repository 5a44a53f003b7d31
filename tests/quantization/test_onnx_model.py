"""`ONNXModel`: a quantised model as a message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from sardonyx.quantization.onnx_model import ONNXModel
from tests.quantization.quantizing import constants, model, node, operators, run

_RANDOM = np.random.default_rng(5)


def _floats(*shape: int) -> Any:
    return _RANDOM.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_gemm_becomes_matmul(turned: int, with_bias: bool, shared: bool) -> None:
    """A weight that others read as well is transposed by a node."""
    inputs = ["x", "w", "b"] if with_bias else ["x", "w"]
    proto = model(
        [node("Gemm", inputs, ["y"], transB=turned), *([node("Abs", ["w"], ["z"])] if shared else [])],
        {"x": [2, 4]},
        ["y", *(["z"] if shared else [])],
        {"w": _floats(*((3, 4) if turned else (4, 3))), "b": _floats(3)},
    )
    x = _floats(2, 4)
    before = run(proto, {"x": x})
    changed = ONNXModel(proto)
    changed.replace_gemm_with_matmul()
    assert "Gemm" not in operators(proto)
    assert ("Transpose" in operators(proto)) == (shared and bool(turned))
    for ours, wanted in zip(run(proto, {"x": x}), before, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-6)


def test_a_gemm_that_scales_stays() -> None:
    proto = model([node("Gemm", ["x", "w"], ["y"], alpha=0.5)], {"x": [2, 4]}, ["y"], {"w": _floats(4, 3)})
    ONNXModel(proto).replace_gemm_with_matmul()
    assert operators(proto) == ["Gemm"]


def test_names_and_numbers() -> None:
    found = ONNXModel(
        model([node("MatMul", ["x", "w"], ["y"], name="m_3")], {"x": [2, 4]}, ["y"], {"w": _floats(4, 3)})
    )
    assert found.get_largest_node_name_suffix("m_") == 3
    assert found.get_largest_initializer_name_suffix("w_") == -1
    assert found.get_initializer_name_set() == {"w"}
    assert found.get_non_initializer_inputs() == {"x"}
    assert found.is_graph_input("x")
    assert found.is_graph_output("y")
    assert found.get_tensor_type("x").elem_type == onnx.TensorProto.FLOAT
    found.set_opset_import("com.microsoft", 1)
    found.set_opset_import("new.domain", 2)
    assert {entry.domain: entry.version for entry in found.opset_import()}["new.domain"] == 2


def test_constants_that_nobody_reads_go() -> None:
    """Those that a body reads stay."""
    body = helper.make_graph(
        [helper.make_node("MatMul", ["x", "inner"], ["i"])],
        "body",
        [],
        [helper.make_tensor_value_info("i", onnx.TensorProto.FLOAT, None)],
    )
    proto = model(
        [helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)],
        {"x": [2, 4], "c": []},
        ["y"],
        {"inner": _floats(4, 3), "unread": _floats(2)},
        kinds={"c": onnx.TensorProto.BOOL},
    )
    found = ONNXModel(proto)
    found.clean_initializers()
    assert set(constants(proto)) == {"inner"}


def test_saving_beside_weights(tmp_path: Path) -> None:
    proto = model(
        [node("Relu", ["m"], ["y"]), node("MatMul", ["x", "w"], ["m"])], {"x": [2, 40]}, ["y"], {"w": _floats(40, 30)}
    )
    path = tmp_path / "m.onnx"
    ONNXModel(proto).save_model_to_file(path, use_external_data_format=True)
    assert (tmp_path / "m.onnx.data").is_file()
    found = onnx.load(path)
    assert operators(found) == ["MatMul", "Relu"]
    np.testing.assert_array_equal(numpy_helper.to_array(found.graph.initializer[0]), constants(proto)["w"])

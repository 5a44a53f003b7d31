"""`TensorQuantOverridesHelper`, as tools that write overrides use it."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import numpy_helper

from sardonyx.quantization.quant_utils import QuantType
from sardonyx.quantization.tensor_quant_overrides import QuantTypeInfo, TensorQuantOverridesHelper


def _helper(**overrides: list[dict[str, Any]]) -> TensorQuantOverridesHelper:
    return TensorQuantOverridesHelper(dict(overrides))


def test_looking_up() -> None:
    found = _helper(
        a=[{"quant_type": QuantType.QUInt8, "convert": {"quant_type": QuantType.QUInt16, "recv_nodes": {"n"}}}],
        w=[{"axis": 1, "quant_type": QuantType.QInt4}],
        s=[{"scale": 1.0, "zero_point": 0}],
    )
    assert found.get_quant_types() == {QuantType.QUInt8, QuantType.QUInt16, QuantType.QInt4}
    assert found.has_per_channel_overrides("w")
    assert not found.has_per_channel_overrides("a")
    assert found.has_per_tensor_overrides("a")
    assert found.overrides_scale_zp("s")
    assert not found.overrides_scale_zp("a")
    assert found.get_per_tensor_overrides("none", {}) == {}
    assert found.get_node_input_qtype_info("a", "n", None).quant_type is QuantType.QUInt16
    assert found.get_node_input_qtype_info("a", "m", None).quant_type is QuantType.QUInt8
    assert found.get_node_output_qtype_info("a", None).quant_type is QuantType.QUInt8
    assert found.get_node_output_qtype_info("b", QuantType.QInt8).quant_type is QuantType.QInt8


def test_adding() -> None:
    found = _helper(w=[{"axis": 0}, {}])
    assert found.update_tensor_overrides("w", {"rmin": 0.0}, [1])
    assert found["w"] == [{"axis": 0}, {"rmin": 0.0}]
    assert not found.update_tensor_overrides("w", {"rmin": 1.0}, overwrite=False)
    assert found.update_tensor_overrides("new", {"symmetric": True})
    assert found.get_dict()["new"] == [{"symmetric": True}]
    assert not found.update_tensor_overrides("new", {})


def test_kinds_are_equal_where_neither_says_otherwise() -> None:
    assert QuantTypeInfo(QuantType.QInt8, True) == QuantTypeInfo(QuantType.QInt8)
    assert QuantTypeInfo(QuantType.QInt8, True) != QuantTypeInfo(QuantType.QInt8, False)
    assert QuantTypeInfo(QuantType.QInt8, axis=0) != QuantTypeInfo(QuantType.QInt8)


def test_validity_as_onnxruntime_asks_for_it() -> None:
    weights = {"w": numpy_helper.from_array(np.zeros((2, 3), np.float32), "w")}
    assert _helper(w=[{"axis": 1}]).is_valid(weights, {"a"}, QuantType.QUInt8) == (True, None)
    valid, reason = _helper(a=[{}], z=[{}]).is_valid(weights, {"a"}, QuantType.QUInt8)
    assert not valid
    assert reason is not None
    assert "no such tensor" in reason
